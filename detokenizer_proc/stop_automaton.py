"""Stop patterns as a deterministic automaton that is made while it runs.

Shared by all requests with the same patterns. An attempt to match begins at every character. A
state has those that are still alive, oldest first, each as the set of nodes of the
nondeterministic automaton that it may be at; a node is kept for the oldest one only, for what
follows is the same for all. So the oldest attempt that comes through gives the earliest beginning
of a match, and a step costs at most the size of the patterns, mostly a look into a table.

Sources: K. Thompson, "Regular expression search algorithm", CACM 11(6), 1968, for making states
while it runs; V. Laurikari, "NFAs with tagged transitions, their conversion to deterministic
automata and application to regular expressions", SPIRE 2000, for positions beside the states.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from srt.regex.stops import Place, StopNFA, build_stops

# Nodes in all states that are kept, moves, and what these are made of: some ten MiB. Then they are
# made anew.
MAX_KEPT_NODES = 50_000
MAX_KEPT_CHARS = 10_000

_NEWLINE = ord("\n")
_Nodes = tuple[int, ...]
_Attempts = tuple[_Nodes, ...]  # each sorted


class Accepted(NamedTuple):
    """A match: which of the state's attempts came through, and with which pattern. The number
    behind the state's own is the attempt that began with the character."""

    attempt: int
    pattern: int


class State:
    """Attempts that are alive, and what precedes the next character."""

    __slots__ = ("attempts", "moves", "place")

    def __init__(self, attempts: _Attempts, place: Place) -> None:
        self.attempts = attempts
        self.place = place
        self.moves: dict[int, Move] = {}  # by class of characters


class Move(NamedTuple):
    """What a character leads to: the attempts of `state` were those `survivors` before it; None
    if they are all the old ones."""

    state: State
    survivors: tuple[int, ...] | None
    accepted: Accepted | None


class StopAutomaton:
    """The automaton of some patterns. Raises what `build_stops` does."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._nfa = build_stops(patterns)
        self._bounds = _class_bounds(self._nfa)
        self._classes: dict[str, int] = {}
        self._targets: dict[int, dict[int, frozenset[int]]] = {}  # by class, by node
        self._fresh = {place: _first_nodes(self._nfa, place) for place in Place}
        self._states: dict[tuple[_Attempts, Place], State] = {}
        self._num_kept = 0
        self.start = self._state((), Place.START)

    def move(self, state: State, char: str) -> Move:
        """Read one character."""
        kind = self._classes.get(char)
        if kind is None:
            kind = self._class(char)
        move = state.moves.get(kind)
        if move is None:
            move = state.moves[kind] = self._step(state, kind)
            self._num_kept += 1 + len(move.survivors or ())
            if self._num_kept > MAX_KEPT_NODES:
                self._forget()
        return move

    def _class(self, char: str) -> int:
        """The characters of a class are the same to every node."""
        if len(self._classes) >= MAX_KEPT_CHARS:
            self._classes.clear()
        kind = self._classes[char] = bisect_right(self._bounds, ord(char)) - 1
        return kind

    def _step(self, state: State, kind: int) -> Move:
        accepts, known = self._nfa.accepts, self._targets.setdefault(kind, {})
        seen: set[int] = set()
        attempts: list[_Nodes] = []
        survivors: list[int] = []
        accepted: Accepted | None = None
        for number, nodes in enumerate((*state.attempts, self._fresh[state.place])):
            alive = []
            for node in nodes:
                targets = known.get(node)
                if targets is None:
                    targets = known[node] = self._follow(node, kind)
                    self._num_kept += 1
                for to in targets:
                    if to in seen:
                        continue
                    seen.add(to)
                    if to not in accepts:
                        alive.append(to)
                    elif accepted is None or (number, accepts[to]) < accepted:
                        accepted = Accepted(number, accepts[to])
            if alive:
                attempts.append(tuple(sorted(alive)))
                survivors.append(number)
        are_same = survivors == list(range(len(state.attempts)))
        after = self._state(tuple(attempts), self._place(kind))
        return Move(after, None if are_same else tuple(survivors), accepted)

    def _follow(self, node: int, kind: int) -> frozenset[int]:
        """Where a node leads to with a character of this class; a set that is shared."""
        ranges, target = self._nfa.reads[node]
        point = self._bounds[kind]
        index = bisect_right(ranges, point, key=itemgetter(0)) - 1  # they are sorted
        if index < 0 or point > ranges[index][1]:
            return frozenset()
        return self._nfa.closure(target, self._place(kind))

    def _place(self, kind: int) -> Place:
        return Place.LINE if self._bounds[kind] == _NEWLINE else Place.INSIDE

    def _state(self, attempts: _Attempts, place: Place) -> State:
        known = self._states.get((attempts, place))
        if known is None:
            self._num_kept += 1 + sum(map(len, attempts))
            known = self._states[attempts, place] = State(attempts, place)
        return known

    def _forget(self) -> None:
        """Drop all states: those that requests are in make their moves anew."""
        for state in (self.start, *self._states.values()):
            state.moves.clear()
        self._states.clear()
        self._targets.clear()
        self._num_kept = 0


def _class_bounds(nfa: StopNFA) -> list[int]:
    """The first code points of all classes: no set of the patterns divides one."""
    bounds = {0, _NEWLINE, _NEWLINE + 1}
    for ranges, _ in nfa.reads.values():
        for low, high in ranges:
            bounds |= {low, high + 1}
    return sorted(bounds)


def _first_nodes(nfa: StopNFA, place: Place) -> _Nodes:
    """Where an attempt begins."""
    return tuple(sorted(frozenset().union(*(nfa.closure(start, place) for start in nfa.starts))))
