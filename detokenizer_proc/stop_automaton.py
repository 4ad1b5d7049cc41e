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
from typing import NamedTuple

from srt.regex.stops import Side, Spot, StopNFA, build_stops

# Nodes in all states that are kept, moves, and what these are made of: some ten MiB. Then they are
# made anew.
MAX_KEPT_NODES = 50_000
MAX_KEPT_CHARS = 10_000

_NEWLINE = ord("\n")
_Spots = tuple[Spot, ...]
_Attempts = tuple[_Spots, ...]  # each sorted


class Accepted(NamedTuple):
    """A match: which of the state's attempts came through, and with which pattern. The number
    behind the state's own is the attempt that began with the character."""

    attempt: int
    pattern: int


class State:
    """Attempts that are alive, and what the character before them is (`Side.EDGE`: none)."""

    __slots__ = ("attempts", "before", "moves")

    def __init__(self, attempts: _Attempts, before: Side) -> None:
        self.attempts = attempts
        self.before = before
        self.moves: dict[int, Move] = {}  # by class of characters


class Move(NamedTuple):
    """What a character leads to: the attempts of `state` were those `survivors` before it; None
    if they are all the old ones. `accepted` matches with the character, `late` ended before it."""

    state: State
    survivors: tuple[int, ...] | None
    accepted: Accepted | None
    late: Accepted | None


class StopAutomaton:
    """The automaton of some patterns. Raises what `build_stops` does."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._nfa = build_stops(patterns)
        self._bounds = _class_bounds(self._nfa)
        self._classes: dict[str, int] = {}
        self._fresh: dict[Side, _Spots] = {}
        self._targets: dict[tuple[Side, int], dict[Spot, frozenset[Spot]]] = {}
        self._states: dict[tuple[_Attempts, Side], State] = {}
        self._num_kept = 0
        self.start = self._state((), Side.EDGE)

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

    def at_end(self, state: State) -> Accepted | None:
        """The match that only waited for what comes after it, if no more text does."""
        return self._late(state, Side.EDGE)

    def _late(self, state: State, after: Side) -> Accepted | None:
        accepts = self._nfa.accepts
        for number, spots in enumerate(state.attempts):
            ends = self._closed(spots, state.before, after)
            found = [accepts[spot.node] for spot in ends if spot.node in accepts]
            if found:
                return Accepted(number, min(found))
        return None

    def _step(self, state: State, kind: int) -> Move:
        accepts, after = self._nfa.accepts, self._nfa.side(self._bounds[kind])
        known = self._targets.setdefault((state.before, kind), {})
        seen: set[Spot] = set()
        attempts: list[_Spots] = []
        survivors: list[int] = []
        accepted: Accepted | None = None
        for number, spots in enumerate((*state.attempts, self._first(state.before))):
            alive = []
            for spot in spots:
                targets = known.get(spot)
                if targets is None:
                    targets = known[spot] = self._follow(spot, state.before, kind, after)
                    self._num_kept += 1
                for to in targets:
                    if to in seen:
                        continue
                    seen.add(to)
                    if to.node not in accepts:
                        alive.append(to)
                    elif accepted is None or (number, accepts[to.node]) < accepted:
                        accepted = Accepted(number, accepts[to.node])
            if alive:
                attempts.append(tuple(sorted(alive)))
                survivors.append(number)
        are_same = survivors == list(range(len(state.attempts)))
        then = self._state(tuple(attempts), after)
        late = self._late(state, after)
        return Move(then, None if are_same else tuple(survivors), accepted, late)

    def _follow(self, spot: Spot, before: Side, kind: int, after: Side) -> frozenset[Spot]:
        """Where a spot leads to with a character of this class; a set that is shared."""
        readers = [at for at in self._closed([spot], before, after) if at.node in self._nfa.reads]
        targets = {self._nfa.read(at, self._bounds[kind]) for at in readers} - {None}
        return self._closed([to for to in targets if to], after, None)

    def _closed(self, spots: Sequence[Spot], before: Side, after: Side | None) -> frozenset[Spot]:
        closure = self._nfa.closure
        if len(spots) == 1:
            return closure(spots[0], before, after)
        return frozenset().union(*(closure(spot, before, after) for spot in spots))

    def _first(self, before: Side) -> _Spots:
        """Where an attempt begins."""
        known = self._fresh.get(before)
        if known is None:
            starts = [Spot(start) for start in self._nfa.starts]
            known = self._fresh[before] = tuple(sorted(self._closed(starts, before, None)))
        return known

    def _state(self, attempts: _Attempts, before: Side) -> State:
        known = self._states.get((attempts, before))
        if known is None:
            self._num_kept += 1 + sum(map(len, attempts))
            known = self._states[attempts, before] = State(attempts, before)
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
    for ranges in (*(ranges for ranges, _ in nfa.reads.values()), *nfa.words.values()):
        for low, high in ranges:
            bounds |= {low, high + 1}
    return sorted(bounds)
