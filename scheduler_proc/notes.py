"""Notes, for the case that this process crashes, of whose constraint a thread follows: that may
crash outside of any step. Taken only after a loss, since each costs a little.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

import numpy as np

from scheduler_proc.grammar.base import Grammar, SeenMasks
from srt.ring.blame_file import Notes

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class NotedGrammar:
    """A `Grammar` that passes every call on to another, with a note of the request `name`."""

    __slots__ = ("_grammar", "_note", "_notes")

    def __init__(self, grammar: Grammar, notes: Notes, note: bytes) -> None:
        self._grammar, self._notes, self._note = grammar, notes, note

    def _noted(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        with self._notes.of(self._note):
            return call(*arguments)

    def fill(self, row: np.ndarray) -> None:
        self._noted(self._grammar.fill, row)

    def accept(self, tokens: Sequence[int]) -> None:
        self._noted(self._grammar.accept, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._noted(self._grammar.rollback, num_tokens)

    def forced_bytes(self) -> bytes:
        return self._noted(self._grammar.forced_bytes)

    def is_accepting(self) -> bool:
        return self._noted(self._grammar.is_accepting)

    def is_terminated(self) -> bool:
        return self._noted(self._grammar.is_terminated)

    def is_free(self) -> bool:
        return self._noted(self._grammar.is_free)

    def mask_after(self, token: int) -> np.ndarray | None:
        return self._noted(self._grammar.mask_after, token)

    def seen_after(self) -> SeenMasks:
        return self._noted(self._grammar.seen_after)

    def fork(self) -> "NotedGrammar":
        forked = self._noted(self._grammar.fork)
        return NotedGrammar(forked, self._notes, self._note)

    def for_drafts(self) -> "NotedGrammar":
        return self.fork()
