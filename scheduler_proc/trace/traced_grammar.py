"""Grammars of a trace: what fails while it is recorded fails again when it is replayed.

So it is with how outputs are closed, which a grammar that is made for the replay may not know.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from scheduler_proc.grammar.base import Grammar, GrammarError
from scheduler_proc.grammar.wrapped import Arguments, Result, WrappedGrammar


class Calls(NamedTuple):
    """Of one grammar, by their numbers: why calls failed, and what others gave."""

    failures: dict[int, str]
    answers: dict[int, Any]


class _CountedGrammar(WrappedGrammar):
    """Counts the calls that may fail in `numbers`, with those of what it gives for drafts."""

    def __init__(self, grammar: Grammar, numbers: Iterator[int] | None = None) -> None:
        super().__init__(grammar)
        self._numbers = count(1) if numbers is None else numbers

    def fork(self) -> Grammar:
        """A copy, whose calls are not counted."""
        return self._grammar.fork()

    def for_drafts(self) -> Grammar:
        """A copy whose calls are counted too: drafts may use up an allowance."""
        return self._wrapped(super().for_drafts())

    def _wrapped(self, grammar: Grammar) -> Grammar:
        raise NotImplementedError


class RecordedGrammar(_CountedGrammar):
    """Calls `tell("failure", number, reason)` for each call that raises GrammarError, and
    `tell("answer", number, answer)` for each that closes the output or refuses a jump for it."""

    def __init__(
        self,
        grammar: Grammar,
        tell: Callable[[str, int, Any], None],
        numbers: Iterator[int] | None = None,
    ) -> None:
        super().__init__(grammar, numbers)
        self._tell = tell
        self._number = 0  # of the last call

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        self._number = next(self._numbers)
        try:
            return call(*arguments)
        except GrammarError as error:
            self._tell("failure", self._number, str(error))
            raise

    def ends_within(self, left: int) -> bool:
        ends = super().ends_within(left)
        if not ends:
            self._tell("answer", self._number, ends)
        return ends

    def instead_of(self, token: int) -> list[int] | None:
        rest = super().instead_of(token)
        if rest is not None:
            self._tell("answer", self._number, rest)
        return rest

    def _wrapped(self, grammar: Grammar) -> "RecordedGrammar":
        return RecordedGrammar(grammar, self._tell, self._numbers)


class ReplayedGrammar(_CountedGrammar):
    """Does instead of the recorded calls what they did."""

    def __init__(
        self, grammar: Grammar, calls: Calls, numbers: Iterator[int] | None = None
    ) -> None:
        super().__init__(grammar, numbers)
        self._calls = calls

    def _call(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        number = next(self._numbers)
        if number in self._calls.failures:
            raise GrammarError(self._calls.failures[number])
        if number in self._calls.answers:
            answer: Result = self._calls.answers[number]
            return answer
        return call(*arguments)

    def _wrapped(self, grammar: Grammar) -> "ReplayedGrammar":
        return ReplayedGrammar(grammar, self._calls, self._numbers)
