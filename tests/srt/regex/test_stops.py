"""Which patterns may stop an output, and how large their automaton gets."""

import pytest

from srt.constraint import GrammarError
from srt.regex.stops import MAX_STOP_NODES, Place, build_stops


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a)", "unbalanced parenthesis at position 1"),
        ("(?<=a)b", "look-behind is not supported"),
        (r"\bEND\b", "word boundary"),
        (r"(a)\1", "back-references are not supported"),
        ("a$", "more text may follow"),
        (r"a\Z", "more text may follow"),
        ("(?m)a$b", "more text may follow"),
        ("", "matches the empty text"),
        ("a*", "matches the empty text"),
        ("(a|b?)", "matches the empty text"),
        ("^", "matches the empty text"),
        ("(?m)^(a|)", "matches the empty text"),
    ],
)
def test_bad_patterns_are_named(pattern: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        build_stops(["fine", pattern])
    assert str(caught.value).startswith(f"{pattern!r}: ")


@pytest.mark.parametrize(
    "patterns",
    [
        ["a" * MAX_STOP_NODES],
        ["a" * (MAX_STOP_NODES // 2)] * 2,
        ["(((a{99}){99}){99}){99}"],
        ["(a{0,1000}){0,1000}b"],
        ["a" + "(b|c)" * 200],
    ],
)
def test_the_size_is_bounded(patterns: list[str]) -> None:
    with pytest.raises(GrammarError, match=f"{MAX_STOP_NODES} states, the limit"):
        build_stops(patterns)
    build_stops(["a" * (MAX_STOP_NODES - 1)])


def test_where_a_line_begins() -> None:
    nfa = build_stops(["(?m)^a", "^b", "c"])
    starts = {place: [len(nfa.closure(s, place)) for s in nfa.starts] for place in Place}
    assert starts == {Place.START: [1, 1, 1], Place.LINE: [1, 0, 1], Place.INSIDE: [0, 0, 1]}
