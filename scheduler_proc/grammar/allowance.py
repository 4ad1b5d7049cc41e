"""What following a grammar may cost: `MeteredGrammar` ends a request whose constraint is too slow.

Masks are computed while the batch waits, so a slow one delays every request of it. The scheduler
meters the grammar of each request; the compile worker meters a trial walk (see `trial`). What
counts is the calling thread's CPU time, so that a busy machine takes nothing off the allowance.
"""

import logging
from collections.abc import Callable, Sequence
from time import thread_time

import numpy as np

from scheduler_proc.grammar.base import NONE_SEEN, Grammar, GrammarError, SeenMasks
from scheduler_proc.grammar.library_errors import in_our_words
from scheduler_proc.grammar.wrapped import Arguments, Result, WrappedGrammar

log = logging.getLogger(__name__)

# JSON Schemas of real programs take 8 ms at most for 80 tokens, the first masks included.
START_S = 0.1
TOKEN_S = 0.001
DRAFTS_S = 0.02  # of a request's drafts; never more, since one draft could take all of it
_MOST_BEHIND = 128  # tokens that a copy is brought along by, before it is made anew


class MeteredGrammar(WrappedGrammar):
    """A `Grammar` that passes every call on to another, and raises GrammarError in the place of
    one if those before it took more than `START_S`, and `TOKEN_S` for each accepted token, and in
    the place of any other error.

    What it gives for drafts has an allowance of its own, which each token that the request itself
    accepts raises by `TOKEN_S` up to `DRAFTS_S`. It is one copy that is brought along from draft
    to draft: copying a grammar may take longer than following a draft.
    """

    __slots__ = (
        *("_has_handed_out", "_is_unchecked", "_left_s", "_start_s"),
        *("_length", "_drafts", "_common", "_behind"),
    )

    def __init__(self, grammar: Grammar, left_s: float = START_S) -> None:
        super().__init__(grammar)
        self._left_s, self._start_s = left_s, START_S
        # A step may run with a mask of the next token's by the time that token is accepted, so
        # nothing that is asked then is refused.
        self._has_handed_out = self._is_unchecked = False
        self._length = 0  # tokens that it has accepted
        self._drafts: _DraftGrammar | None = None
        self._common = 0  # how many of them the copy for drafts has accepted too
        self._behind: list[int] = []  # the others

    def fill(self, row: np.ndarray) -> None:
        self._check()
        super().fill(row)

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        self._earn(len(tokens))
        self._is_unchecked, self._has_handed_out = self._has_handed_out, False
        if self._drafts is not None:
            self._behind += tokens
            self._drafts.allow(TOKEN_S * len(tokens))

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._earn(-num_tokens)
        if self._drafts is not None:
            del self._behind[max(0, len(self._behind) - num_tokens) :]
            self._common = min(self._common, self._length)
            self._drafts.allow(-TOKEN_S * num_tokens)

    def _earn(self, num_tokens: int) -> None:
        self._length += num_tokens
        self._left_s += TOKEN_S * num_tokens

    def forced_bytes(self) -> bytes:
        self._check()
        return super().forced_bytes()

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        started = thread_time()
        try:
            return self._checked(call, *arguments)
        finally:
            self._left_s -= thread_time() - started

    def _checked(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        try:
            return call(*arguments)
        except GrammarError:
            raise
        except Exception as error:  # a library's defect, which may end its own request only
            log.exception("a grammar failed")
            raise in_our_words(repr(error)) from error

    def mask_after(self, token: int) -> np.ndarray | None:
        mask = self._grammar.mask_after(token) if self._left_s >= 0 else None
        self._has_handed_out |= mask is not None
        return mask

    def seen_after(self) -> SeenMasks:
        seen = self._grammar.seen_after() if self._left_s >= 0 else NONE_SEEN
        self._has_handed_out |= len(seen) > 0
        return seen

    # What closing costs is bounded in itself, and must not depend on the time that is left.

    def narrow(self, row: np.ndarray, left: int) -> bool:
        return self._checked(self._grammar.narrow, row, left)

    def near(self, left: int) -> bool:
        try:
            return self._grammar.near(left)
        except Exception:
            log.exception("a grammar failed")
            return True

    def ends_within(self, left: int) -> bool:
        return self._checked(self._grammar.ends_within, left)

    def instead_of(self, token: int) -> list[int] | None:
        return self._checked(self._grammar.instead_of, token)

    def fork(self) -> "MeteredGrammar":
        return MeteredGrammar(self._grammar.fork(), self._left_s)

    def for_drafts(self) -> "MeteredGrammar":
        drafts = self._drafts
        if drafts is None:
            drafts = self._drafts = _DraftGrammar(self._grammar)
        drafts.bring_along(self._grammar, self._length, self._common, self._behind)
        self._common, self._behind = self._length, []
        return drafts

    def _check(self) -> None:
        if self._left_s < 0 and not self._is_unchecked:
            raise GrammarError(
                f"it takes too long to follow: more than {1000 * self._start_s:.0f} ms and"
                f" {1000 * TOKEN_S:g} ms for each token"
            )


class _DraftGrammar(MeteredGrammar):
    """The copy for the drafts of a request, which earn nothing."""

    __slots__ = ("_is_copied",)

    def __init__(self, grammar: Grammar) -> None:
        """It becomes a copy of `grammar` when it is brought along first."""
        super().__init__(grammar, DRAFTS_S)
        self._start_s = DRAFTS_S
        self._is_copied = False

    def bring_along(self, grammar: Grammar, length: int, common: int, behind: list[int]) -> None:
        """Go to where `grammar` stands, after `length` tokens: the first `common` of what this has
        accepted, then `behind`. Raises GrammarError if the drafts have cost too much."""
        self._check()
        self._call(self._go, grammar, common, behind)
        self._length = length

    def _go(self, grammar: Grammar, common: int, behind: list[int]) -> None:
        is_copied, self._is_copied = self._is_copied, False
        try:
            if is_copied and len(behind) <= _MOST_BEHIND:
                self._grammar.rollback(self._length - common)
                self._grammar.accept(behind)
                self._is_copied = True
        except Exception as error:
            log.debug("a draft has broken the copy of a grammar: %r", error)
        if not self._is_copied:
            self._grammar = grammar.fork()
            self._is_copied = True

    def rollback(self, num_tokens: int) -> None:
        """Also behind what it was brought along to, as where a jump is looked for; what it has
        accepted since then is another text than the request's, so the next time it is copied."""
        super().rollback(num_tokens)
        self._is_copied = False

    def allow(self, seconds: float) -> None:
        self._left_s = min(self._left_s + seconds, DRAFTS_S)

    def _earn(self, num_tokens: int) -> None:
        self._length += num_tokens
