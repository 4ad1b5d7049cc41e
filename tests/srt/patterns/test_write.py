"""A pattern that was read and written means the same to llguidance."""

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex import compile_regex
from srt.patterns.assertions import whole
from srt.patterns.errors import PatternError
from srt.patterns.read_re import parse
from srt.patterns.write import regex
from tests.scheduler_proc.grammar.regex.cases import TEXTS, patterns, sample

_EOS = 256


def written(pattern: str) -> str:
    return regex(whole(parse(pattern)))


class _Bytes:
    """A tokenizer in which token i is byte i."""

    eos_token_id = _EOS
    bos_token_id = None
    special_token_ids = (_EOS,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<eos>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


def accepts(matcher: LLMatcher, text: str) -> bool:
    tokens = [*text.encode(), _EOS]
    return matcher.validate_tokens(tokens) == len(tokens)


def check_agreement(tokenizer: LLTokenizer, pattern: str, texts: list[str]) -> None:
    """Our automaton and llguidance agree on `texts` and on samples of the automaton."""
    try:
        dfa, printed = compile_regex(pattern), written(pattern)
    except GrammarError:  # nothing matches, or it has an assertion inside
        assume(False)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(printed))
    assert not matcher.is_error(), (printed, matcher.get_error())
    rng = random.Random(0)
    for text in [*texts, *(sample(dfa, rng).decode() for _ in range(3))]:
        assert accepts(matcher, text) == dfa.matches(text.encode()), (printed, text)


@given(pattern=st.booleans().flatmap(patterns), texts=st.lists(TEXTS, max_size=20))
def test_llguidance_agrees(tokenizer: LLTokenizer, pattern: str, texts: list[str]) -> None:
    check_agreement(tokenizer, pattern, texts)


def test_every_ascii_character_is_passed_on(tokenizer: LLTokenizer) -> None:
    for char in map(chr, range(128)):
        check_agreement(tokenizer, f"\\x{ord(char):02x}b", [f"{char}b", "b", f"\\{char}b", "ab"])
        if not char.isalnum():
            check_agreement(tokenizer, f"[a\\{char}]", [char, "a", "\\", "b"])


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("", "(?:)"),
        (r"a\d+", "a[0-9]+"),
        ("^(?:ab|c){2,}?$", "(?:ab|c){2,}"),
        (r"(?:^a\Z|\Ab$)", "(?:a|b)"),
        (r"\A^a$\Z", "a"),
        (r"^\A$\Z", "(?:)"),
        ("^" * 2_000 + "a" + "$" * 2_000, "a"),
        ("(?:" * 100 + "^a" + "$)" * 100, "a"),
        ("^(?:" * 100 + "a" + "$)" * 100, "a"),
        ("(?i)k.", r"[Kk][^\x0a]"),
        ("x{3}y?z{0,4}w*", "x{3}y?z{0,4}w*"),
        ("(?:a*)*", "(?:a*)*"),
        (r"\.€", r"\.\u20ac"),
        ("(?:a|^b)c*(?:^d)", r"[^\s\S]"),
        (r"a\b-(?:^b|c$)", r"a\-c"),
    ],
)
def test_the_text(pattern: str, text: str) -> None:
    assert written(pattern) == text


@pytest.mark.parametrize("pattern", [r"a$\n?", r"b|(?:$)*a"])
def test_an_end_inside_that_a_newline_may_follow_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="inside a pattern is not supported"):
        written(pattern)


def test_a_set_without_characters_is_passed_on(tokenizer: LLTokenizer) -> None:
    check_agreement(tokenizer, r"a|[^\s\S]|b[^\s\S]", ["a", "b", ""])


def test_a_bad_pattern_is_refused_by_the_parser_first() -> None:
    with pytest.raises(PatternError, match="position 2"):
        written("ab(")
