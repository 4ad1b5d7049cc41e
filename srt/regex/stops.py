"""Patterns that end an output where they first match, as one nondeterministic automaton.

Built by the front, to refuse bad patterns, and by the detokenizer, to search with. It reads
characters, not bytes. Counted repetitions are unrolled, so its size bounds what a character of
output can cost.

Source: K. Thompson, "Regular expression search algorithm", CACM 11(6), 1968.
"""

from collections.abc import Sequence
from enum import Enum

from srt.constraint import GrammarError
from srt.regex.codepoints import Ranges
from srt.regex.errors import StateLimitError
from srt.regex.parser import parse
from srt.regex.syntax import (
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Repeat,
)

MAX_STOP_NODES = 256  # of all patterns of a request


class Place(Enum):
    """What precedes: nothing, a newline, or any other character."""

    START = "start"
    LINE = "line"
    INSIDE = "inside"


_HOLDS = {
    AnchorKind.START: {Place.START},
    AnchorKind.LINE_START: {Place.START, Place.LINE},
}


class StopNFA:
    """Nodes that read one character (`reads`), lead on without one (`empty`), or say that a
    pattern has matched (`accepts`: its number). An empty edge may ask for a place (`asks`)."""

    def __init__(self) -> None:
        self.reads: dict[int, tuple[Ranges, int]] = {}
        self.empty: dict[int, list[int]] = {}
        self.asks: dict[int, set[Place]] = {}
        self.accepts: dict[int, int] = {}
        self.starts: list[int] = []  # one per pattern
        self._num_nodes = 0
        self._closures: dict[tuple[int, Place], frozenset[int]] = {}

    def closure(self, node: int, place: Place) -> frozenset[int]:
        """The reading and accepting nodes that `node` leads to at such a place."""
        known = self._closures.get((node, place))
        if known is None:
            known = self._closures[node, place] = frozenset(self._search(node, place))
        return known

    def _search(self, start: int, place: Place) -> list[int]:
        found, todo, seen = [], [start], {start}
        while todo:
            node = todo.pop()
            if node in self.reads or node in self.accepts:
                found.append(node)
            elif node not in self.asks or place in self.asks[node]:
                new = [to for to in self.empty[node] if to not in seen]
                seen.update(new)
                todo += new
        return found

    def node(self) -> int:
        """A new node, of no kind yet. StateLimitError if there are too many."""
        self._num_nodes += 1
        if self._num_nodes > MAX_STOP_NODES:
            raise StateLimitError(
                f"the patterns are too large: their repetitions unrolled, they take more than "
                f"{MAX_STOP_NODES} states, the limit"
            )
        return self._num_nodes - 1


def build_stops(patterns: Sequence[str]) -> StopNFA:
    """The automaton of `patterns`.

    Raises GrammarError for one that is not valid, that looks at what follows it (which is not
    known yet) or matches the empty text, and if all are too large.
    """
    nfa = StopNFA()
    for number, pattern in enumerate(patterns):
        try:
            _add(nfa, number, pattern)
        except GrammarError as error:
            raise GrammarError(f"{pattern!r}: {error}") from error
    return nfa


def _add(nfa: StopNFA, number: int, pattern: str) -> None:
    end = nfa.node()
    nfa.accepts[end] = number
    start = _Builder(nfa).build(parse(pattern), end)
    nfa.starts.append(start)
    if any(end in nfa.closure(start, place) for place in Place):
        raise GrammarError("it matches the empty text")


class _Builder:
    """Builds from the end: each node is made with the place where it continues."""

    def __init__(self, nfa: StopNFA) -> None:
        self._nfa = nfa

    def build(self, node: Node, target: int) -> int:
        """The entry to a copy of `node` that continues at `target`."""
        match node:
            case Literal(text):
                for char in reversed(text):
                    target = self._read(((ord(char), ord(char)),), target)
                return target
            case Chars(ranges):
                return self._read(ranges, target)
            case Anchor(kind):
                if kind not in _HOLDS:
                    raise GrammarError("$ and \\Z are not supported, as more text may follow")
                entry = self._branch([target])
                self._nfa.asks[entry] = _HOLDS[kind]
                return entry
            case Concat(items):
                for item in reversed(items):
                    target = self.build(item, target)
                return target
            case Choice(items):
                return self._branch([self.build(item, target) for item in items])
            case Repeat(item, low, high):
                target = self._optional(item, target, None if high is None else high - low)
                for _ in range(low):
                    target = self.build(item, target)
                return target

    def _read(self, ranges: Ranges, target: int) -> int:
        node = self._nfa.node()
        self._nfa.reads[node] = ranges, target
        return node

    def _branch(self, targets: list[int]) -> int:
        node = self._nfa.node()
        self._nfa.empty[node] = targets
        return node

    def _optional(self, item: Node, target: int, times: int | None) -> int:
        """`item` up to `times` times, or any number of times."""
        if times is None:
            loop = self._branch([target])
            self._nfa.empty[loop].append(self.build(item, loop))
            return loop
        end = target
        for _ in range(times):  # every copy leads straight to the end: closures stay small
            target = self._branch([end, self.build(item, target)])
        return target
