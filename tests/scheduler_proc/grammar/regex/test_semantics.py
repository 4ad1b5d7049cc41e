"""The automaton of a pattern accepts what `re.fullmatch` matches, and nothing else."""

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex import ByteDFA, compile_regex
from tests.running.profiles import examples
from tests.scheduler_proc.grammar.regex.cases import (
    TEXTS,
    equivalence_classes,
    patterns,
    reachable,
    reference,
    sample,
    steps_to_accept,
)


def compiled(pattern: str) -> ByteDFA | None:
    """The pattern's automaton; None if it matches no text at all."""
    try:
        return compile_regex(pattern)
    except GrammarError as error:
        assert str(error) == "no text can match"
        return None


def check_against_re(pattern: str, texts: list[str], seed: int) -> None:
    expected = reference(pattern)
    dfa = compiled(pattern)
    for text in texts:
        accepted = dfa is not None and dfa.matches(text.encode())
        assert accepted == (expected.fullmatch(text) is not None), (pattern, text)
    if dfa is None:
        return
    rng = random.Random(seed)
    for _ in range(5):
        text = sample(dfa, rng).decode()
        assert expected.fullmatch(text), (pattern, text)
    assert equivalence_classes(dfa) == dfa.num_states
    assert len(reachable(dfa)) == dfa.num_states
    assert steps_to_accept(dfa).max() < float("inf")


@settings(max_examples=examples(50))
@given(patterns(), st.lists(TEXTS, max_size=20), st.integers(0, 2**32))
@example("(?:.|a*^)", [], 0)  # edges to states that cannot end must not count
def test_ascii_patterns_agree_with_re(pattern: str, texts: list[str], seed: int) -> None:
    check_against_re(pattern, texts, seed)


@settings(max_examples=examples(10))
@given(patterns(unicode=True), st.lists(TEXTS, max_size=20), st.integers(0, 2**32))
def test_unicode_patterns_agree_with_re(pattern: str, texts: list[str], seed: int) -> None:
    check_against_re(pattern, texts, seed)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"a$", ["a"], ["a\n", ""]),
        (r"a$\n", ["a\n"], ["a", "a\n\n"]),
        (r"a$\n?", ["a", "a\n"], ["a\n\n"]),
        (r"a\Z\n?", ["a"], ["a\n"]),
        (r"(?m)a$\n^b", ["a\nb"], ["ab", "a\n\nb"]),
        (r"(?m)(^a$\n?)+", ["a", "a\na", "a\na\n"], ["aa", "\na"]),
        (r"(^a|b)+", ["a", "abb", "bb"], ["ba", "aa"]),
        (r"x*(?:^y)", ["y"], ["xy"]),
        (r"(?:$|a)*", ["", "a", "aa"], ["\n"]),
        (r"(?:(?:$)|\n)*a?", ["", "\n", "\n\n", "a", "\na"], ["aa"]),
        (r".*\bcat\b.*", ["cat", "a cat!", "écaté"], ["cats", "tomcat", "a"]),
        (r"(?u).*\bcat\b.*", ["a cat"], ["écaté"]),
        (r"(\b\w+\b ?)+$", ["a", "a bc", "a b "], ["", "a  b", " a"]),
        (r"\w+\b-\B.\d*", ["a--", "a-."], ["a-1", "a-"]),
        ("a{", ["a{"], ["a"]),
        ("a{}", ["a{}"], ["a"]),
        ("a{x}", ["a{x}"], ["a"]),
        ("a{1", ["a{1"], ["a"]),
        ("a{,}", ["", "aaa"], ["a{,}"]),
        ("a{,2}b", ["b", "aab"], ["aaab"]),
        ("a{0}b", ["b"], ["ab"]),
        ("(?x) a b # c\n [ ] c", ["ab c"], ["abc"]),
        (r"(?x: a\ b)c d", ["a bc d"], ["abcd"]),
        ("(?#comment)a(?#another)*", ["", "aa"], ["b"]),
        (r"(?#a\)b)c", ["c"], ["b)c"]),
        ("(?x)a#b\\\nc\nd", ["ad"], ["acd"]),
        ("(?i)straSSe", ["STRASSE", "strasse"], ["straße"]),
        ("(?iu)s", ["s", "S", "ſ"], ["ß"]),
        ("(?i)s", ["s", "S"], ["ſ"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB"]),
        ("(?i)a(?-i:b)", ["Ab"], ["AB"]),
        ("(?u:\\w)\\w", ["éa"], ["éé"]),
        (r"\0\07\012\101", ["\0\7\nA"], ["0"]),
        (r"[\b\101-\103]", ["\b", "B"], ["b"]),
        (r"\N{BULLET}[\N{BULLET}]", ["••"], ["N"]),
        (r"\U0001F600\x2d\u20ac", ["😀-€"], []),
        (r"\a\f\v\t\r\\", ["\a\f\v\t\r\\"], []),
        ("[a\\-c]", ["-", "a"], ["b"]),
        ("[--/]", ["-", ".", "/"], [","]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("(|a|ab)(c|bcd)", ["c", "abcd", "abbcd"], ["abbc d"]),
        ("", [""], ["a"]),
        ("a||b", ["", "a", "b"], ["ab"]),
        ("()*", [""], ["a"]),
        ("[^\ud800-\udfff]", ["a", "😀"], [""]),
    ],
)
def test_special_cases(pattern: str, matching: list[str], other: list[str]) -> None:
    dfa = compile_regex(pattern)
    expected = reference(pattern if "(?iu)" not in pattern else f"(?u){pattern}")
    for text in matching:
        assert expected.fullmatch(text) or "(?u:" in pattern, "the case itself is wrong"
        assert dfa.matches(text.encode()), text
    for text in other:
        assert not dfa.matches(text.encode()), text
        assert not expected.fullmatch(text), "the case itself is wrong"


def test_a_pattern_in_constant_use() -> None:
    ipv4 = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
    dfa = compile_regex(ipv4)
    assert dfa.num_states == 24
    rng = random.Random(0)
    for _ in range(200):
        assert re.fullmatch(ipv4, sample(dfa, rng).decode())


def test_nothing_to_match_is_an_error() -> None:
    for pattern in (r"[^\s\S]", r"a\Zb", "b^a", r"[\ud800-\udfff]"):
        with pytest.raises(GrammarError, match="no text can match"):
            compile_regex(pattern)
