"""Prompts ahead of time: of a call that waits for a text which is being made, what is known of its
prompt is computed meanwhile, so that the text's end leaves only the rest.

First that is the constant head of the call, then its input as it grows. Each piece is a request of
its own without any output, which computes only what nobody else has a use for (`Hints.is_ahead`).
It changes no answer: what it computes is in the prefix cache, or is not. Invariant: a call has one
at a time, and none once it has begun or ended.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from srt.client.generation import Request
from srt.client.ring.client import RingClient
from srt.programs.beginnings import (
    beginning_of,
    is_near,
    known_chars,
    probes_of,
    waiting_for,
    waits,
)
from srt.programs.parts import AHEAD_TOKENS, WASTED_TOKENS, CallWork, Variable
from srt.tasks import TaskSet
from srt.wire.errors import RequestError
from srt.wire.hints import Hints
from srt.wire.sampling import SamplingParams

log = logging.getLogger(__name__)

MIN_TOKENS = 64  # that are computed at a time
MAX_CONSUMERS = 8  # of a text, that are looked at as it grows
MAX_CALLS = 1024  # that are remembered
FIRST_TOKEN_CHARS = 4.0  # characters of a token, until some of a prompt were counted
FIRST_PAUSE_S, MAX_PAUSES = 0.1, 6  # before one that others have ended begins again; doubled
_NO_OUTPUT = SamplingParams(max_new_tokens=0)


@dataclass(eq=False, slots=True)
class _Known:
    """A call that waits: the characters of its prompt that are computed, those that were known when
    they were last counted, those of each input then, by id, and the request that runs, during which
    more may have become known (`has_changed`). Nothing is asked for again of a prompt that
    `is_refused`. `tokens` were computed for it, and its prompt was `length` tokens long the last
    time, what was new then of `token_chars` characters each; `pauses` is how often in a row its
    request was ended for others, and `cached` how many tokens had been there before these."""

    done: int = 0
    seen: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    is_refused: bool = False
    has_changed: bool = False
    task: asyncio.Task[None] | None = None
    tokens: int = 0
    length: int = 0
    token_chars: float = FIRST_TOKEN_CHARS
    pauses: int = 0
    cached: int | None = None
    timer: asyncio.TimerHandle | None = None


class Ahead:
    """Computes prompts of the calls that wait. The runner says what happens. As many requests run
    at once as there are schedulers, each of which takes one at a time, with the `hints` of their
    calls, so that they go where these will; what they compute is counted in `totals`."""

    def __init__(
        self,
        client: RingClient,
        hints: Callable[[CallWork, int], Hints | None],
        totals: dict[str, int],
        most: int = 1,
    ) -> None:
        self._client, self._hints, self._totals, self._most = client, hints, totals, most
        self._tasks = TaskSet(lambda error: log.error("a prompt ahead failed", exc_info=error))
        self._calls: dict[CallWork, _Known] = {}
        self._due: dict[CallWork, None] = {}  # of them, in order: those that have enough to ask for
        self._num_running = 0

    async def close(self) -> None:
        for known in self._calls.values():
            known.is_refused = True
            _stop_timer(known)
        await self._tasks.close()

    def waits(self, work: CallWork) -> None:
        """A call is wanted, and its inputs are not all there."""
        if waits(work) and is_near(work):
            self._look(work)

    def began(self, work: CallWork) -> None:
        """A call begins: what needs its outputs is next."""
        for var in work.outputs:
            for later in waiting_for(var):
                self._look(later)

    def grew(self, var: Variable) -> None:
        """The text of `var`, which is being generated, has grown."""
        for _, work in zip(range(MAX_CONSUMERS), waiting_for(var), strict=False):
            self._look(work, var)

    def settle(self) -> None:
        """Forget the calls that have begun or ended, and end what is computed for them."""
        for work in [work for work in self._calls if not waits(work)]:
            known = self._calls.pop(work)
            self._due.pop(work, None)
            _stop_timer(known)
            if not work.started:
                self._totals[WASTED_TOKENS] += known.tokens
            if known.task is not None:
                known.task.cancel()

    # ---- what is asked for -----------------------------------------------------------------------

    def _look(self, work: CallWork, var: Variable | None = None) -> None:
        """Ask for what has become known of the prompt of a call, if it is enough, as `var` grows.
        To count it takes time, so that it is not done for each token."""
        known = self._calls.get(work)
        if known is None:
            if len(self._calls) >= MAX_CALLS:
                return
            known = self._calls[work] = _Known()
        if known.task is not None or known.is_refused:
            known.has_changed = True
            return
        more = MIN_TOKENS * known.token_chars
        if var is not None:
            before, length = known.lengths.get(var.id), len(var.text)
            if before is not None and before <= length < before + more / 4:
                return
            known.lengths[var.id] = length
        chars = known_chars(work)
        if chars >= max(known.done + more, known.seen + more / 4):
            known.seen = chars
            self._due[work] = None
            self._begin_next()

    def _begin_next(self) -> None:
        """Begin as many requests as may run at once."""
        while self._due and self._num_running < self._most:
            work = next(iter(self._due))
            del self._due[work]
            known = self._calls[work]
            if waits(work) and known.task is None and not known.is_refused:
                self._num_running += 1
                _stop_timer(known)
                known.task = self._tasks.start(self._compute(work, known))
                known.task.add_done_callback(partial(self._done, work))

    def _done(self, work: CallWork, task: asyncio.Task[None]) -> None:
        self._num_running -= 1
        known = self._calls.get(work)
        if known is not None:
            known.task = None
            if known.has_changed and not known.pauses:
                known.has_changed = False
                self._look(work)
        self._begin_next()

    async def _compute(self, work: CallWork, known: _Known) -> None:
        """One request. If it was ended for others, the next is for the same and what has grown."""
        try:
            chars = known.seen
            request = await self._request(work, known)
            if request is None:
                return
            generation = await self._client.submit(request)
            try:
                output = await generation.result()
            finally:
                await generation.aclose()
        except RequestError as error:
            log.debug("a prompt ahead was not computed: %s", error)
            known.is_refused = not error.info.retryable  # too long, for instance
            self._pause(work, known)
            return
        cached = output.cached_tokens if known.cached is None else known.cached
        if output.finish is not None and output.finish.type == "abort":
            if output.queued_s is not None:  # it was admitted: it may have computed some
                known.cached = cached
            self._pause(work, known)
            return
        known.pauses, known.cached = 0, None
        known.tokens += (computed := output.prompt_tokens - min(cached, output.cached_tokens))
        self._totals[AHEAD_TOKENS] += computed
        done = chars if request.text is None else len(request.text)
        if (tokens := output.prompt_tokens - known.length) > 0:
            known.token_chars = max(1.0, (done - known.done) / tokens)
        known.length, known.done = output.prompt_tokens, done

    def _pause(self, work: CallWork, known: _Known) -> None:
        """Ask for the same again in a while, if nothing more is known before."""
        known.pauses += 1
        if known.pauses <= MAX_PAUSES and not known.is_refused:
            pause_s = FIRST_PAUSE_S * 2 ** (known.pauses - 1)
            known.timer = asyncio.get_running_loop().call_later(pause_s, self._again, work)

    def _again(self, work: CallWork) -> None:
        if work in self._calls:
            self._due[work] = None
            self._begin_next()

    async def _request(self, work: CallWork, known: _Known) -> Request | None:
        """The request for what is known; None if that is too little."""
        more = MIN_TOKENS * known.token_chars
        prompt: dict[str, Any]
        if work.call.turns:
            ids = await self._common_ids(work)
            if len(ids) < known.length + MIN_TOKENS:
                known.is_refused = 4 * len(ids) < known.seen / known.token_chars  # by its template
                return None
            prompt = {"input_ids": ids}
        else:
            begun = beginning_of(work)
            if begun is None or len(begun.text) < known.done + more:
                return None
            prompt = {"text": begun.text, "literal_spans": begun.literal_spans}
        session = work.session
        return Request(
            sampling=_NO_OUTPUT,
            cache_salt=session.cache_salt,
            tenant=session.caller,
            joined=True,
            hints=replace(self._hints(work, 0) or Hints(), is_ahead=True),
            **prompt,
        )

    async def _common_ids(self, work: CallWork) -> list[int]:
        """The tokens that a chat's prompt begins with, whatever is not known of it."""
        one, other = [await self._client.tokenize(each) for each in probes_of(work)]
        pairs = zip(one, other, strict=False)
        return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _stop_timer(known: _Known) -> None:
    if known.timer is not None:
        known.timer.cancel()
        known.timer = None
