"""Named groups are where `re` finds them, in any text and in time proportional to its length."""

import random
import re
import time

import pytest

from srt.patterns.errors import StateLimitError
from srt.patterns.groups import MAX_GROUP_NODES, GroupPattern, Span
from srt.wire.constraint import GrammarError

CASES = [
    (r"(?P<a>x*)(?P<b>x*)", ["", "x", "xxx"]),
    (r"(?P<a>x*?)(?P<b>x*)", ["", "xxx"]),
    (r"(?P<a>x{1,3}?)(?P<b>x*)", ["x", "xxxx"]),
    (r"(?P<a>x{2,3})(?P<b>x*)", ["xx", "xxxx"]),
    (r"(?:(?P<a>x)|(?P<b>y))*", ["", "x", "xyxx", "xyy"]),
    (r"(?P<a>a|ab)(?P<b>c|bcd)(?P<c>d*)", ["abcd", "ac", "abcdd"]),
    (r"(?P<a>(?P<b>a)b?)+", ["aab", "aba"]),
    (r"(?P<date>(?P<y>\d{4})-(?P<m>\d\d))|(?P<none>n/a)", ["2024-05", "n/a"]),
    (r"(?P<a>(?u:\w+)), (?P<b>.)", ["é世界, 😀"]),
    (r"(?P<a>(?:^a|b$|c)+)(?P<n>\n?)", ["acb", "acb\n", "c\n"]),
    (r"(?m)(?P<a>(?:^x$\n?)+)", ["x\nx\n", "x"]),
    (r"(?P<e>)(?P<a>a?)", ["", "a"]),
    (r"(?P<a>\w+\b.?)(?P<b>\B.*|\bx)", ["ab!-", "ab!x", "ab!"]),
    (r"(?P<a>.*?(?u:\b))(?P<b>.*)", ["-é-", "é"]),
    (r"(?i)(?P<a>straße|[k-m]+)", ["STRAßE", "KLm"]),
]


def last_of_each(spans: list[Span]) -> dict[str, tuple[int, int]]:
    by_end = sorted(spans, key=lambda span: (span.end, span.start))
    return {span.name: (span.start, span.end) for span in by_end}


def expected(pattern: str, text: str) -> dict[str, tuple[int, int]]:
    match = re.fullmatch(pattern, text, re.NOFLAG if "(?u" in pattern[:4] else re.ASCII)
    assert match is not None, text
    spans = {name: match.span(name) for name in match.groupdict()}
    return {name: span for name, span in spans.items() if span != (-1, -1)}


@pytest.mark.parametrize(("pattern", "texts"), CASES)
def test_groups_are_those_of_re(pattern: str, texts: list[str]) -> None:
    for text in texts:
        assert last_of_each(GroupPattern(pattern).spans(text)) == expected(pattern, text)


def test_random_patterns_agree_with_re() -> None:
    """Repeated items are never empty, because there `re` adds an empty repetition."""
    rng = random.Random(0)
    compared = 0
    for _ in range(400):
        names = iter("abcdefghijklmnop")

        def part(depth: int, names: "re.Match[str] | object" = names) -> str:
            kind = rng.randrange(7 if depth else 2)
            if kind < 2:
                return rng.choice(["x", "y", "é", "[xy]", "xy"])
            if kind == 2:
                return part(depth - 1) + part(depth - 1)
            if kind == 3:
                return f"(?:{part(depth - 1)}|{part(depth - 1)})"
            if kind == 4:
                letters = rng.choice(["x", "y", "[xy]", "(?:xy|x)"])
                return letters + rng.choice(["*", "+", "?", "*?", "+?", "??", "{1,2}", "{0,2}?"])
            name = next(names, None)  # type: ignore[call-overload]
            return part(depth - 1) if name is None else f"(?P<{name}>{part(depth - 1)})"

        pattern = part(4)
        for _ in range(30):
            text = "".join(rng.choices("xyé", k=rng.randrange(8)))
            if re.fullmatch(pattern, text):
                found = last_of_each(GroupPattern(pattern).spans(text))
                assert found == expected(pattern, text), (pattern, text)
                compared += 1
    assert compared > 300


def test_each_turn_is_told() -> None:
    spans = GroupPattern("(?:(?P<n>[0-9]+),)*").spans("1,23,1,")
    assert spans == [Span("n", 0, 1), Span("n", 2, 4), Span("n", 5, 6)]
    nested = GroupPattern("(?P<all>(?P<first>a)b)").spans("ab")
    assert nested == [Span("all", 0, 2), Span("first", 0, 1)]


def test_a_beginning_has_the_groups_that_have_ended() -> None:
    pattern = GroupPattern(r"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)")
    assert pattern.spans("2024-0") == [Span("y", 0, 4)]
    assert pattern.spans("2024-05") == [Span("y", 0, 4), Span("m", 5, 7)]
    assert pattern.spans("") == []
    assert pattern.spans("no match") == []


def test_the_work_does_not_grow_with_what_is_ambiguous() -> None:
    """The number of ways to match this doubles with every character."""
    assert GroupPattern("(?P<x>(?:(?:a|a)*)*)b?").spans("a" * 2000) == [Span("x", 0, 2000)]


def test_many_states_are_no_hurdle() -> None:
    """Nearly every character is a new one, and meets a new set of states."""
    pattern = GroupPattern(rf"(?P<x>.{{0,{MAX_GROUP_NODES // 2 - 10}}})")
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 2000)))
    begun = time.process_time()
    assert pattern.spans(text) == [Span("x", 0, 2000)]
    assert time.process_time() - begun < 1.0


def test_the_size_has_a_limit() -> None:
    with pytest.raises(StateLimitError, match="named groups"):
        GroupPattern(f"(?P<a>a{{{MAX_GROUP_NODES}}})")
    with pytest.raises(GrammarError, match="position 4"):
        GroupPattern("(?P<a")
    assert GroupPattern("(a)").names == set()
