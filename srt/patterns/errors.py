"""What can be wrong with a pattern or a list of choices; users read both messages."""

from srt.wire.constraint import GrammarError


class PatternError(GrammarError):
    """A pattern that is not valid, or that uses what a finite automaton cannot do.

    `position` counts the pattern's characters from 0; the message names it too.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


class StateLimitError(GrammarError):
    """A language whose automaton would be larger than allowed; another back end may manage."""
