"""Trimming and minimising any state graph, even one that no pattern gives."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.dfa import finish
from scheduler_proc.grammar.regex.subset import StateGraph
from tests.running.profiles import examples
from tests.scheduler_proc.grammar.regex.cases import (
    equivalence_classes,
    reachable,
    steps_to_accept,
)

_NUM_SYMBOLS = 3
_CLASSES = np.minimum(np.arange(256), _NUM_SYMBOLS - 1).astype(np.uint8)  # bytes 0, 1 and the rest


@st.composite
def graphs(draw: st.DrawFn, max_states: int) -> StateGraph:
    """Any graph, with dead and unreachable states; each symbol leads somewhere or nowhere."""
    num_states = draw(st.integers(1, max_states))
    target = st.integers(-1, num_states - 1)
    rows = []
    for _ in range(num_states):
        targets = draw(st.lists(target, min_size=_NUM_SYMBOLS, max_size=_NUM_SYMBOLS))
        edges: dict[int, int] = {}
        for symbol, to in enumerate(targets):
            if to >= 0:
                edges[to] = edges.get(to, 0) | 1 << symbol
        rows.append([(symbols, to) for to, symbols in edges.items()])
    accepting = draw(st.lists(st.booleans(), min_size=num_states, max_size=num_states))
    return StateGraph(rows, accepting)


def accepts(graph: StateGraph, word: tuple[int, ...]) -> bool:
    state = 0
    for symbol in word:
        targets = [target for symbols, target in graph.rows[state] if symbols >> symbol & 1]
        if not targets:
            return False
        (state,) = targets
    return graph.accepting[state]


def check(graph: StateGraph, max_length: int) -> None:
    words = [
        word
        for length in range(max_length + 1)
        for word in itertools.product(range(_NUM_SYMBOLS), repeat=length)
    ]
    try:
        dfa = finish(graph, _CLASSES)
    except GrammarError:
        assert not any(accepts(graph, word) for word in words)
        return
    assert all(dfa.matches(bytes(word)) == accepts(graph, word) for word in words)
    assert equivalence_classes(dfa) == dfa.num_states == len(reachable(dfa))
    assert steps_to_accept(dfa).max() < np.inf


@settings(max_examples=examples(40))
@given(graphs(max_states=14))
def test_any_graph_becomes_minimal(graph: StateGraph) -> None:
    check(graph, max_length=5)


@pytest.mark.parametrize(("length", "period"), [(60, 6), (64, 2), (81, 27), (50, 50), (1, 1)])
def test_a_ring_folds_to_its_period(length: int, period: int) -> None:
    rows = [[(0b111, (state + 1) % length)] for state in range(length)]
    graph = StateGraph(rows, [state % period == 0 for state in range(length)])
    assert finish(graph, _CLASSES).num_states == period


def test_long_equal_chains_are_merged_in_many_rounds() -> None:
    """The two chains differ only in their last symbol, and have a way out at every state."""
    length = 100
    rows = [[(0b001, 1), (0b010, 1 + length)]]
    for chain in range(2):
        first = 1 + chain * length
        rows += [[(0b001, state + 1), (0b100, 0)] for state in range(first, first + length - 1)]
        rows += [[(0b001 << chain, 2 * length + 1), (0b100, 0)]]
    rows += [[]]
    graph = StateGraph(rows, [False] * (2 * length + 1) + [True])
    assert finish(graph, _CLASSES).num_states == 2 * length + 2
    rows[2 * length] = rows[length]
    assert finish(graph, _CLASSES).num_states == length + 2
