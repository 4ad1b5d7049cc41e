"""Which states' masks to compute before they are asked for, when there is not time for all.

`FsmGrammar.build` computes in this order until its time is up. Singular states are left out: few
tokens can follow them, so that the walk for one takes microseconds at any time.
"""

from collections.abc import Iterator

import numpy as np

from scheduler_proc.grammar.fsm.chains import Chains
from scheduler_proc.grammar.regex.dfa import ByteDFA

_MAX_STATES = 4096  # in larger automata the states that every output passes are not sought


def mask_order(dfa: ByteDFA, chains: Chains) -> Iterator[int]:
    """States with a choice: the start, those that every output passes, then by distance from the
    start. (Outputs pass them byte by byte; a token may step over one.)"""
    graph = _Graph(dfa)
    seen: set[int] = set()
    sure = _passed_by_all(graph) if dfa.num_states <= _MAX_STATES else [0]
    for state in (chains.skip(0), *sure, *graph.by_distance()):
        if state not in seen and chains.forced_byte[state] < 0:
            seen.add(state)
            yield state


class _Graph:
    """An automaton without the bytes."""

    def __init__(self, dfa: ByteDFA) -> None:
        self.accepting = dfa.accepting
        self._transitions = dfa.transitions
        self._successors: dict[int, list[int]] = {}

    def successors(self, state: int) -> list[int]:
        found = self._successors.get(state)
        if found is None:
            row = self._transitions[state]
            found = self._successors[state] = list(dict.fromkeys(row[row >= 0].tolist()))
        return found

    def by_distance(self) -> Iterator[int]:
        """The states by how far they are from the start."""
        seen = np.zeros(len(self.accepting), np.bool_)
        seen[0] = True
        frontier = [0]
        while frontier:
            yield from frontier
            near = [t for state in frontier for t in self.successors(state)]
            frontier = [t for t in dict.fromkeys(near) if not seen[t]]
            seen[frontier] = True

    def shortest_path(self) -> list[int]:
        """From the start to an accepting state."""
        before: dict[int, int] = {}
        for state in self.by_distance():
            if self.accepting[state]:
                break
            for near in self.successors(state):
                before.setdefault(near, state)
        path = [state]
        while path[-1] != 0:
            path.append(before[path[-1]])
        return path[::-1]


def _passed_by_all(graph: _Graph) -> list[int]:
    """The dominators of acceptance: states that are on every path to it, in their order.

    They lie on any one path. Going along one, what can be reached without its later states is
    searched once, and a state of the path is passed by all if nothing beyond it was found before.
    """
    path = graph.shortest_path()
    places = {state: place for place, state in enumerate(path)}
    found: list[int] = []
    seen: set[int] = set()
    furthest = 0
    for place, state in enumerate(path):
        if furthest <= place:
            found.append(state)
        stack = [state]
        while stack:
            here = stack.pop()
            if graph.accepting[here]:
                furthest = len(path)
            for near in graph.successors(here):
                if near in places:
                    furthest = max(furthest, places[near])
                elif near not in seen:
                    seen.add(near)
                    stack.append(near)
    return found
