"""Which patterns may stop an output, and how large their automaton gets."""

import pytest

from srt.patterns.stops import EDGE, MAX_STOP_NODES, NEWLINE, build_stops
from srt.wire.constraint import GrammarError


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a)", "unbalanced parenthesis at position 1"),
        ("(?<=a)b", "look-behind is not supported"),
        (r"(a)\1", "back-references are not supported"),
        ("", "matches the empty text"),
        ("a*", "matches the empty text"),
        ("(a|b?)", "matches the empty text"),
        ("^", "matches the empty text"),
        (r"\b", "matches the empty text"),
        (r"(?u)a|\B", "matches the empty text"),
        ("(?m)$", "matches the empty text"),
        (r"a*\Z", "matches the empty text"),
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
    starts = {
        side: [len(nfa.search([start], side, None, set())) for start in nfa.starts]
        for side in (EDGE, NEWLINE, 0)
    }
    assert starts == {EDGE: [1, 1, 1], NEWLINE: [1, 0, 1], 0: [0, 0, 1]}


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:[ab ]?){120}z",
        r"(?:(?:\b|\B|$)[ab\n]?){40}z",
        r"(?:(?:\b|\B|$|\Z)\n?){34}z",
        r"(?:(?:$|\Z|\B|\b|)\s?){27}z",
        f"(?:{'|' * 5000})z",
    ],
)
def test_the_edges_that_a_search_visits_are_bounded(pattern: str) -> None:
    """By the number of nodes, however often two branches lead the same way."""
    nfa = build_stops([pattern])
    assert sum(map(len, nfa.empty.values())) <= 2 * MAX_STOP_NODES
