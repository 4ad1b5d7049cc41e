"""Gens of programs with `num_api_spec_tokens`: answered by what was written ahead, or asked so that
more is written.

What follows a gen is what its state has been given already, and what it is given while the answer
comes. The answer is left at the first character that contradicts it, or after the last gen's end.
Never is a text filled in that does not fit: it is asked anew.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec import structs

from lang.backends.base import Completion, Prompt
from lang.backends.sampling import Sampling
from lang.backends.speculating import (
    Entry,
    Field,
    Site,
    Step,
    Store,
    Written,
    draw_of,
    key_of,
)
from lang.errors import FilterError, RefusalError, UnsupportedError
from lang.generation.calls import closing
from lang.run.ir import Expr, known_text
from lang.run.stream import Stream
from srt.wire.errors import BAD_REQUEST, CONTEXT_LENGTH, RequestError

GRACE_S = 0.004  # for a function that has begun to extend its state
MAX_TRIES = 3  # of an answer that must begin as the turn does
MAX_STEPS = 32  # that are looked at
MAX_UPCOMING = 4 * MAX_STEPS  # expressions
SHARE_OF_TIME = 0.9  # of a gen's timeout_s, after which one that has its text waits for no more
SamplingOf = Callable[[Expr], Sampling | None]  # of a gen; None of anything else


class Ahead(NamedTuple):
    """What follows a gen in its turn: gens after literals, then the text `rest`. `is_open` says
    that more may follow that."""

    steps: tuple[Step, ...]
    rest: str
    is_open: bool


class Speculator:
    """One call of a gen. `sampling_of` says how the gens after it sample; `show` gets its text as
    soon as it is known."""

    def __init__(
        self,
        stream: Stream,
        sampling: Sampling,
        site: str,
        sampling_of: SamplingOf,
        show: Callable[[str], None],
    ) -> None:
        self._stream, self._sampling, self._name = stream, sampling, site
        self._show = show
        self._backend = stream.program.backend
        self._draw = draw_of(sampling)

        def drawn(expr: Expr) -> tuple[Sampling | None, Any]:
            after = sampling_of(expr)
            return after, None if after is None else draw_of(after)

        self._drawn_after = cache(drawn)  # looked at again for each piece of an answer
        self._num_requests = self._num_wasted = self._num_uncounted = 0

    async def answer(self) -> Completion | None:
        """The gen's completion; None if it is asked as without speculation."""
        store, prompt = self._stream.program.place.ahead, self._stream.transcript.prompt()
        can = self._backend.capabilities
        if store is None or self._draw is None or can.refuses_speculation is not None:
            return None
        key = key_of(self._backend, prompt, self._draw)
        is_greedy = self._sampling.is_greedy
        taken = store.take(key, prompt.text, self._sampling, is_shared=is_greedy)
        if taken is not None or store.speculation.is_off(self._backend):
            return taken
        if can.chat_only and prompt.open_text and not can.continues:
            return await self._from_beginning(store, key, prompt)
        site = store.speculation.site(self._name)
        # Unless tokens are named, texts with more bytes than max_tokens would be drawn anew.
        is_possible = bool(self._sampling.stop) and (is_greedy or can.token_texts)
        if not is_possible or not site.is_worth_trying:
            return None
        ahead = await self._settled()
        if not (ahead.steps or ahead.is_open):
            return None
        return await self._ask(store, key, prompt, "", site, is_tried=not ahead.steps)

    async def _from_beginning(
        self, store: Store, key: tuple[Any, ...], prompt: Prompt
    ) -> Completion:
        """The completion of a chat model that continues no turn: the turn is asked for from its
        beginning. Raises UnsupportedError if the model begins it otherwise."""
        head = prompt.open_text
        begin = len(prompt.text) - len(head)
        first = structs.replace(prompt, text=prompt.text[:begin], open_text="")
        await self._settled()
        for _ in range(1 if self._sampling.is_greedy else MAX_TRIES):
            answer = await self._ask(store, key, first, head, Site(), is_tried=False)
            if answer is not None:
                return answer
        tries = f"{self._num_requests} time{'s' * (self._num_requests > 1)}"
        reason = f"a chat model cannot continue an answer, and asked {tries} for the whole turn, "
        raise UnsupportedError("gen", reason + f"it wrote none that goes on from {head!r}")

    async def _ask(
        self,
        store: Store,
        key: tuple[Any, ...],
        prompt: Prompt,
        head: str,
        site: Site,
        *,
        is_tried: bool,
    ) -> Completion | None:
        """The completion of a gen after `head`, the beginning of what is asked for; None if it does
        not begin so. `is_tried` says that it is not known what follows."""
        limit = store.speculation.limit(self._sampling, self._ahead().steps) + len(head.encode())
        last, written = await self._written(prompt, head, limit, is_tried=is_tried)
        fits = last is not None and written.text.startswith(head)
        own = written.field(len(head), self._sampling) if fits else None
        if last is not None:
            self._num_uncounted += not last.prompt_tokens
            if last.meta.get("reasoning_content"):
                store.speculation.has_reasoned(self._backend)
        if last is None or own is None:
            if last is not None:
                self._num_wasted += last.completion_tokens or written.share(0, len(written.text))
            site.misses += 1
            return None if head else await self._alone()
        if own.end < len(written.text):
            cost = last.prompt_tokens, limit
            steps = ((head, self._sampling), *self._ahead().steps)
            waited_for = dict(begun(written, steps))
            entry = Entry(prompt.text, written, own.end, cost, site, waited_for, is_tried=is_tried)
            store.add(key, entry)
        return self._completion(last, written, own)

    async def _alone(self) -> Completion:
        """The completion as it is without speculation, after a request that has not helped."""
        answer = await self._backend.generate(self._stream.transcript.prompt(), self._sampling)
        return structs.replace(answer, meta=answer.meta | self._counts(0, 1))

    def _completion(self, last: Completion, written: Written, own: Field) -> Completion:
        ahead = written.share(own.end, len(written.text))
        meta = {k: v for k, v in last.meta.items() if k != "output_token_logprobs"}
        return structs.replace(
            last,
            text=own.text,
            finish=own.finish,
            matched=own.matched,
            completion_tokens=last.completion_tokens or written.share(0, len(written.text)),
            meta=meta | self._counts(ahead, 0),
        )

    def _counts(self, ahead: int, more: int) -> dict[str, int]:
        """What the call's record has of it; see `Call`."""
        return {
            "num_requests": self._num_requests + more,
            "num_uncounted": self._num_uncounted,
            "tokens_ahead": ahead + self._num_wasted,
        }

    async def _written(
        self, prompt: Prompt, head: str, limit: int, *, is_tried: bool
    ) -> tuple[Completion | None, Written]:
        """What the model writes, `limit` tokens at most, up to where it is left. No completion if
        the server refused that more is asked for than the gen's own."""
        counts = self._backend.capabilities.token_texts
        asked = structs.replace(self._sampling, stop=(), max_tokens=limit, return_logprob=counts)
        blanks = head[: len(head) - len(head.lstrip())]
        last, written, own = None, Written(""), None
        self._num_requests += 1
        answer = self._backend.stream(prompt, asked)
        began, seconds = asyncio.get_running_loop().time(), self._sampling.timeout_s
        try:
            async with asyncio.timeout(None) as time, closing(answer):
                async for last in answer:
                    written = Written.of(last, blanks, written)
                    if own is None and written.text.startswith(head):
                        own = written.field(len(head), self._sampling)
                        if own is not None:
                            self._show(own.text)
                            if seconds is not None:
                                time.reschedule(began + SHARE_OF_TIME * seconds)
                    if self._is_enough(written, head, is_tried=is_tried):
                        await self._settled()
                        if self._is_enough(written, head, is_tried=is_tried):
                            break
        except TimeoutError:
            if not time.expired():
                raise
        except (RequestError, FilterError, RefusalError) as error:  # after its own text, no error
            if own is None and not (last is None and _is_too_much(error)):
                raise
        return last, written

    def _is_enough(self, written: Written, head: str, *, is_tried: bool) -> bool:
        ahead = self._ahead()
        steps = ((head, self._sampling), *ahead.steps)
        return is_enough(written, steps, ahead, is_tried=is_tried)

    # ---- what follows --------------------------------------------------------------------------

    async def _settled(self) -> Ahead:
        """What follows, after a moment if the function may be about to say so."""
        ahead = self._ahead()
        if ahead.is_open:
            await asyncio.sleep(GRACE_S)
            ahead = self._ahead()
        return ahead

    def _ahead(self) -> Ahead:
        steps: list[Step] = []
        literal = ""
        upcoming = self._stream.position.upcoming(MAX_UPCOMING)
        for expr in upcoming:
            text = known_text(expr)
            if text is not None:
                literal += text
                continue
            after, draw = self._drawn_after(expr) if literal else (None, None)
            if after is None or draw != self._draw or len(steps) == MAX_STEPS:
                return Ahead(tuple(steps), literal, is_open=False)
            steps.append((literal, after))
            literal = ""
            if not after.stop:  # nothing says where it ends before a literal
                return Ahead(tuple(steps), literal, is_open=False)
        is_all = len(upcoming) < MAX_UPCOMING
        return Ahead(tuple(steps), literal, is_all and not self._stream.program.body_done.done())


