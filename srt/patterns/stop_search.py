"""Searches a text that arrives in pieces for what ends an output: strings and patterns.

Owned by the text stream of one request. A search reports where it has found something, and how much
of the text's end may belong to a later match: that much must be held back. Its work per character
is bounded, and does not grow with the text.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from srt.patterns.stop_automaton import Accepted, StopAutomaton

# At most this many characters at the end of a match are removed from the text.
MAX_MATCH_CHARS = 1024
MAX_AUTOMATA = 32  # of the most recently used patterns


class Found(NamedTuple):
    """An occurrence of `matched`, a stop string or a pattern, by offsets in the piece in which it
    became certain; it may have begun earlier, at a negative offset."""

    start: int
    end: int
    matched: str


class StopSearch(Protocol):
    """A search over one text."""

    @property
    def held(self) -> int:
        """How many characters at the end of the text may be the beginning of a match."""
        ...

    def feed(self, piece: str) -> Iterator[Found]:
        """Read `piece` to its end."""
        ...

    def at_end(self) -> Iterator[Found]:
        """The match that only the end of the text makes certain, by offsets from there."""
        ...


class StringSearch:
    """Knuth-Morris-Pratt for one stop string.

    `held` is the length of the longest proper prefix of the stop string that the text ends with.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._borders = _borders(text)
        self.held = 0

    def feed(self, piece: str) -> Iterator[Found]:
        text, borders, matched = self._text, self._borders, self.held
        if not matched and text[0] not in piece:
            return
        for end, char in enumerate(piece, start=1):
            while matched and char != text[matched]:
                matched = borders[matched]
            matched += char == text[matched]
            if matched == len(text):
                yield Found(end - len(text), end, text)
                matched = borders[matched]
        self.held = matched

    def at_end(self) -> Iterator[Found]:
        return iter(())


def _borders(text: str) -> list[int]:
    """For each length n: the longest proper prefix of `text[:n]` that is also its suffix."""
    borders = [0, 0]
    for char in text[1:]:
        border = borders[-1]
        while border and char != text[border]:
            border = borders[border]
        borders.append(border + (char == text[border]))
    return borders


class PatternSearch:
    """A stop automaton's run: finds the shortest matches of its patterns, each from the earliest
    place it can begin at, but at most MAX_MATCH_CHARS before its end."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._automaton = _automaton(patterns)
        self._state = self._automaton.start
        self._starts: list[int] = []  # of the state's attempts, oldest first
        self._position = 0

    @property
    def held(self) -> int:
        if not self._starts:
            return 0
        return min(self._position - self._starts[0], MAX_MATCH_CHARS)

    def feed(self, piece: str) -> Iterator[Found]:
        base = self._position
        for char in piece:
            move = self._automaton.move(self._state, char)
            self._state = move.state
            attempts = [*self._starts, self._position]
            if move.late is not None:
                yield self._found(attempts, move.late, base)
            self._position += 1
            if move.survivors is not None:
                self._starts = [attempts[i] for i in move.survivors]
            if move.accepted is not None:
                yield self._found(attempts, move.accepted, base)

    def at_end(self) -> Iterator[Found]:
        accepted = self._automaton.at_end(self._state)
        if accepted is not None:
            yield self._found(self._starts, accepted, self._position)

    def _found(self, attempts: Sequence[int], accepted: Accepted, base: int) -> Found:
        begun = max(attempts[accepted.attempt], self._position - MAX_MATCH_CHARS)
        return Found(begun - base, self._position - base, self._patterns[accepted.pattern])


@lru_cache(MAX_AUTOMATA)
def _automaton(patterns: tuple[str, ...]) -> StopAutomaton:
    return StopAutomaton(patterns)
