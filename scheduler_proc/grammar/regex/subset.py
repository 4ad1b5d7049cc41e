"""The subset construction: from an NFA to a deterministic automaton, not yet minimal.

A state is the set of the NFA's reading nodes (and ACCEPT) that the bytes so far lead to. Its
outgoing edges are found for sets of symbols, not for single ones: the edges of the members are
split into disjoint sets of symbols first, which costs as much as the state has different edges.
Work and states are bounded; what exceeds either bound is a StateLimitError.
"""

from typing import NamedTuple

from scheduler_proc.grammar.regex.alphabet import Alphabet
from scheduler_proc.grammar.regex.anchors import NEWLINE_MASK
from scheduler_proc.grammar.regex.nfa import ACCEPT, NFA
from srt.patterns.errors import StateLimitError
from srt.patterns.tree import AnchorKind

MAX_STEPS = 2_000_000  # members of states looked at: two seconds, some hundred MB

Row = list[tuple[int, int]]  # disjoint sets of symbols, and the state that each leads to


class StateGraph(NamedTuple):
    """A deterministic automaton over symbols; state 0 is the start, what has no edge is dead."""

    rows: list[Row]
    accepting: list[bool]


def determinise(nfa: NFA, alphabet: Alphabet, max_states: int) -> StateGraph:
    """The deterministic automaton of `nfa`, whose edges are sets of bytes of `alphabet`."""
    return _Determiniser(nfa, alphabet, max_states).run()


class _Closures:
    """The reading nodes that a node leads to by empty edges, where given assertions hold."""

    def __init__(self, nfa: NFA, holding: frozenset[AnchorKind], spend: "_Budget") -> None:
        self._nfa = nfa
        self._holding = holding
        self._spend = spend
        self._known: dict[int, frozenset[int]] = {}

    def of(self, node: int) -> frozenset[int]:
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._search(node)
        return known

    def _search(self, start: int) -> frozenset[int]:
        nfa = self._nfa
        if nfa.edges[start] and not nfa.empty[start]:
            return frozenset((start,))
        found: list[int] = []
        seen = {start}
        todo = [start]
        while todo:
            node = todo.pop()
            if nfa.edges[node] or node == ACCEPT:
                found.append(node)
            if node in nfa.anchors and nfa.anchors[node] not in self._holding:
                continue
            for target in nfa.empty[node]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        self._spend.take(len(seen))
        return frozenset(found)


class _Budget:
    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise StateLimitError(
                f"the pattern is too complex: to build its automaton takes more than "
                f"{MAX_STEPS:,} steps, the limit"
            )


class _Determiniser:
    def __init__(self, nfa: NFA, alphabet: Alphabet, max_states: int) -> None:
        self._max_states = max_states
        self._budget = _Budget()
        self._edges = [[(alphabet.symbols(m), to) for m, to in row] for row in nfa.edges]
        self._plain = _Closures(nfa, frozenset(), self._budget)
        newline = {AnchorKind.LINE_START}
        self._after_newline = _Closures(nfa, frozenset(newline), self._budget)
        at_start = _Closures(nfa, frozenset(newline | {AnchorKind.START}), self._budget)
        self._newline = alphabet.symbols(NEWLINE_MASK) if nfa.anchors else 0
        self._sets: list[frozenset[int]] = []
        self._ids: dict[frozenset[int], int] = {}
        self._state(at_start.of(nfa.start))

    def run(self) -> StateGraph:
        rows = [self._row(members) for members in self._sets]  # which grow meanwhile
        return StateGraph(rows, [ACCEPT in members for members in self._sets])

    def _state(self, members: frozenset[int]) -> int:
        known = self._ids.get(members)
        if known is not None:
            return known
        if len(self._sets) >= self._max_states:
            raise StateLimitError(
                f"the automaton has more than {self._max_states:,} states, the limit"
            )
        self._budget.take(len(members))
        self._ids[members] = len(self._sets)
        self._sets.append(members)
        return len(self._sets) - 1

    def _row(self, members: frozenset[int]) -> Row:
        edges = self._edges
        if len(members) == 1:
            (node,) = members
            grouped = [(symbols, [to]) for symbols, to in edges[node]]
        else:
            targets: dict[int, list[int]] = {}
            for node in members:
                for symbols, to in edges[node]:
                    targets.setdefault(symbols, []).append(to)
            grouped = list(targets.items())
        merged: dict[int, int] = {}  # state -> symbols
        for symbols, nodes in _disjoint(grouped):
            self._budget.take(len(nodes))
            self._follow(symbols, nodes, merged)
        return [(symbols, state) for state, symbols in merged.items()]

    def _follow(self, symbols: int, nodes: list[int], merged: dict[int, int]) -> None:
        newline = symbols & self._newline
        if newline:
            self._add(newline, nodes, self._after_newline, merged)
            symbols &= ~newline
        if symbols:
            self._add(symbols, nodes, self._plain, merged)

    def _add(
        self, symbols: int, nodes: list[int], closures: _Closures, merged: dict[int, int]
    ) -> None:
        first = closures.of(nodes[0])
        members = first.union(*map(closures.of, nodes[1:])) if len(nodes) > 1 else first
        if members:
            state = self._state(members)
            merged[state] = merged.get(state, 0) | symbols


def _disjoint(grouped: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """The coarsest disjoint sets of symbols that the given sets are unions of, with all nodes
    of the sets that contain each."""
    cells: list[tuple[int, list[int]]] = []
    covered = 0
    for symbols, nodes in grouped:
        if not symbols & covered:
            cells.append((symbols, nodes))
            covered |= symbols
            continue
        split: list[tuple[int, list[int]]] = []
        for cell, inside in cells:
            common = cell & symbols
            if not common:
                split.append((cell, inside))
                continue
            split.append((common, inside + nodes))
            if common != cell:
                split.append((cell ^ common, inside))
        if symbols & ~covered:
            split.append((symbols & ~covered, nodes))
            covered |= symbols
        cells = split
    return [(cell, nodes) for cell, nodes in cells if cell]
