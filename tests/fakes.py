"""Stand-ins for the parts next to the one under test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from srt.errors import CONFLICT, RequestError
from srt.generation import ChoiceScore, GenerateOutput, Request, ScoreOutput, ScoreRequest
from srt.messages import Finish, RingEvent

READY = RingEvent(epoch=1, ready=True, draining=False, parts={"scheduler": "ready"})
DEFAULT_PIECES = ("Hello", ", ", "wörld")


class FakeGeneration:
    """Yields one snapshot per piece, one token each (ids 100, 101, ...), then a finish.

    `hold` (an event) must be set before the last piece comes; `error` is raised in its place.
    """

    def __init__(self, client: "FakeClient", request: Request, rid: str) -> None:
        self.client = client
        self.request = request
        self.rid = rid
        self.prompt_tokens = client.prompt_tokens(request)
        self.opens_reasoning = client.opens_reasoning
        self.closed = False
        self.finished = False

    def _snapshot(self, count: int, finish: Finish | None) -> GenerateOutput:
        pieces = self.client.pieces
        start = self.request.logprob_start_len
        wants = self.request.return_logprob
        return GenerateOutput(
            rid=self.rid,
            text="".join(pieces[:count]),
            delta=pieces[count - 1] if count else "",
            output_ids=list(range(100, 100 + count)),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.client.cached_tokens,
            completion_tokens=count,
            finish=finish,
            jump_forward_tokens=self.client.jump_forward_tokens,
            forward_passes=count - self.client.jump_forward_tokens,
            output_logprobs=[-0.5] * count if wants else None,
            prompt_logprobs=[(None if i == 0 else -0.25, i) for i in range(start, start + 2)]
            if wants and start >= 0
            else None,
        )

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        total = len(self.client.pieces)
        limit = self.request.sampling.max_new_tokens
        total = total if limit is None else min(total, limit)
        for count in range(1, total):
            yield self._snapshot(count, None)
            await asyncio.sleep(self.client.delay_s)
        await self.client.hold.wait()
        if self.client.error is not None:
            raise self.client.error
        self.finished = True
        yield self._snapshot(total, self.client.finish)

    async def result(self) -> GenerateOutput:
        async for output in self:
            last = output
        return last

    async def aclose(self) -> None:
        if not self.closed and not self.finished:
            self.client.aborted.append(self.rid)
            self.client.changed.set()
        self.closed = True


class FakeClient:
    """A `srt.generation.Client` with scripted answers that records what it was asked."""

    def __init__(self, pieces: Sequence[str] = DEFAULT_PIECES) -> None:
        self.pieces = tuple(pieces)
        self.finish = Finish("stop", matched=2)
        self.cached_tokens = 3
        self.opens_reasoning = False
        self.jump_forward_tokens = 0
        self.delay_s = 0.0
        self.changed = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self.error: Exception | None = None
        self.refusals: dict[int, Exception] = {}
        self.requests: list[Request] = []
        self.generations: list[FakeGeneration] = []
        self.scores: list[ScoreRequest] = []
        self.aborted: list[str] = []
        self.flushes: list[float] = []
        self.busy = False
        self.statistics: dict[str, Any] | Exception = {
            "num_running_reqs": 1,
            "cache_hit_rate": 0.5,
            "cached_tokens_total": 7,
        }
        self.ring: RingEvent | None = READY

    @staticmethod
    def prompt_tokens(request: Request) -> int:
        """One token per word, id or message."""
        if request.text is not None:
            return len(request.text.split())
        return len(request.input_ids or request.messages)

    async def submit(self, request: Request) -> FakeGeneration:
        index = len(self.requests)
        self.requests.append(request)
        if index in self.refusals:
            raise self.refusals[index]
        request.sampling.check(vocab_size=1000)
        generation = FakeGeneration(self, request, request.rid or f"r{index}")
        self.generations.append(generation)
        self.changed.set()
        return generation

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        """The i-th continuation has tokens i and i+1, with -0.5 and -i; the first is at 2."""
        self.scores.append(request)
        self.changed.set()
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.aborted.append(request.rid or "")
            self.changed.set()
            raise
        if self.error is not None:
            raise self.error
        count = len(request.continuations)
        choices = [ChoiceScore([i, i + 1], [-0.5, float(-i)]) for i in range(count)]
        return ScoreOutput(request.rid or "", choices, 2, 3, self.cached_tokens, 9)

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def wait_submitted(self, count: int) -> None:
        """Return once `count` requests were admitted; TimeoutError after 5 s."""
        await self._wait_for(lambda: len(self.generations) + len(self.scores) >= count)

    async def wait_aborted(self, count: int) -> None:
        """Return once `count` requests were aborted; TimeoutError after 5 s."""
        await self._wait_for(lambda: len(self.aborted) >= count)

    async def _wait_for(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not happened():
                self.changed.clear()
                await self.changed.wait()

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        self.flushes.append(timeout_s)
        if self.busy:
            raise RequestError("requests are running", code=CONFLICT, retryable=True)

    async def stats(self) -> dict[str, Any]:
        if isinstance(self.statistics, Exception):
            raise self.statistics
        return self.statistics
