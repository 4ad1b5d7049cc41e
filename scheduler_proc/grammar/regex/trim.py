"""How far the states of a graph are from acceptance, and which of them the start reaches.

`finish` drops the states that are unreachable or infinitely far. The distances also start the
minimisation off: equivalent states are equally far.
"""

from typing import NamedTuple

import numpy as np

from scheduler_proc.grammar.regex.subset import StateGraph


class Distances(NamedTuple):
    """float64 [states]: the lengths of the shortest and the longest way to acceptance.

    Both are infinite for a state that cannot get there; the longest one is infinite too where
    a cycle is on the way.
    """

    shortest: np.ndarray
    longest: np.ndarray


def is_reachable(graph: StateGraph) -> np.ndarray:
    """Which states the start leads to, bool [states]."""
    seen = np.zeros(len(graph.rows), bool)
    seen[0] = True
    todo = [0]
    while todo:
        for _, target in graph.rows[todo.pop()]:
            if not seen[target]:
                seen[target] = True
                todo.append(target)
    return seen


def distances(graph: StateGraph) -> Distances:
    """How far each state is from acceptance."""
    sources: list[list[int]] = [[] for _ in graph.rows]
    for state, row in enumerate(graph.rows):
        for _, target in row:
            sources[target].append(state)
    shortest = _shortest(graph, sources)
    return Distances(shortest, _longest(graph, sources, np.isfinite(shortest).tolist()))


def _shortest(graph: StateGraph, sources: list[list[int]]) -> np.ndarray:
    length = [0.0 if accepting else np.inf for accepting in graph.accepting]
    found = [state for state, accepting in enumerate(graph.accepting) if accepting]
    for state in found:  # grows meanwhile, by increasing distance
        for source in sources[state]:
            if length[source] == np.inf:
                length[source] = length[state] + 1
                found.append(source)
    return np.array(length)


def _longest(graph: StateGraph, sources: list[list[int]], live: list[bool]) -> np.ndarray:
    """From the states without edges backwards; what is on or before a cycle is never reached.

    Edges to dead states are none: nothing may depend on states that are going to be dropped.
    """
    length = [np.inf] * len(graph.rows)
    open_edges = [sum(live[target] for _, target in row) for row in graph.rows]
    done = [state for state, edges in enumerate(open_edges) if edges == 0 and live[state]]
    for state in done:
        length[state] = 0.0
    for state in done:  # grows meanwhile; the last edge to be done is the longest way
        for source in sources[state]:
            open_edges[source] -= 1
            if open_edges[source] == 0:
                length[source] = length[state] + 1
                done.append(source)
    return np.array(length)
