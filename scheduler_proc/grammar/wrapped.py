"""The part that all grammars have in common which pass their calls on to another."""

from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple

import numpy as np

from scheduler_proc.grammar.base import Grammar, SeenMasks

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class WrappedGrammar:
    """A `Grammar` that passes every call on to another: through `_call` those that may fail,
    through `_ask` the others."""

    __slots__ = ("_grammar",)

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return call(*arguments)

    def _ask(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return call(*arguments)

    def fill(self, row: np.ndarray) -> None:
        self._call(self._grammar.fill, row)

    def accept(self, tokens: Sequence[int]) -> None:
        self._call(self._grammar.accept, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._call(self._grammar.rollback, num_tokens)

    def forced_bytes(self) -> bytes:
        return self._call(self._grammar.forced_bytes)

    def narrow(self, row: np.ndarray, left: int) -> bool:
        return self._call(self._grammar.narrow, row, left)

    def ends_within(self, left: int) -> bool:
        return self._call(self._grammar.ends_within, left)

    def instead_of(self, token: int) -> list[int] | None:
        return self._call(self._grammar.instead_of, token)

    def near(self, left: int) -> bool:
        return self._ask(self._grammar.near, left)

    def is_accepting(self) -> bool:
        return self._ask(self._grammar.is_accepting)

    def is_terminated(self) -> bool:
        return self._ask(self._grammar.is_terminated)

    def is_free(self) -> bool:
        return self._ask(self._grammar.is_free)

    def mask_after(self, token: int) -> np.ndarray | None:
        return self._ask(self._grammar.mask_after, token)

    def seen_after(self) -> SeenMasks:
        return self._ask(self._grammar.seen_after)

    def fork(self) -> Grammar:
        return self._call(self._grammar.fork)

    def for_drafts(self) -> Grammar:
        return self._call(self._grammar.for_drafts)
