"""A grammar together with what knows how its output can be ended in time."""

from collections.abc import Sequence

from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.closing.chain import Closing
from scheduler_proc.grammar.wrapped import WrappedGrammar


class ClosingGrammar(WrappedGrammar):
    """A `Grammar` that tells `closing` what the output becomes. Its copies close nothing: where
    what is drafted would leave no end, that ends the draft when it is taken over."""

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
