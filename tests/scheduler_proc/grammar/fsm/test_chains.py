"""Chains, compared with following single bytes one by one."""

import numpy as np
import pytest
from hypothesis import given

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.fsm.chains import Chains
from scheduler_proc.grammar.regex.dfa import ByteDFA
from tests.scheduler_proc.grammar.automata import dfas, make_dfa, walk, words_dfa


def exits(dfa: ByteDFA, state: int) -> list[int]:
    """The bytes that can follow."""
    return [byte for byte in range(256) if walk(dfa, state, bytes([byte])) >= 0]


def forced(dfa: ByteDFA, state: int) -> tuple[bytes, int]:
    """The byte that must follow, if any, and where it leads."""
    text = b""
    while not dfa.accepting[state] and len(found := exits(dfa, state)) == 1:
        text += bytes(found)
        state = walk(dfa, state, bytes(found))
    return text, state


@given(dfas(max_states=10))
def test_the_forced_text_of_every_state(dfa: ByteDFA) -> None:
    chains = Chains(dfa)
    for state in range(dfa.num_states):
        text, end = forced(dfa, state)
        assert chains.forced(state) == text
        assert chains.skip(state) == end
        assert chains.forced_byte[state] == (text[0] if text else -1)


@given(dfas(max_states=10))
def test_each_singular_state_is_in_one_chain_and_enters_it_at_the_head(dfa: ByteDFA) -> None:
    chains = Chains(dfa)
    inside = [state for chain in chains.chains for state in chain.states]
    assert sorted(inside) == [s for s in range(dfa.num_states) if forced(dfa, s)[0]]
    for chain in chains.chains:
        assert len(chain.text) == len(chain.states)
        path = [*chain.states, chain.tail]
        for i in range(len(chain.text)):
            assert walk(dfa, path[i], chain.text[i : i + 1]) == path[i + 1]
    inner = {state for chain in chains.chains for state in chain.states[1:]}
    assert 0 not in inner
    # In the compressed automaton only the chain itself leads to its inner states.
    outside = [s for s in range(dfa.num_states) if s not in inside]
    pairs = {(s, walk(dfa, s, bytes([b]))) for s in outside for b in exits(dfa, s)}
    assert not {target for _, target in pairs} & inner


def test_a_json_object() -> None:
    chains = Chains(words_dfa([b'{"name": "x"}', b'{"name": "y"}']))
    assert [chain.text for chain in chains.chains] == [b'{"name": "', b'"}', b'"}']
    assert chains.forced(0) == b'{"name": "'
    assert chains.forced(4) == b'me": "'


def test_chains_that_join_are_cut_where_they_do() -> None:
    a, b, c, d, e = b"abcde"
    dfa = make_dfa([{a: 1, b: 2}, {c: 3}, {d: 3}, {e: 4}, {}], [4])
    chains = Chains(dfa)
    assert sorted(chain.text for chain in chains.chains) == [b"c", b"d", b"e"]
    assert (chains.forced(1), chains.forced(2)) == (b"ce", b"de")


def test_a_chain_does_not_run_through_the_start() -> None:
    a, b, c, d = b"abcd"
    chains = Chains(make_dfa([{a: 1}, {b: 2, d: 3}, {c: 0}, {}], [3]))
    assert sorted(chain.text for chain in chains.chains) == [b"a", b"c"]
    assert (chains.forced(0), chains.forced(2)) == (b"a", b"ca")


def test_a_class_of_bytes_and_an_end_are_choices() -> None:
    a, b, c = b"abc"
    assert Chains(make_dfa([{a: 1, b: 1}, {c: 2}, {}], [2])).forced(0) == b""
    assert Chains(make_dfa([{a: 1}, {c: 2}, {}], [0, 2])).forced(0) == b""


@pytest.mark.parametrize(
    "rows", [[{97: 0}], [{97: 1}, {97: 2}, {98: 1}], [{97: 1, 98: 3}, {97: 2}, {97: 1}, {}]]
)
def test_going_round_without_a_choice_is_refused(rows: list[dict[int, int]]) -> None:
    last = len(rows) - 1
    dfa = make_dfa(rows, [last] if not rows[last] else [])
    with pytest.raises(GrammarError, match="go round"):
        Chains(dfa)


def test_a_long_chain() -> None:
    word = bytes(np.random.default_rng(0).integers(0, 256, 5000).tolist())
    chains = Chains(words_dfa([word]))
    assert chains.forced(0) == word
    assert chains.forced(4990) == word[4990:]
    assert len(chains.chains) == 1
