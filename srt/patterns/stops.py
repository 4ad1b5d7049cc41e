"""Patterns that end an output where they first match, as one nondeterministic automaton.

Built by the front, to refuse bad patterns, and by the detokenizer, to search with. It reads
characters, not bytes. Counted repetitions are unrolled, so its size bounds what a character of
output can cost.

Source: K. Thompson, "Regular expression search algorithm", CACM 11(6), 1968.
"""

from collections.abc import Sequence
from itertools import product

from srt.patterns.classes import category
from srt.patterns.errors import StateLimitError
from srt.patterns.ranges import Ranges, contains
from srt.patterns.read_re import parse
from srt.patterns.tree import (
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Repeat,
)
from srt.wire.constraint import GrammarError

MAX_STOP_NODES = 256  # of all patterns of a request


# What is next to a place in the text, on one side: nothing, or the properties of the character
# there, of which there may be several or none.
EDGE, NEWLINE, WORD, UNICODE_WORD = 1, 2, 4, 8

ANYTHING, NEWLINE_OR_END, END = range(3)  # what may follow after `$` or `\\Z`
_ENDS = {AnchorKind.FINAL_END: NEWLINE_OR_END, AnchorKind.END: END}
_NEWLINE = ord("\n")
_SIDES = (0, EDGE, NEWLINE, UNICODE_WORD, WORD | UNICODE_WORD)
_STARTS = {AnchorKind.START: EDGE, AnchorKind.LINE_START: EDGE | NEWLINE}
_BOUNDARIES = {  # the characters of words, and whether a word must begin or end
    AnchorKind.BOUNDARY: (WORD, True),
    AnchorKind.UNICODE_BOUNDARY: (UNICODE_WORD, True),
    AnchorKind.NO_BOUNDARY: (WORD, False),
    AnchorKind.NO_UNICODE_BOUNDARY: (UNICODE_WORD, False),
}


class StopNFA:
    """Nodes that read one character (`reads`), lead on without one (`empty`), or say that a
    pattern has matched (`accepts`: its number, by spot). An empty edge may be an assertion
    (`asserts`).

    For `$` and `\\Z`, the text ends where a match ends. A multi-line `$`, `\\b` and `\\B` wait for
    the next character.

    A search is at spots: a spot is a node, plus MAX_STOP_NODES times what the pattern's `$` and
    `\\Z` allow to follow.
    """

    def __init__(self) -> None:
        self.reads: dict[int, tuple[Ranges, int]] = {}
        self.empty: dict[int, list[int]] = {}
        self.asserts: dict[int, AnchorKind] = {}
        self.accepts: dict[int, int] = {}
        self.starts: list[int] = []  # one per pattern
        self.words: dict[int, Ranges] = {}  # those that an assertion tests
        self.sides = 0  # all that assertions test
        self.looks_ahead = False  # whether an assertion waits for the next character
        self._ends: dict[int, int] = {}
        self._num_nodes = 0
        self._edges: dict[tuple[int, int | None], dict[int, list[int]]] = {}

    def side(self, point: int) -> int:
        """The properties of a character, as far as the assertions next to it test them."""
        found = self.sides & NEWLINE if point == _NEWLINE else 0
        for side, ranges in self.words.items():
            found |= side if contains(ranges, point) else 0
        return found

    def add_assertion(self, node: int, kind: AnchorKind) -> None:
        """Make an assertion of an empty edge."""
        self.asserts[node] = kind
        if kind in _ENDS:
            self._ends[node] = _ENDS[kind]
        elif kind in _STARTS:
            self.sides |= _STARTS[kind]
        elif kind in _BOUNDARIES:
            side, _ = _BOUNDARIES[kind]
            self.words[side] = category("w", side == UNICODE_WORD)
            self.sides |= side
            self.looks_ahead = True
        else:
            self.sides |= EDGE | NEWLINE
            self.looks_ahead = True

    def search(
        self, spots: Sequence[int], before: int, after: int | None, seen: set[int]
    ) -> list[int]:
        """The reading and accepting spots that `spots` lead to at such a place, and those that
        wait for the text after it while that is not known (None).

        Spots in `seen` are left out, and visited ones are added to it: so all searches of a step
        together visit each spot once.
        """
        if len(spots) == 1 and spots[0] in self.reads:  # usually it is, and leads to itself only
            if spots[0] in seen:
                return []
            seen.add(spots[0])
            return [spots[0]]
        edges, new_ends = self._edges_at(before, after), self._ends
        todo = [spot for spot in spots if spot not in seen]
        seen.update(todo)
        found = []
        while todo:
            spot = todo.pop()
            ends, node = divmod(spot, MAX_STOP_NODES)
            targets = edges.get(node)
            if targets is None:
                if not ends or self._is_alive(node, ends):
                    found.append(spot)
                continue
            if node in new_ends:
                ends = max(ends, new_ends[node])
            for target in targets:
                to = target + MAX_STOP_NODES * ends
                if to not in seen:
                    seen.add(to)
                    todo.append(to)
        return found

    def _edges_at(self, before: int, after: int | None) -> dict[int, list[int]]:
        """`empty` without the assertions that do not hold there; nodes that wait have no key."""
        if not self.asserts:
            return self.empty
        known = self._edges.get((before, after))
        if known is None:
            known = self._edges[before, after] = self.empty.copy()
            for node, kind in self.asserts.items():
                holds = _holds(kind, before, after)
                if holds is None:
                    del known[node]
                elif not holds:
                    known[node] = []
        return known

    def _is_alive(self, node: int, ends: int) -> bool:
        """Whether a node can lead to a match where `$` or `\\Z` limits the rest of the text."""
        if node not in self.reads:
            return True
        return ends == NEWLINE_OR_END and contains(self.reads[node][0], _NEWLINE)

    def read(self, spot: int, point: int) -> int | None:
        """Where a reading spot leads to with a character; None if it cannot read that."""
        ends, node = divmod(spot, MAX_STOP_NODES)
        ranges, target = self.reads[node]
        if (ends and point != _NEWLINE) or not contains(ranges, point):
            return None
        return target + MAX_STOP_NODES * (END if ends else ANYTHING)

    def node(self) -> int:
        """A new node, without a kind yet. StateLimitError if there are too many."""
        self._num_nodes += 1
        if self._num_nodes > MAX_STOP_NODES:
            raise StateLimitError(
                f"the patterns are too large: their repetitions unrolled, they take more than "
                f"{MAX_STOP_NODES} states, the limit"
            )
        return self._num_nodes - 1


