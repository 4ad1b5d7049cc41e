"""Prompts ahead of time: of a call that waits for a text which is being generated, what is known of
its prompt is computed meanwhile, so that the text's end leaves only the rest.

Each piece is a request of its own without any output, which the scheduler ends as soon as anybody
else waits (`Hints.is_ahead`). It changes no answer: what it computes is in the prefix cache, or is
not. Invariant: a call has one at a time, and none once it has begun or ended.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from srt.client.generation import Request
from srt.client.ring.client import RingClient
from srt.programs.parts import CallWork, Variable
from srt.programs.prompts import Beginning, beginning_of, known_chars
from srt.tasks import TaskSet
from srt.wire.errors import RequestError
from srt.wire.hints import Hints
from srt.wire.sampling import SamplingParams

log = logging.getLogger(__name__)

MIN_TOKENS = 64  # that are computed at a time
MAX_AT_ONCE = 4  # requests
MAX_CONSUMERS = 8  # of a text, that are looked at as it grows
MAX_CALLS = 1024  # that are remembered
FIRST_TOKEN_CHARS = 4.0  # characters of a token, until a prompt was counted
_NO_OUTPUT = SamplingParams(max_new_tokens=0)


@dataclass(eq=False, slots=True)
class _Known:
    """A call that waits: the characters of its prompt that are computed, those that were known when
    they were last counted, those of each input then, by id, and the request that runs. Nothing is
    asked for again of a prompt that `is_refused`."""

    done: int = 0
    seen: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    is_refused: bool = False
    task: asyncio.Task[None] | None = None


class Ahead:
    """Computes prompts of the calls whose inputs grow. The runner says what happens."""

    def __init__(self, client: RingClient) -> None:
        self._client = client
        self._tasks = TaskSet(lambda error: log.error("a prompt ahead failed", exc_info=error))
        self._calls: dict[CallWork, _Known] = {}
        self._num_running = 0
        self._token_chars = FIRST_TOKEN_CHARS

    async def close(self) -> None:
        await self._tasks.close()

    def grew(self, var: Variable) -> None:
        """The text of `var`, which is being generated, has grown."""
        for work in _waiting_for(var):
            self._look(work, var)

    def settle(self) -> None:
        """Forget the calls that have begun or ended, and end what is computed for them."""
        for work in [work for work in self._calls if not _waits(work)]:
            known = self._calls.pop(work)
            if known.task is not None:
                known.task.cancel()

    def _look(self, work: CallWork, var: Variable) -> None:
        """Ask for what has become known of the prompt of a call, if it is enough, as `var` grows.
        To count it takes time, so that it is not done for each token."""
        known = self._calls.get(work)
        if known is None:
            if len(self._calls) >= MAX_CALLS:
                return
            known = self._calls[work] = _Known()
        if known.task is not None or known.is_refused or self._num_running >= MAX_AT_ONCE:
            return
        more, length = MIN_TOKENS * self._token_chars, len(var.text)
        before = known.lengths.get(var.id)
        if before is not None and before <= length < before + more / 4:
            return
        known.lengths[var.id], chars = length, known_chars(work)
        if chars < max(known.done + more, known.seen + more / 4):
            return
        begun, known.seen = beginning_of(work), chars
        if begun is not None and len(begun.text) >= known.done + more:
            self._num_running += 1
            known.task = self._tasks.start(self._compute(work, known, begun))
            known.task.add_done_callback(lambda _: self._done(known))

    def _done(self, known: _Known) -> None:
        known.task = None
        self._num_running -= 1

    async def _compute(self, work: CallWork, known: _Known, begun: Beginning) -> None:
        """One request. If it was ended for others, the next is for the same and what has grown."""
        session = work.session
        request = Request(
            text=begun.text,
            literal_spans=begun.literal_spans,
            sampling=_NO_OUTPUT,
            cache_salt=session.cache_salt,
            tenant=session.caller,
            joined=True,
            hints=Hints(perf="throughput", is_ahead=True),
        )
        try:
            generation = await self._client.submit(request)
            try:
                output = await generation.result()
            finally:
                await generation.aclose()
        except RequestError as error:
            log.debug("a prompt ahead was not computed: %s", error)
            known.is_refused = not error.info.retryable  # too long, for instance
            return
        if output.finish is not None and output.finish.type == "abort":
            return
        known.done = len(begun.text)
        if output.prompt_tokens:
            self._token_chars = max(1.0, len(begun.text) / output.prompt_tokens)


def _waiting_for(var: Variable) -> Iterator[CallWork]:
    """Some of the calls that wait for a text."""
    for work in var.consumers[:MAX_CONSUMERS]:
        if isinstance(work, CallWork) and _waits(work):
            yield work


def _waits(work: CallWork) -> bool:
    """Whether the call is to run as soon as its inputs are there. One with a guard that is not
    known yet may be skipped."""
    is_asked = work.is_asked or work.guard is None
    return work.active and is_asked and not (work.started or work.ended or work.session.closed)
