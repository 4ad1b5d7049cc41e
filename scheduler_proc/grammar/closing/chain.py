"""Follows one output, and knows at each token near its limit how it can be ended in time."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import thread_time
from typing import NamedTuple

from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.closing.witness import TAILS, WitnessFinder
from scheduler_proc.grammar.wrapped import WrappedGrammar

log = logging.getLogger(__name__)

NEAR = 256  # tokens before the limit
MOST_S = 0.5  # of CPU time, and for each followed token: a fuse, far above what schemas take
MOST_TOKEN_S = 0.005
MOST_AT_ONCE_S = 0.02  # another one, of what comes at once, as a jump does
CATCH_UP = 16  # tokens followed for each one of the output, once that is needed
OPENED = 64  # tokens that one may make a completion longer by, as far as that is expected
AGAIN = 4  # tokens after which a witness is looked for again where there was none


class Witness(NamedTuple):
    """A completion: `tokens` from the place `start` on."""

    tokens: list[int]
    start: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens) - self.start

    @property
    def rest(self) -> list[int]:
        return self.tokens[self.start :]


class Closing:
    """What it says is a function of the grammar, the limit and the ids in their order.

    From `NEAR` tokens before the limit on it has a witness after each token: a completion. Before
    that nothing is looked for. So an output ends in time if it could when the limit came near, as
    far as that is found: a token after which nothing is found may be taken where there is room, and
    where there is none, the output ends with what was known before it. Where a grammar takes far
    longer to follow than others do, its output is ended by the witness that is known; one that
    fails is not followed any more.
    """

    def __init__(
        self, grammar: Grammar, finder: WitnessFinder, limit: int, first: list[int] | None
    ) -> None:
        """`grammar` is at the beginning of the output, of at most `limit` tokens, and belongs to
        this; `first` is a completion from about there, if one is known."""
        self._grammar, self._finder = grammar, finder
        self._limit = limit
        self._ids: list[int] = []
        # Where the first witness is needed; a long one makes long ones likely later on.
        self._start = max(0, limit - max(NEAR, 2 * len(first or ())))
        self._first = first
        self._followed = 0  # of the ids, which the grammar has accepted
        self._witnesses: list[Witness | None] = []  # at the start and after each id from there on
        self._tried: tuple[int, Witness | None] | None = None  # a token, and the witness after it
        self._used_s = 0.0  # of CPU time
        self._is_lost = False  # where it stands is not known any more

    def instead_of(self, token: int) -> list[int] | None:
        """`token` has been sampled: the tokens to append in its place, perhaps none, with which the
        output is complete. None if it may be accepted: it is the end, or a witness that fits is
        known after it, or none was known before, or there is room to look for one later."""
        self._begin()
        left = self._limit - len(self._ids)
        before = self._witness
        if before is None or before.length > left:
            return None
        if self._is_spent:
            return before.rest
        with self._following():
            self._grammar.accept([token])
            ends = self._grammar.is_terminated()
            after = None if ends else self._witness_after(token)
            self._grammar.rollback(1)
            has_room = left > before.length + OPENED
            if ends or (has_room if after is None else after.length < left):
                self._tried = token, after
                return None
        return before.rest

    def accept(self, tokens: Sequence[int]) -> None:
        """The output goes on by these."""
        self._ids += tokens
        if self._needed > self._followed:
            self._catch_up()

    def rollback(self, num_tokens: int) -> None:
        """The output's last tokens have been taken back."""
        self._tried = None
        del self._ids[len(self._ids) - num_tokens :]
        excess = self._followed - len(self._ids)
        if excess > 0 and not self._is_lost:
            self._followed -= excess
            del self._witnesses[max(0, self._followed + 1 - self._start) :]
            with self._following():
                self._grammar.rollback(excess)

    def fits(self) -> bool:
        """Whether an end is known within what is left, or nothing has been known of ends."""
        self._begin()
        if self._is_lost or all(witness is None for witness in self._witnesses):
            return True
        witness = self._witness
        return witness is not None and witness.length <= self._limit - len(self._ids)

    @property
    def _needed(self) -> int:
        """How many ids must have been followed by now, for each later one to follow a few more. So
        an output that ends long before its limit costs nothing."""
        return len(self._ids) - CATCH_UP * max(0, self._start - len(self._ids))

    @property
    def _is_spent(self) -> bool:
        """Whether following the output has taken so long that it is to be ended at once."""
        return self._used_s > MOST_S + MOST_TOKEN_S * len(self._witnesses)

    @property
    def _witness(self) -> Witness | None:
        """The last one, if it is known."""
        return self._witnesses[-1] if self._witnesses and not self._is_lost else None

    def _begin(self) -> None:
        """Look for the first witness if it is time."""
        if not self._witnesses and len(self._ids) >= self._start:
            self._catch_up()

    def _catch_up(self) -> None:
        """Follow the output as far as it is known."""
        tried, self._tried = self._tried, None
        if self._is_lost:
            return
        until = thread_time() + MOST_AT_ONCE_S
        with self._following():
            far = min(self._start, self._needed)
            if self._followed < far:
                self._grammar.accept(self._ids[self._followed : far])
                self._followed = far
            if len(self._ids) < self._start:
                return
            if not self._witnesses:
                known = self._first is not None
                first = self._finder.find(self._grammar, self._first or ()) if known else None
                self._witnesses.append(None if first is None else Witness(first))
            for token in self._ids[self._followed :]:
                self._grammar.accept([token])
                is_known = tried is not None and tried[0] == token
                may_search = thread_time() < until
                after = tried[1] if tried and is_known else self._witness_after(token, may_search)
                tried = None
                self._witnesses.append(after)
                self._followed += 1

    def _witness_after(self, token: int, may_search: bool = True) -> Witness | None:
        """A witness that fits where the grammar stands: after the last one's place and `token`."""
        before = self._witnesses[-1]
        if before is not None and before.length > 0 and before.tokens[before.start] == token:
            return before._replace(start=before.start + 1)
        if not may_search or self._is_spent or (before is None and not self._is_time):
            return None
        most = self._limit - self._followed - 1
        hint = self._latest() if before is None else before.rest
        # Where an output begins, which of several ways it goes changes what is known of its end.
        may_turn = before is None or self._followed < TAILS
        other = self._first if may_turn and self._first is not None else ()
        found = self._finder.find(self._grammar, hint, most, token, other)
        return None if found is None else Witness(found)

    def _latest(self) -> list[int]:
        """The last witness that was known, a hint for what ends the output now."""
        known = (witness for witness in reversed(self._witnesses) if witness is not None)
        return next((witness.rest for witness in known), [])

    @property
    def _is_time(self) -> bool:
        """Whether a witness is to be looked for again."""
        return len(self._witnesses) % AGAIN == 0

    @contextmanager
    def _following(self) -> Iterator[None]:
        """While the grammar is used: nothing that it does harms the request."""
        started = thread_time()
        try:
            yield
        except Exception as error:
            log.debug("an output cannot be closed: %r", error)
            self._is_lost = True
        self._used_s += thread_time() - started


class ClosingGrammar(WrappedGrammar):
    """A `Grammar` whose output can be ended in time: `closing` follows what it becomes. Its copies
    close nothing: where what is drafted would leave no end, that ends the draft when it is taken
    over."""

    __slots__ = ("_closing",)

    def __init__(self, grammar: Grammar, closing: Closing) -> None:
        """Both must be at the beginning of the output, and have nothing in common."""
        super().__init__(grammar)
        self._closing = closing

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self._closing.accept(tokens)

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._closing.rollback(num_tokens)

    def ends_within(self, left: int) -> bool:
        return self._closing.fits()

    def instead_of(self, token: int) -> list[int] | None:
        return self._closing.instead_of(token)
