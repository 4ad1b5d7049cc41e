"""Stop patterns as a deterministic automaton that is built while it runs.

Shared by all requests with the same patterns. An attempt to match begins at every character. A
state has the attempts that are still alive, oldest first, each as the set of nodes of the
nondeterministic automaton that it may be at. A node is kept for the oldest attempt only, since what
follows is the same for all. So the oldest attempt that succeeds gives the earliest beginning of a
match, and a step costs at most the size of the patterns, and usually one table look-up.

Sources: K. Thompson, "Regular expression search algorithm", CACM 11(6), 1968, for making states
while it runs; V. Laurikari, "NFAs with tagged transitions, their conversion to deterministic
automata and application to regular expressions", SPIRE 2000, for positions beside the states.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from srt.patterns.stops import EDGE, StopNFA, build_stops

# The most nodes in all kept states, moves, and what these are made of (some ten MiB): above that,
# all are dropped and built again.
MAX_KEPT_NODES = 50_000
MAX_KEPT_CHARS = 10_000

_NEWLINE = ord("\n")
_Spots = tuple[int, ...]
_Attempts = tuple[_Spots, ...]  # each sorted


class Accepted(NamedTuple):
    """A match: which of the state's attempts succeeded, and with which pattern. The number after
    the state's own is the attempt that began with the character."""

    attempt: int
    pattern: int


class State:
    """Attempts that are alive, and what is before the place they are at (a side of the NFA)."""

    __slots__ = ("attempts", "before", "moves")

    def __init__(self, attempts: _Attempts, before: int) -> None:
        self.attempts = attempts
        self.before = before
        self.moves: dict[int, Move] = {}  # by class of characters


class Move(NamedTuple):
    """What a character leads to: the attempts of `state` had the numbers `survivors` before it;
    None if all survived. `accepted` matches with the character, `late` ended before it."""

    state: State
    survivors: tuple[int, ...] | None
    accepted: Accepted | None
    late: Accepted | None


class _Targets(dict[int, int | None]):
    """Where spots lead to with a character of one class, filled on demand."""

    def __init__(self, nfa: StopNFA, point: int) -> None:
        self._nfa = nfa
        self._point = point

    def __missing__(self, spot: int) -> int | None:
        target = self[spot] = self._nfa.read(spot, self._point)
        return target


class StopAutomaton:
    """The automaton of some patterns. Raises what `build_stops` does."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._nfa = build_stops(patterns)
        self._bounds = _class_bounds(self._nfa)
        self._classes: dict[str, int] = {}
        self._fresh: dict[int, _Spots] = {}  # where an attempt begins, by what is before it
        self._targets: dict[int, _Targets] = {}  # by class
        self._states: dict[tuple[_Attempts, int], State] = {}
        self._num_kept = 0
        self.start = self._state((), self._nfa.sides & EDGE)

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
        """The class of a character; every node treats the characters of a class alike."""
        if len(self._classes) >= MAX_KEPT_CHARS:
            self._classes.clear()
        kind = self._classes[char] = bisect_right(self._bounds, ord(char)) - 1
        return kind

    def at_end(self, state: State) -> Accepted | None:
        """The match that only waited for the text after it, if no more text comes."""
        if not self._nfa.looks_ahead:
            return None
        seen: set[int] = set()
        after = self._nfa.sides & EDGE
        for number, spots in enumerate(state.attempts):
            _, late = self._split(number, self._nfa.search(spots, state.before, after, seen))
            if late is not None:
                return late
        return None

    def _step(self, state: State, kind: int) -> Move:
        nfa, before, after = self._nfa, state.before, self._nfa.side(self._bounds[kind])
        targets = self._targets.get(kind)
        if targets is None:
            targets = self._targets[kind] = _Targets(nfa, self._bounds[kind])
        num_known = len(targets)
        ready: set[int] = set()
        seen: set[int] = set()
        attempts: list[_Spots] = []
        survivors: list[int] = []
        accepted: Accepted | None = None
        late: Accepted | None = None
        for number, spots in enumerate((*state.attempts, self._first(before))):
            readers: Sequence[int] = spots
            if nfa.looks_ahead:
                readers, found = self._split(number, nfa.search(spots, before, after, ready))
                late = late or found
            read = [to for spot in readers if (to := targets[spot]) is not None]
            if not read:
                continue
            alive, found = self._split(number, nfa.search(read, after, None, seen))
            accepted = accepted or found
            if alive:
                attempts.append(tuple(sorted(alive)))
                survivors.append(number)
        self._num_kept += len(targets) - num_known
        are_same = survivors == list(range(len(state.attempts)))
        then = self._state(tuple(attempts), after)
        return Move(then, None if are_same else tuple(survivors), accepted, late)

    def _split(self, number: int, spots: list[int]) -> tuple[list[int], Accepted | None]:
        """The spots of an attempt that do not accept, and what the others accept."""
        accepts = self._nfa.accepts
        if accepts.keys().isdisjoint(spots):
            return spots, None
        pattern = min(accepts[spot] for spot in spots if spot in accepts)
        return [spot for spot in spots if spot not in accepts], Accepted(number, pattern)

    def _first(self, before: int) -> _Spots:
        known = self._fresh.get(before)
        if known is None:
            found = self._nfa.search(self._nfa.starts, before, None, set())
            known = self._fresh[before] = tuple(sorted(found))
        return known

    def _state(self, attempts: _Attempts, before: int) -> State:
        known = self._states.get((attempts, before))
        if known is None:
            self._num_kept += 1 + sum(map(len, attempts))
            known = self._states[attempts, before] = State(attempts, before)
        return known

    def _forget(self) -> None:
        """Drop all states: those that requests are in build their moves again."""
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
