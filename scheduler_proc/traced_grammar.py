"""Grammars of a trace: what fails while it is recorded fails again when it is replayed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeVar, TypeVarTuple

import numpy as np

from scheduler_proc.grammar.base import Grammar, GrammarError, SeenMasks

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class _WrappedGrammar:
    """A `Grammar` that makes each call that may fail through `_call`. `numbers` counts these, with
    those of what it gives for drafts."""

    def __init__(self, grammar: Grammar, numbers: Iterator[int] | None = None) -> None:
        self._grammar = grammar
        self._numbers = count(1) if numbers is None else numbers

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        raise NotImplementedError

    def fill(self, row: np.ndarray) -> None:
        self._call(self._grammar.fill, row)

    def accept(self, tokens: Sequence[int]) -> None:
        self._call(self._grammar.accept, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._call(self._grammar.rollback, num_tokens)

    def forced_bytes(self) -> bytes:
        return self._call(self._grammar.forced_bytes)

    def is_accepting(self) -> bool:
        return self._grammar.is_accepting()

    def is_terminated(self) -> bool:
        return self._grammar.is_terminated()

    def is_free(self) -> bool:
        return self._grammar.is_free()

    def mask_after(self, token: int) -> np.ndarray | None:
        return self._grammar.mask_after(token)

    def seen_after(self) -> SeenMasks:
        return self._grammar.seen_after()

    def fork(self) -> Grammar:
        """A copy, whose calls are not wrapped."""
        return self._grammar.fork()

    def for_drafts(self) -> Grammar:
        """A copy whose calls are wrapped too: drafts may use up an allowance."""
        return self._wrapped(self._call(self._grammar.for_drafts))

    def _wrapped(self, grammar: Grammar) -> Grammar:
        raise NotImplementedError


class RecordedGrammar(_WrappedGrammar):
    """Calls `has_failed(number, reason)` for each call that raises GrammarError."""

    def __init__(
        self,
        grammar: Grammar,
        has_failed: Callable[[int, str], None],
        numbers: Iterator[int] | None = None,
    ) -> None:
        super().__init__(grammar, numbers)
        self._has_failed = has_failed

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        number = next(self._numbers)
        try:
            return call(*arguments)
        except GrammarError as error:
            self._has_failed(number, str(error))
            raise

    def _wrapped(self, grammar: Grammar) -> "RecordedGrammar":
        return RecordedGrammar(grammar, self._has_failed, self._numbers)


class ReplayedGrammar(_WrappedGrammar):
    """Raises GrammarError instead of the calls that failed; `reasons` are by their numbers."""

    def __init__(
        self, grammar: Grammar, reasons: dict[int, str], numbers: Iterator[int] | None = None
    ) -> None:
        super().__init__(grammar, numbers)
        self._reasons = reasons

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        number = next(self._numbers)
        if number in self._reasons:
            raise GrammarError(self._reasons[number])
        return call(*arguments)

    def _wrapped(self, grammar: Grammar) -> "ReplayedGrammar":
        return ReplayedGrammar(grammar, self._reasons, self._numbers)
