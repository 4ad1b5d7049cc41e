"""Patterns that end an output where they first match, as one nondeterministic automaton.

Built by the front, to refuse bad patterns, and by the detokenizer, to search with. It reads
characters, not bytes. Counted repetitions are unrolled, so its size bounds what a character of
output can cost.

Source: K. Thompson, "Regular expression search algorithm", CACM 11(6), 1968.
"""

from collections.abc import Sequence
from enum import IntFlag
from itertools import product
from typing import NamedTuple

from srt.constraint import GrammarError
from srt.regex.classes import category
from srt.regex.codepoints import Ranges, contains
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


class Side(IntFlag):
    """What is next to a place in the text, on one side. A character may be several, or none."""

    EDGE = 1  # nothing
    NEWLINE = 2
    WORD = 4
    UNICODE_WORD = 8


class Spot(NamedTuple):
    """A node, and what the pattern's `$` and `\\Z` have left of the text for it: `ends`."""

    node: int
    ends: int = 0


ANYTHING, NEWLINE_OR_END, END = range(3)  # the values of `Spot.ends`
_ENDS = {AnchorKind.FINAL_END: NEWLINE_OR_END, AnchorKind.END: END}
_NEWLINE = ord("\n")
_LINE = Side.EDGE | Side.NEWLINE
_SIDES = (Side(0), Side.EDGE, Side.NEWLINE, Side.UNICODE_WORD, Side.WORD | Side.UNICODE_WORD)
_STARTS = {AnchorKind.START: Side.EDGE, AnchorKind.LINE_START: _LINE}
_BOUNDARIES = {  # what words are, and whether one must begin or end
    AnchorKind.BOUNDARY: (Side.WORD, True),
    AnchorKind.UNICODE_BOUNDARY: (Side.UNICODE_WORD, True),
    AnchorKind.NO_BOUNDARY: (Side.WORD, False),
    AnchorKind.NO_UNICODE_BOUNDARY: (Side.UNICODE_WORD, False),
}


class StopNFA:
    """Nodes that read one character (`reads`), lead on without one (`empty`), or say that a
    pattern has matched (`accepts`: its number). An empty edge may be an assertion (`asserts`).

    The text of a match ends with it: `$` and `\\Z` hold there. What a multi-line `$`, `\\b` and
    `\\B` say of the next character waits for it.
    """

    def __init__(self) -> None:
        self.reads: dict[int, tuple[Ranges, int]] = {}
        self.empty: dict[int, list[int]] = {}
        self.asserts: dict[int, AnchorKind] = {}
        self.accepts: dict[int, int] = {}
        self.starts: list[int] = []  # one per pattern
        self.words: dict[Side, Ranges] = {}  # those that an assertion asks for
        self._num_nodes = 0
        self._closures: dict[tuple[Spot, Side, Side | None], frozenset[Spot]] = {}

    def side(self, point: int) -> Side:
        """What a character is to the places next to it."""
        found = Side.NEWLINE if point == _NEWLINE else Side(0)
        for side, ranges in self.words.items():
            found |= side if contains(ranges, point) else Side(0)
        return found

    def closure(self, spot: Spot, before: Side, after: Side | None) -> frozenset[Spot]:
        """The reading and accepting spots that `spot` leads to at such a place, and those that
        wait for what comes after it as long as that is not known (None)."""
        key = spot, before, after
        known = self._closures.get(key)
        if known is None:
            known = self._closures[key] = frozenset(self.search(spot, before, after))
        return known

    def search(self, start: Spot, before: Side, after: Side | None) -> list[Spot]:
        """`closure` of a place that is not asked for again."""
        found, todo, seen = [], [start], {start}
        while todo:
            spot = todo.pop()
            if spot.node in self.accepts or self._may_read(spot):
                found.append(spot)
            if spot.node not in self.empty:
                continue
            kind = self.asserts.get(spot.node)
            holds = kind is None or _holds(kind, before, after)
            if holds is None:
                found.append(spot)
            elif holds:
                ends = max(spot.ends, _ENDS.get(kind, 0) if kind else 0)
                new = {Spot(to, ends) for to in self.empty[spot.node]} - seen
                seen |= new
                todo += new
        return found

    def _may_read(self, spot: Spot) -> bool:
        if spot.node not in self.reads or spot.ends == END:
            return False
        return spot.ends == ANYTHING or contains(self.reads[spot.node][0], _NEWLINE)

    def read(self, spot: Spot, point: int) -> Spot | None:
        """Where a reading spot comes to with a character; None if it cannot read that."""
        ranges, target = self.reads[spot.node]
        if spot.ends == NEWLINE_OR_END and point != _NEWLINE:
            return None
        return Spot(target, spot.ends and END) if contains(ranges, point) else None

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

    Raises GrammarError for one that is not valid or matches the empty text, and if all are too
    large.
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
    start = _Builder(nfa).build(parse(pattern, boundaries=True), end)
    nfa.starts.append(start)
    places = product(_SIDES, repeat=2)
    if any(end == to.node for place in places for to in nfa.search(Spot(start), *place)):
        raise GrammarError("it matches the empty text")


def _holds(kind: AnchorKind, before: Side, after: Side | None) -> bool | None:
    """Whether an assertion holds; None if that is not known yet. What `$` and `\\Z` say holds as
    long as nothing more is read."""
    if kind in _STARTS:
        return bool(before & _STARTS[kind])
    if kind in _ENDS:
        return True
    if after is None:
        return None
    if kind is AnchorKind.LINE_END:
        return bool(after & _LINE)
    word, differs = _BOUNDARIES[kind]
    return (bool(before & word) != bool(after & word)) is differs


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
                entry = self._branch([target])
                self._nfa.asserts[entry] = kind
                if kind in _BOUNDARIES:
                    side = _BOUNDARIES[kind][0]
                    self._nfa.words[side] = category("w", side is Side.UNICODE_WORD)
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