def build_stops(patterns: Sequence[str]) -> StopNFA:
    """The automaton of `patterns`.

    Raises GrammarError for one that is not valid or matches the empty text, and if together
    they are too large.
    """
    nfa = StopNFA()
    for step in (_add, _check_reads):
        for number, pattern in enumerate(patterns):
            try:
                step(nfa, number, pattern)
            except GrammarError as error:
                raise GrammarError(f"{pattern!r}: {error}") from error
    return nfa


def _add(nfa: StopNFA, number: int, pattern: str) -> None:
    end = nfa.node()
    nfa.accepts |= {end + MAX_STOP_NODES * ends: number for ends in (ANYTHING, NEWLINE_OR_END, END)}
    nfa.starts.append(_StopBuilder(nfa).build(parse(pattern), end))


def _check_reads(nfa: StopNFA, number: int, pattern: str) -> None:
    """Refuse a pattern that can match without reading, at any place."""
    for before, after in product({side & nfa.sides for side in _SIDES}, repeat=2):
        found = nfa.search([nfa.starts[number]], before, after, set())
        if not nfa.accepts.keys().isdisjoint(found):
            raise GrammarError("it matches the empty text")


def _holds(kind: AnchorKind, before: int, after: int | None) -> bool | None:
    """Whether an assertion holds; None if that is not known yet. `$` and `\\Z` hold as long as
    nothing more is read."""
    if kind in _STARTS:
        return bool(before & _STARTS[kind])
    if kind in _ENDS:
        return True
    if after is None:
        return None
    if kind is AnchorKind.LINE_END:
        return bool(after & (EDGE | NEWLINE))
    word, differs = _BOUNDARIES[kind]
    return (bool(before & word) != bool(after & word)) is differs


class _StopBuilder:
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
                self._nfa.add_assertion(entry, kind)
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
        self._nfa.empty[node] = list(dict.fromkeys(targets))
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