def _is_too_much(error: Exception) -> bool:
    """Whether a server refuses what the gen alone would not have asked for."""
    codes = BAD_REQUEST, CONTEXT_LENGTH
    return isinstance(error, RequestError) and error.info.code in codes


def begun(written: Written, steps: Sequence[Step]) -> Iterator[tuple[int, Sampling]]:
    """The gens that the text has come to, and where they begin."""
    at = 0
    for literal, sampling in steps:
        if not written.text.startswith(literal, at):
            return
        at += len(literal)
        yield at, sampling
        field = written.field(at, sampling)
        if field is None:
            return
        at = field.end


def is_enough(written: Written, steps: Sequence[Step], ahead: Ahead, *, is_tried: bool) -> bool:
    """Whether nothing useful can come any more: a literal is contradicted, or all gens that are
    known to follow have ended. Where it was not known what follows, that may be found out."""
    at = 0
    for literal, sampling in steps:
        so_far = written.text[at : at + len(literal)]
        if len(so_far) < len(literal):
            return not literal.startswith(so_far)
        if so_far != literal:
            return True
        field = written.field(at + len(literal), sampling)
        if field is None:
            return written.is_lost(at + len(literal), sampling)
        at = field.end
    if not ahead.is_open or not is_tried:
        return True
    so_far = written.text[at : at + len(ahead.rest)]
    return not ahead.rest.startswith(so_far)
