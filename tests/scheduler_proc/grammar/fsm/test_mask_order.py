"""The order in which masks are computed ahead."""

from hypothesis import given

from scheduler_proc.grammar.fsm.chains import Chains
from scheduler_proc.grammar.fsm.mask_order import mask_order
from scheduler_proc.grammar.regex.dfa import ByteDFA
from tests.scheduler_proc.grammar.automata import dfas, make_dfa, walk


def order(dfa: ByteDFA) -> list[int]:
    return list(mask_order(dfa, Chains(dfa)))


def passed_by_all(dfa: ByteDFA) -> set[int]:
    """The states that every accepted text passes."""
    return {state for state in range(dfa.num_states) if not _accepts_without(dfa, state)}


def _accepts_without(dfa: ByteDFA, gone: int) -> bool:
    found = {0} - {gone}
    stack = list(found)
    while stack:
        state = stack.pop()
        if dfa.accepting[state]:
            return True
        near = {walk(dfa, state, bytes([byte])) for byte in range(256)} - {-1, gone} - found
        found |= near
        stack += near
    return False


@given(dfas(max_states=10))
def test_all_states_with_a_choice_and_first_those_that_every_output_passes(dfa: ByteDFA) -> None:
    chains = Chains(dfa)
    choices = {s for s in range(dfa.num_states) if chains.forced_byte[s] < 0}
    states = order(dfa)
    assert sorted(states) == sorted(choices)
    assert states[0] == chains.skip(0)
    sure = passed_by_all(dfa) & choices
    assert {*states[: len(sure | {states[0]})]} == sure | {states[0]}


def test_then_by_distance() -> None:
    a, b, c = b"abc"
    dfa = make_dfa(
        [{a: 1, b: 2}, {a: 3, b: 3}, {a: 4, b: 4, c: 2}, {a: 5, b: 4}, {a: 5, b: 5}, {}], [5]
    )
    assert order(dfa) == [0, 5, 1, 2, 3, 4]


def test_two_ways_that_never_meet_again() -> None:
    a, b = b"ab"
    dfa = make_dfa([{a: 1, b: 2}, {a: 3, b: 3}, {a: 4, b: 4}, {}, {}], [3, 4])
    assert order(dfa) == [0, 1, 2, 3, 4]
