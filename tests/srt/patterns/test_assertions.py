r"""Patterns with `^`, `$` and word boundaries anywhere mean what they mean in `re` and ECMA-262."""

import random
import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from srt.patterns.assertions import whole
from srt.patterns.ranges import contains
from srt.patterns.read_ecma import read_ecma
from srt.patterns.read_re import parse
from srt.patterns.unicode.emoji import emoji_property
from srt.patterns.write import regex
from srt.wire.constraint import GrammarError
from tests.running.profiles import examples
from tests.scheduler_proc.grammar.regex.cases import TEXTS, patterns, reference

_CHARS = "a1#é©👋😀🏽\u200d\ufe0f🇦"
_BOTH = st.booleans().flatmap(lambda unicode: patterns(unicode=unicode, boundaries=True))


@settings(max_examples=examples(100))
@given(_BOTH, st.lists(TEXTS, max_size=20))
@example(r"(?:\b|a)*-(?:\Bb?){2,}", ["-", "a-b", "aa--b", "-b"])
@example(r"(?m)(?:^a\n?|b$|\b)+", ["a\na", "ab", "b\n", "a\nb"])
def test_trees_without_assertions_agree_with_re(pattern: str, texts: list[str]) -> None:
    expected = reference(pattern)
    try:
        resolved = re.compile(regex(whole(parse(pattern))))
    except GrammarError:  # a `$` inside
        assume(False)
    for text in texts:
        if text or r"\B" not in pattern:  # which does not match the empty text before Python 3.14
            is_match = expected.fullmatch(text) is not None
            assert (resolved.fullmatch(text) is not None) == is_match, (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"^(^foo$)$|^$", r"^(?:^a|b$)$", r"(?:^|,)a(?:$|,)", "a^b", "x*^a", "(a$|^b)+c?"),
        *(r"^(?:(?:^|,)\w+)+$", r"^(?:(?:^|, )(?:a|foo)){1,5}$", "^(?:a?^b|$)*", "^(?:(a|$)b?)+"),
        *(r"\bcat\b", r"^\bcat\b$", r"^[a-z]+\b-[0-9]{2}$", r"\Ba", r"a\B.", r"\b", r"^.*\b$"),
        *(r"^(\b\w+\b ?)+$", r"^\w+(?:\b\W+\b\w+){0,3}$", r"(a$|^b|-\b)+", r"^(?=a\b)(?!.*\bc).*$"),
        *("(^)?a", "(?:^)*a", r"(\b)+a", r"(?:\b)?a", "a(?:$)?", r"^(?:\b)*$", r"a(?:\B){2}c"),
    ],
)
def test_patterns_of_schemas_match_where_they_did(pattern: str) -> None:
    conditions = read_ecma(pattern)
    wanted, without = ([re.compile(regex(tree)) for tree in trees] for trees in conditions)
    expected = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    rng = random.Random(pattern)
    parts = [*"abc-, é1", "foo", "cat"]
    for text in {"".join(rng.choices(parts, k=rng.randrange(6))) for _ in range(300)} | {""}:
        if text == "" and r"\B" in pattern:
            continue
        found = all(each.fullmatch(text) for each in wanted)
        found &= not any(each.fullmatch(text) for each in without)
        assert found == (expected.search(text) is not None), text


@pytest.mark.parametrize(
    "pattern",
    [r"(\b\w+\b ?){1,1000}", r"^((^|,)\w){1,400}$", "|".join(rf"\b{i}\b" for i in range(2000)),
     r"(\b|a)" * 50, r"(?:(?:(?:(?:\ba|b)*c|\B)*d|\b-)*e)*",
     rf"-\b{'a?' * 400}\b-", rf"(-\b{'[a-z]?' * 5000})?x"],
)  # fmt: skip
def test_what_grows_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match=r"too complex.*word boundaries"):
        read_ecma(pattern)


def test_properties_of_emoji() -> None:
    having = {
        "Emoji": "1#©👋😀🏽🇦",
        "EPres": "👋😀🏽🇦",
        "Emoji_Modifier": "🏽",
        "Emoji_Modifier_Base": "👋",
        "Emoji_Component": "1#🏽\u200d\ufe0f🇦",
        "Extended_Pictographic": "©👋😀",
        "Any": _CHARS,
        "ASCII": "a1#",
    }
    for name, chars in having.items():
        (tree,), _ = read_ecma(rf"^\p{{{name}}}$")
        (other,), _ = read_ecma(rf"^[\P{{{name}}}]$")
        assert "".join(re.findall(regex(tree), _CHARS)) == chars
        assert sorted([*re.findall(regex(other), _CHARS), *chars]) == sorted(_CHARS)
    emoji = emoji_property("Emoji") or ()
    for name in ("Emoji_Presentation", "Emoji_Modifier", "Emoji_Modifier_Base"):
        assert all(contains(emoji, low) for low, _ in emoji_property(name) or ())
    with pytest.raises(GrammarError, match=r"'Emoji_Kind' is not supported at position 1"):
        read_ecma(r"a\p{Emoji_Kind}")
