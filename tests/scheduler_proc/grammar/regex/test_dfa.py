"""Choices, free prefixes, absent bytes and the shape of the automaton."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex import ByteDFA, compile_choices, compile_regex
from tests.scheduler_proc.grammar.regex.cases import (
    equivalence_classes,
    reachable,
    reference,
    sample,
    steps_to_accept,
)

_WORDS = st.lists(st.text("abé\n", max_size=5), min_size=1, max_size=12)


def check_shape(dfa: ByteDFA) -> None:
    """The automaton is minimal, trimmed, numbered in order, and has the documented types."""
    assert equivalence_classes(dfa) == dfa.num_states
    assert len(reachable(dfa)) == dfa.num_states
    assert steps_to_accept(dfa).max() < np.inf
    arrays = (dfa.transitions, dfa.byte_class, dfa.accepting)
    assert [array.dtype.name for array in arrays] == ["int32", "uint8", "bool"]
    assert dfa.transitions.shape == (dfa.num_states, dfa.byte_class.max() + 1)
    columns = {column.tobytes() for column in dfa.transitions.T}
    assert len(columns) == dfa.transitions.shape[1], "two classes are one"


def assert_equal(first: ByteDFA, second: ByteDFA) -> None:
    np.testing.assert_array_equal(first.transitions, second.transitions)
    np.testing.assert_array_equal(first.byte_class, second.byte_class)
    np.testing.assert_array_equal(first.accepting, second.accepting)


@given(_WORDS, st.sampled_from(["", "a", "aba", "é\n"]), st.sampled_from([b"", b"b", b"\xa9"]))
def test_choices_equal_their_alternation(words: list[str], after: str, absent: bytes) -> None:
    pattern = "|".join("".join(f"\\x{ord(c):02x}" for c in word) for word in words)
    try:
        dfa = compile_choices(words, after=after.encode(), absent_bytes=absent)
    except GrammarError:
        assert absent
        with pytest.raises(GrammarError, match="no text can match"):
            compile_regex(pattern, after=after.encode(), absent_bytes=absent)
        return
    assert_equal(dfa, compile_regex(pattern, after=after.encode(), absent_bytes=absent))
    check_shape(dfa)


@given(_WORDS, st.lists(st.text("abé\n", max_size=5)))
def test_choices_are_the_language(words: list[str], others: list[str]) -> None:
    dfa = compile_choices(words)
    for text in {*words, *others}:
        assert dfa.matches(text.encode()) == (text in words)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("(a|b)*", "(a*b*)*"),
        ("a*b|ca*b", "(ca*|a*)b"),
        ("(ab|cb)(d|e)", "[ac]b[de]"),
        ("a{2,4}", "aa|aaa|a{4}"),
        (r"[\s\S]*", r"(?s).*"),
        ("(a?){3}", "a{,3}"),
        (r"(?m)^a$", r"\Aa\Z"),
        ("x(abc|abd|ac)", "xab[cd]|xac"),
        (r"(?:foo[ab]{40}x|bar[ab]{40}x)", r"(?:foo|bar)[ab]{40}x"),
        (r"(?:foo[ab]{40}x|bar[ab]{40}y)", r"foo(a|b){40}x|bar(a|b){40}y"),
    ],
)
def test_equal_languages_give_equal_arrays(first: str, second: str) -> None:
    assert_equal(compile_regex(first), compile_regex(second))
    check_shape(compile_regex(first))


def test_minimisation_of_cyclic_automata() -> None:
    """The loops' states are equally far from acceptance, so only refinement tells them apart."""
    for period in (2, 3, 7, 12):
        pattern = f"((a{{{period}}})*b)*|((a{{{2 * period}}})*b)*"
        dfa = compile_regex(pattern)
        check_shape(dfa)
        assert_equal(dfa, compile_regex(f"((a{{{period}}})*b)*"))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6))
def test_minimality_of_counters(bounds: list[tuple[int, int]]) -> None:
    parts = (f"[ab]{{{low},{low + more}}}{'ab'[more % 2]}*" for low, more in bounds)
    check_shape(compile_regex("|".join(parts)))


@given(
    st.text("abé", min_size=1, max_size=5),
    st.lists(st.text("abé", max_size=12), max_size=8),
    st.sampled_from(["ab*", "(ab|é)+", "", "[^a]*", "(?s).*", "(?m)^b?"]),
)
def test_output_is_free_up_to_the_first_occurrence(
    after: str, texts: list[str], pattern: str
) -> None:
    dfa = compile_regex(pattern, after=after.encode())
    check_shape(dfa)
    expected = reference(pattern)
    for text in [*texts, *(text + after + text for text in texts)]:
        _, found, rest = text.partition(after)
        assert dfa.matches(text.encode()) == bool(found and expected.fullmatch(rest))


def test_what_is_free_need_not_be_text() -> None:
    dfa = compile_regex("a", after=b"</t>", absent_bytes=b"\x00")
    assert dfa.matches(b"\xff\xfe</</t>a")
    assert not dfa.matches(b"\x00</t>a")
    assert not dfa.matches(b"</t>a</t>a")


def test_no_transition_on_absent_bytes() -> None:
    absent = b"b\xc3"
    dfa = compile_regex("(a|b|é|€)+", absent_bytes=absent)
    check_shape(dfa)
    assert dfa.matches("a€".encode())
    for byte in absent:
        assert (dfa.transitions[:, dfa.byte_class[byte]] == -1).all()
    for text in ("b", "é"):
        assert not dfa.matches(text.encode())
    with pytest.raises(GrammarError, match="no text can match"):
        compile_regex("é", absent_bytes=absent)
    with pytest.raises(GrammarError, match="no text can match"):
        compile_choices(["b", "ab"], absent_bytes=absent)
    with pytest.raises(GrammarError, match="no text can match"):
        compile_choices(["a"], after=b"b", absent_bytes=absent)


def test_choices_without_or_with_nothing() -> None:
    with pytest.raises(GrammarError, match="no text can match"):
        compile_choices([])
    dfa = compile_choices(["", "a", "a", ""])
    assert dfa.accepting.tolist() == [True, True]
    assert compile_choices([""]).num_states == 1
    with pytest.raises(GrammarError, match="choice 1 contains a surrogate"):
        compile_choices(["a", "\ud800"])


def test_samples_of_a_larger_pattern_match() -> None:
    pattern = r'\{"a": ("[\w ]{1,8}"|null), "b": -?[0-9]{1,3}(\.[0-9]+)?(, "é": [^"\n]*)?\}'
    dfa = compile_regex(pattern)
    check_shape(dfa)
    rng = random.Random(1)
    expected = reference(pattern)
    assert all(expected.fullmatch(sample(dfa, rng, 60).decode()) for _ in range(200))
