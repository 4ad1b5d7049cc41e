"""Stand-ins for what the code under test works with."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from msgspec.structs import asdict

from srt.client.generation import (
    ChoiceScore,
    GenerateOutput,
    Request,
    ScoreOutput,
    ScoreRequest,
    TokenizeRequest,
)
from srt.wire.answer_meta import NO_DRAFTS, AnswerMeta
from srt.wire.constraint import Capture
from srt.wire.errors import CONFLICT, RequestError
from srt.wire.messages import Finish, sample_rid
from srt.wire.pause import PauseMode
from srt.wire.ring_state import RingEvent
from srt.wire.sampling import Scoring
from tests.waiting import SOON_S

READY = RingEvent(epoch=1, ready=True, draining=False, parts={"scheduler": "ready"}, media_kinds=[])
LOOK: dict[str, Any] = {
    "replica": 0,
    "nodes": [],
    "nodes_are_all": True,
    "cached_tokens": 0,
    "evicted_tokens_total": 0,
    "matches": 0,
    "running": [],
    "num_running": 0,
    "waiting": [],
    "num_waiting": 0,
}
DEFAULT_PIECES = ("Hello", ", ", "wörld")


class FakeGeneration:
    """Yields one snapshot per piece, one token each (ids 100, 101, ...), then a finish.

    The last piece waits for the event `hold`; `error` is raised in its place.
    """

    def __init__(self, client: "FakeClient", request: Request, rid: str) -> None:
        self.client = client
        self.request = request
        self.rid = rid
        prompt_tokens, media_tokens = client.prompt_tokens(request), 7 * len(request.media)
        self.meta = AnswerMeta(prompt_tokens=prompt_tokens, media_tokens=media_tokens)
        self.opens_reasoning = client.opens_reasoning
        self.closes_reasoning = client.closes_reasoning
        self.closed = False
        self.finished = False

    @property
    def prompt_tokens(self) -> int:
        return self.meta.prompt_tokens

    @property
    def _pieces(self) -> Sequence[str]:
        return self.client.sample_pieces.get(self.rid, self.client.pieces)

    def _snapshot(self, count: int, finish: Finish | None) -> GenerateOutput:
        pieces = self._pieces
        scoring = self.request.scoring
        start, wants = -1 if scoring is None else scoring.start, scoring is not None
        return GenerateOutput(
            rid=self.rid,
            text="".join(pieces[:count]),
            delta=pieces[count - 1] if count else "",
            output_ids=list(range(100, 100 + count)),
            prompt_tokens=self.meta.prompt_tokens,
            media_tokens=self.meta.media_tokens,
            cached_tokens=self.client.cached_tokens,
            completion_tokens=count,
            finish=finish,
            jump_forward_tokens=self.client.jump_forward_tokens,
            forward_passes=count - self.client.jump_forward_tokens,
            output_logprobs=[self.client.logprobs.get(self.rid, -0.5)] * count if wants else None,
            prompt_logprobs=[(None if i == 0 else -0.25, i) for i in range(start, start + 2)]
            if start >= 0
            else None,
            captures=self.client.captures if finish else None,
            **asdict(self.client.drafts),
            **self._details(count),
            **(self.client.facts if finish else {}),
        )

    def _details(self, count: int) -> dict[str, Any]:
        """At each position the ids 100, 101, ... are the most likely ones, with -0.5, -1.5, ...,
        and each id that was asked for has its negative as its value."""
        scoring = self.request.scoring or Scoring()
        start = scoring.start
        top: list[Any] = [(-0.5 - i, 100 + i) for i in range(scoring.top)]
        named: list[Any] = [float(-i) for i in scoring.ids]
        details: dict[str, Any] = {}
        for kind, row in (("top", top), ("id", named)):
            if row:
                details[f"output_{kind}_logprobs"] = [row] * count
                if start >= 0:
                    prompt = [None if i == 0 else row for i in range(start, start + 2)]
                    details[f"prompt_{kind}_logprobs"] = prompt
        return details

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        total = len(self._pieces)
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
    """A `srt.client.generation.Client` with scripted answers that records what it was asked."""

    def __init__(self, pieces: Sequence[str] = DEFAULT_PIECES) -> None:
        self.pieces = tuple(pieces)
        self.sample_pieces: dict[str, Sequence[str]] = {}  # by rid, in place of `pieces`
        self.logprobs: dict[str, float] = {}  # by rid, for all its tokens; otherwise -0.5
        self.finish = Finish("stop", matched=2)
        self.cached_tokens = 3
        self.captures: list[Capture] | None = None  # of each answer
        self.drafts = NO_DRAFTS  # of each answer
        self.facts: dict[str, Any] = {}  # further ones of each answer's end, by the fields' names
        self.opens_reasoning = self.closes_reasoning = False
        self.jump_forward_tokens = 0
        self.delay_s = 0.0
        self.changed = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self.error: Exception | None = None
        self.refusals: dict[int, Exception] = {}
        self.refuse: Callable[[Any], Exception] | None = None  # each request, and score, with this
        self.requests: list[Request] = []
        self.generations: list[FakeGeneration] = []
        self.scores: list[ScoreRequest] = []
        self.tokenized: list[TokenizeRequest] = []
        self.aborted: list[str] = []
        self.aborted_names: list[tuple[str, str]] = []  # tenant and rid
        self.flushes: list[float] = []
        self.pauses: list[PauseMode | None] = []
        self.busy = False
        self.looks: list[dict[str, Any]] = [dict(LOOK)]
        self.edges: dict[tuple[int, int], list[int]] = {}
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
        return len(request.input_ids or request.messages or [])

    async def submit(self, request: Request) -> FakeGeneration:
        (generation,) = await self.submit_samples(request)
        return generation

    async def submit_samples(self, request: Request) -> list[FakeGeneration]:
        index = len(self.requests)
        self.requests.append(request)
        if index in self.refusals:
            raise self.refusals[index]
        if self.refuse is not None:
            raise self.refuse(request)
        request.sampling.check(vocab_size=1000)
        rid, count = request.rid or f"r{index}", request.sampling.n
        rids = [rid] if count == 1 else [sample_rid(rid, i) for i in range(count)]
        samples = [FakeGeneration(self, request, rid) for rid in rids]
        self.generations += samples
        self.changed.set()
        return samples

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        """The length of each word, after a 1 if special tokens are added; for messages, that of
        each content. The text "refused" is refused."""
        self.tokenized.append(request)
        if request.text == "refused":
            raise RequestError(" is refused", at="text")
        if request.messages is not None:
            return [len(message.content) for message in request.messages]
        ids = [len(word) for word in (request.text or "").split()]
        return [1, *ids] if request.add_special_tokens else ids

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        """The i-th continuation has tokens i and i+1, with -0.5 and -i; the first is at 2."""
        self.scores.append(request)
        self.changed.set()
        if self.refuse is not None:
            raise self.refuse(request)
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

    async def abort(self, rid: str, tenant: str = "") -> None:
        self.aborted.append(rid)
        self.aborted_names.append((tenant, rid))

    async def wait_submitted(self, count: int) -> None:
        """Return once `count` requests were admitted; TimeoutError after 5 s."""
        await self._wait_for(lambda: len(self.generations) + len(self.scores) >= count)

    async def wait_aborted(self, count: int) -> None:
        """Return once `count` requests were aborted; TimeoutError after 5 s."""
        await self._wait_for(lambda: len(self.aborted) >= count)

    async def _wait_for(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not happened():
                self.changed.clear()
                await self.changed.wait()

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        self.flushes.append(timeout_s)
        if self.busy:
            raise RequestError("requests are running", code=CONFLICT, retryable=True)

    async def pause_generation(self, mode: PauseMode | None) -> None:
        self.pauses.append(mode)

    async def stats(self) -> dict[str, Any]:
        if isinstance(self.statistics, Exception):
            raise self.statistics
        return self.statistics

    async def look(self) -> list[dict[str, Any]]:
        return self.looks

    async def edge(self, replica: int, node: int) -> tuple[list[int], int]:
        ids = self.edges.get((replica, node), [])
        return ids, len(ids)
