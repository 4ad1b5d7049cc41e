"""Hostile patterns end in bounded time, as an automaton or as an error that names the limit."""

import random

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex import (
    PatternError,
    StateLimitError,
    compile_choices,
    compile_regex,
    parse,
)
from scheduler_proc.grammar.regex import subset as subset_module
from scheduler_proc.grammar.regex.nfa import MAX_NODES
from srt.patterns import read_re as parser_module


@pytest.mark.parametrize(
    "pattern",
    [
        "(((a{1000}){1000}){1000})",
        "((((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9}){9}){4294967294}",
        "(a|b|){4294967294}",
        f"(?u)\\w{{{MAX_NODES // 100}}}",
        "(^){600000}",
    ],
)
def test_a_large_expansion_is_refused_before_it_is_built(pattern: str) -> None:
    with pytest.raises(StateLimitError, match=f"the limit is {MAX_NODES:,}"):
        compile_regex(pattern)


@pytest.mark.parametrize("pattern", ["a{0,100000}", "(a|b)*a(a|b){500}", "x" * 100_000])
def test_the_state_limit_is_named(pattern: str) -> None:
    with pytest.raises(StateLimitError, match="more than 2,000 states, the limit"):
        compile_regex(pattern, max_states=2_000)


def test_the_ranges_of_all_sets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_module, "MAX_RANGES", 2_000)
    assert parse(r"(?u)[^\w][^\w]")
    with pytest.raises(StateLimitError, match="more than 2,000 ranges in all, the limit"):
        parse(r"(?u)" + r"[^\w]" * 10)


def test_repetitions_of_nothing_cost_nothing() -> None:
    for pattern in ("(){4294967294}", "((a{0}){1000000}){1000000}", "(){0,1000000}"):
        assert compile_regex(pattern).num_states == 1


def test_exponential_but_within_the_limit() -> None:
    dfa = compile_regex("[ab]*a[ab]{9}")
    assert dfa.num_states == 1024
    with pytest.raises(StateLimitError):
        compile_regex("[ab]*a[ab]{9}", max_states=1023)


def test_work_is_bounded_even_where_states_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subset_module, "MAX_STEPS", 100_000)
    for pattern in ("(a?){0,2000}", "(a|b)*a(a|b){5000}"):
        with pytest.raises(StateLimitError, match="more than 100,000 steps"):
            compile_regex(pattern)


def test_deep_nesting_is_refused_where_it_gets_too_deep() -> None:
    with pytest.raises(PatternError, match="nested more than 200 deep at position 200"):
        parse("(" * 10_000 + ")" * 10_000)
    assert compile_regex("(?:x|" * 200 + "a" + ")*" * 200).num_states == 1


@pytest.mark.full
def test_long_patterns_and_many_alternatives() -> None:
    words = [f"{index * 7919 % 100_003:06d}" for index in range(5_000)]
    dfa = compile_regex("|".join(words))
    assert all(dfa.matches(word.encode()) for word in words[::97])
    assert not dfa.matches(b"123")
    digits = compile_regex("|".join(word + r"\d" for word in words))
    assert digits.num_states == dfa.num_states + 1
    long = "abcd[xy]" * 5_000
    assert compile_regex(long).num_states == 25_001
    with pytest.raises(PatternError, match="at position 40000"):
        parse(long + "(")


def test_many_choices_and_their_limits() -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=12)) for _ in range(3_000)]
    dfa = compile_choices(words)
    assert all(dfa.matches(word.encode()) for word in words[::97])
    with pytest.raises(StateLimitError, match="more than 1,000 states, the limit"):
        compile_choices(words, max_states=1_000)
    with pytest.raises(StateLimitError, match="8,000,000 bytes, the limit"):
        compile_choices(["x" * 4_000_000, "y" * 4_000_001])


def test_every_error_is_a_grammar_error() -> None:
    assert issubclass(PatternError, GrammarError)
    assert issubclass(StateLimitError, GrammarError)
