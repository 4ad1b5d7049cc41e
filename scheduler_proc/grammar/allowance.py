"""What following a grammar may cost: `MeteredGrammar` ends a request whose constraint is too slow.

Masks are computed while the batch waits, so a slow one delays every request of it. The scheduler
meters the grammar of each request; the compile worker meters a trial walk (see `trial`). What
counts is the calling thread's CPU time, so that a busy machine takes nothing off the allowance.
"""

import logging
from collections.abc import Callable, Sequence
from time import thread_time
from typing import TypeVar, TypeVarTuple

import numpy as np

from scheduler_proc.grammar.base import NONE_SEEN, Grammar, GrammarError, SeenMasks

log = logging.getLogger(__name__)

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

# JSON Schemas of real programs take 8 ms at most for 80 tokens, the first masks included.
START_S = 0.1
TOKEN_S = 0.001


class MeteredGrammar:
    """A `Grammar` that passes every call on to another, and raises GrammarError in the place of
    one if those before it took more than `START_S`, and `TOKEN_S` for each accepted token, and in
    the place of any other error."""

    __slots__ = ("_grammar", "_has_handed_out", "_is_unchecked", "_left_s")

    def __init__(self, grammar: Grammar, left_s: float = START_S) -> None:
        self._grammar = grammar
        self._left_s = left_s
        # A step may run with a mask of the next token's by the time that token is accepted, so
        # nothing that is asked then is refused.
        self._has_handed_out = self._is_unchecked = False

    def fill(self, row: np.ndarray) -> None:
        self._check()
        self._metered(self._grammar.fill, row)

    def accept(self, tokens: Sequence[int]) -> None:
        self._metered(self._grammar.accept, tokens)
        self._left_s += TOKEN_S * len(tokens)
        self._is_unchecked, self._has_handed_out = self._has_handed_out, False

    def rollback(self, num_tokens: int) -> None:
        self._metered(self._grammar.rollback, num_tokens)
        self._left_s -= TOKEN_S * num_tokens

    def forced_bytes(self) -> bytes:
        self._check()
        return self._metered(self._grammar.forced_bytes)

    def _metered(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        started = thread_time()
        try:
            return call(*arguments)
        except GrammarError:
            raise
        except Exception as error:  # a library's defect, which may end its own request only
            log.exception("a grammar failed")
            raise GrammarError(f"it cannot be followed: {error!r}") from error
        finally:
            self._left_s -= thread_time() - started

    def is_accepting(self) -> bool:
        return self._grammar.is_accepting()

    def is_terminated(self) -> bool:
        return self._grammar.is_terminated()

    def is_free(self) -> bool:
        return self._grammar.is_free()

    def mask_after(self, token: int) -> np.ndarray | None:
        mask = self._grammar.mask_after(token) if self._left_s >= 0 else None
        self._has_handed_out |= mask is not None
        return mask

    def seen_after(self) -> SeenMasks:
        seen = self._grammar.seen_after() if self._left_s >= 0 else NONE_SEEN
        self._has_handed_out |= len(seen) > 0
        return seen

    def fork(self) -> "MeteredGrammar":
        return MeteredGrammar(self._grammar.fork(), self._left_s)

    def _check(self) -> None:
        if self._left_s < 0 and not self._is_unchecked:
            raise GrammarError(
                f"it takes too long to follow: more than {1000 * START_S:.0f} ms and"
                f" {1000 * TOKEN_S:g} ms for each token"
            )
