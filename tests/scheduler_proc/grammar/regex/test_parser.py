"""What the parser accepts and refuses, and its errors, compared with Python's own parser."""

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.grammar.regex import PatternError, parse
from tests.running.profiles import examples

REFUSED = [
    ("ab(?=c)", "look-ahead is not supported", 2),
    ("ab(?!c)", "look-ahead is not supported", 2),
    ("(?<=c)a", "look-behind is not supported", 0),
    ("a(?<!c)", "look-behind is not supported", 1),
    (r"(a)b\1", "back-references are not supported", 4),
    ("(?P<x>a)(?P=x)", "back-references are not supported", 8),
    ("a(?>b)", "atomic groups are not supported", 1),
    ("(a)?(?(1)b|c)", "conditionals are not supported", 4),
    ("ab*+", "possessive quantifiers are not supported", 3),
    ("a{2}+", "possessive quantifiers are not supported", 4),
    ("a(?i)b", "global flags not at the start of the expression", 1),
    ("((?s)b)", "global flags not at the start of the expression", 1),
    ("(?L)a", "bad inline flags: 'L' is for patterns of bytes", 2),
    (r"a\ud800", "a surrogate code point, which no text contains,", 1),
]

INVALID = [
    *("[a", r"[a\]", "x[z-a]", r"[\w-a]", "[a-\\d]", "a**", "a*??", "{2}", "a{2,1}", "a|*"),
    *("(", "a(b", "(()", ")", "a)", "(?P<1>a)", "(?P<a", "(?P<>a)", "(?<x>a)", "(?y)", "(?Pa"),
    *("(?", "(?#", "(?-", "(?i", "(?i-)", "(?-i)", "(?-i", "(?i-:a)", r"\400", r"[\400]", r"\q"),
    *(r"[\q]", r"\xz", r"\x1", r"\u12", r"\U00110000", r"\N", r"\N{", r"\N{}", r"\N{foo}", "\\"),
    *(r"[\A]", r"[\8]", "^*", "a|$+", r"\A?", "(?P<a>.)(?P<a>.)", "[-", "[a-", "[", "[]", "[^]"),
    *("a{99999999999}", "(?i-i:a)", "(?-u:a)", "(?au:a)", "(?z:a)", "(?iz)", "(?x)#\\", "(?#\\"),
]

_PIECES = [
    *"()[]{}?*+|^$\\.,-:=!<>P#aiLmsuxbdDwWsSAZ0123n\n é",
    *("(?", "(?:", "(?P<", "(?i", "[^", "\\d", "{1,2}", "{2", "\\x6", "\\n", "(?x)", "(?i)"),
]


@pytest.mark.parametrize(("pattern", "reason", "position"), REFUSED)
def test_what_no_automaton_can_do_is_refused_with_its_place(
    pattern: str, reason: str, position: int
) -> None:
    with pytest.raises(PatternError) as caught:
        parse(pattern)
    assert (caught.value.reason, caught.value.position) == (reason, position)
    assert str(caught.value) == f"{reason} at position {position}"


@pytest.mark.parametrize("pattern", INVALID)
def test_invalid_patterns_are_refused(pattern: str) -> None:
    with pytest.raises((re.error, OverflowError)):
        re.compile(pattern, re.ASCII)
    with pytest.raises(PatternError):
        parse(pattern)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("ab**", 3), ("a[z-a]", 2), ("é(b", 1), ("ab)", 2), (r"ab\q", 2), ("a{3,2}", 2), ("ab[c", 2)],
)
def test_positions_are_those_of_re(pattern: str, position: int) -> None:
    with pytest.raises(re.error) as expected:
        re.compile(pattern)
    with pytest.raises(PatternError) as caught:
        parse(pattern)
    assert caught.value.position == expected.value.pos == position


def test_ascii_and_unicode_exclude_each_other() -> None:
    for pattern in ("(?au)a", "(?a)(?u)a", "(?u)(?a)a"):
        with pytest.raises(PatternError, match="incompatible"):
            parse(pattern)


def is_valid(pattern: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about possible nested sets
            re.compile(pattern, 0 if "u" in pattern else re.ASCII)
    except (re.error, ValueError, OverflowError):
        return False
    return True


def check_verdict(pattern: str) -> None:
    """We accept what Python accepts, except for what we refuse by name."""
    try:
        parse(pattern)
    except PatternError as error:
        assert 0 <= error.position <= len(pattern)
        unsupported = any(error.reason == reason for _, reason, _ in REFUSED)
        assert unsupported or not is_valid(pattern), error
    else:
        assert is_valid(pattern)


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(_PIECES), max_size=14).map("".join))
def test_verdicts_are_those_of_re(pattern: str) -> None:
    check_verdict(pattern)
