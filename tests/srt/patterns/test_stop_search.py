"""The search for stop patterns against Python's `re`, and its bounds."""

import random
import re
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.patterns import stop_automaton, stop_search
from srt.patterns.ranges import contains
from srt.patterns.read_re import parse
from srt.patterns.stop_search import Found, PatternSearch
from srt.patterns.stops import MAX_STOP_NODES, StopNFA, build_stops
from srt.patterns.tree import (
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Repeat,
)
from srt.wire.constraint import GrammarError
from tests.scheduler_proc.grammar.regex.cases import TEXTS, patterns, reference


def found_by_re(compiled: Sequence[re.Pattern[str]], text: str) -> list[Found]:
    """For each place where a match ends, the match that begins first, of the first such pattern."""
    found = []
    for end in range(1, len(text) + 1):
        begun = [
            (start, number)
            for number, pattern in enumerate(compiled)
            for start in range(end)
            if pattern.fullmatch(text, start, end)
        ]
        if begun:
            start, number = min(begun)
            found.append(Found(start, end, compiled[number].pattern))
    return found


def found_by_us(search: PatternSearch, pieces: Iterable[str]) -> list[Found]:
    found, position = [], 0
    for piece in pieces:
        for start, end, pattern in search.feed(piece):
            assert start >= -position
            found.append(Found(position + start, position + end, pattern))
        position += len(piece)
        assert 0 <= search.held <= position
    return found


def are_stops(given_patterns: Sequence[str]) -> bool:
    try:
        build_stops(given_patterns)
    except GrammarError:
        return False
    return True


def looks_ahead(pattern: str) -> bool:
    """Whether the end of a match depends on what comes after it."""
    return any(kind in repr(parse(pattern)) for kind in ("LINE_END", "BOUNDARY"))


ALL_STOPS = st.lists(patterns(boundaries=True), min_size=1, max_size=3).filter(are_stops)
STOPS = (
    st.lists(patterns(), min_size=1, max_size=3)
    .filter(are_stops)
    .filter(lambda found: not any(map(looks_ahead, found)))
)


@given(STOPS, st.lists(TEXTS, max_size=4))
def test_against_re(stops: list[str], pieces: list[str]) -> None:
    compiled = [reference(pattern) for pattern in stops]
    found = found_by_us(PatternSearch(tuple(stops)), pieces)
    assert found == found_by_re(compiled, "".join(pieces))


@given(ALL_STOPS, st.lists(TEXTS, max_size=4))
def test_the_end_of_a_match_may_depend_on_what_comes_after_it(
    stops: list[str], pieces: list[str]
) -> None:
    text = "".join(pieces)
    search = PatternSearch(tuple(stops))
    found = found_by_us(search, pieces)
    found += [Found(len(text) + f.start, len(text) + f.end, f.matched) for f in search.at_end()]
    assert {find.end for find in found} == ends_by_tree(stops, text)
    for end in {find.end for find in found}:
        first = min(find.start for find in found if find.end == end)
        assert first == min(start for stop in stops for start in starts_by_tree(stop, text, end))


def ends_by_tree(stops: Sequence[str], text: str) -> set[int]:
    ends = range(1, len(text) + 1)
    return {end for end in ends if any(starts_by_tree(stop, text, end) for stop in stops)}


def starts_by_tree(stop: str, text: str, end: int) -> list[int]:
    """Where matches that end at `end` may begin, found by trying all ways through the tree. For `$`
    and `\\Z` the text ends at `end`; the other assertions see the rest."""
    tree = parse(stop)
    return [start for start in range(end) if end in tree_ends(tree, text, {start}, end)]


def tree_ends(node: Node, text: str, places: set[int], end: int) -> set[int]:
    """Where `node` may end, up to `end`, if it begins at one of `places`."""
    match node:
        case Literal(literal):
            ends = {at + len(literal) for at in places if text.startswith(literal, at)}
        case Chars(ranges):
            ends = {at + 1 for at in places if at < end and contains(ranges, ord(text[at]))}
        case Anchor(kind):
            ends = {at for at in places if anchor_holds(kind, text, at, end)}
        case Concat(items):
            ends = reduce(lambda found, item: tree_ends(item, text, found, end), items, places)
        case Choice(items):
            ends = set().union(*(tree_ends(item, text, places, end) for item in items))
        case Repeat(item, low, high):
            ends = set() if low else set(places)
            # More repetitions than there are characters add nothing.
            for times in range(1, (low + end + 1 if high is None else high) + 1):
                places = tree_ends(item, text, places, end)
                ends |= places if times >= low else set()
    return {at for at in ends if at <= end}


def anchor_holds(kind: AnchorKind, text: str, at: int, end: int) -> bool:
    pattern, stop = {
        AnchorKind.END: (r"\Z", end),
        AnchorKind.FINAL_END: (r"$", end),
    }.get(kind, (kind.value, len(text)))
    return (
        re.compile(pattern, 0 if "(?u)" in pattern else re.ASCII).match(text, at, stop) is not None
    )


@given(ALL_STOPS, TEXTS, TEXTS)
def test_what_is_held_is_what_a_match_may_need(stops: list[str], text: str, more: str) -> None:
    """No later match begins before the text that is held."""
    search = PatternSearch(tuple(stops))
    found_by_us(search, [text])
    held = search.held
    for start, _, _ in search.feed(more):
        assert start >= -held


@given(ALL_STOPS, TEXTS)
def test_the_states_may_be_forgotten_at_any_time(stops: list[str], text: str) -> None:
    """Also when two requests share them."""
    expected = found_by_us(PatternSearch(tuple(stops)), text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stop_automaton, "MAX_KEPT_NODES", 3)
        patch.setattr(stop_automaton, "MAX_KEPT_CHARS", 1)
        stop_search._automaton.cache_clear()
        one, other = PatternSearch(tuple(stops)), PatternSearch(tuple(stops))
        found = [[list(search.feed(char)) for search in (one, other)] for char in text]
    stop_search._automaton.cache_clear()
    for matches, twin in found:
        assert matches == twin
    moved = [
        Found(position + start, position + end, pattern)
        for position, (matches, _) in enumerate(found)
        for start, end, pattern in matches
    ]
    assert moved == expected


def test_only_what_may_match_is_held() -> None:
    search = PatternSearch((r"\n\n[A-Z]+:",))
    held = []
    for char in "a\n\n\nAB 1\n":
        assert list(search.feed(char)) == []
        held.append(search.held)
    assert held == [0, 1, 2, 2, 3, 4, 0, 0, 1]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"\bEND\b", "SEND END", [(5, 8)]),
        (r"\bEND\b", "ENDING", []),
        (r"\bEND\b", "END.", [(0, 3)]),
        (r"END$", "xENDING", [(1, 4)]),
        (r"END\Z", "xENDING", [(1, 4)]),
        (r"(?m)^END$", "xEND\nENDING\nEND\n", [(12, 15)]),
        (r"(?m)^END$", "END", [(0, 3)]),
        (r"oo\B", "foo food", [(5, 7)]),
        (r"(?u)\bé\b", "aé é", [(3, 4)]),
        (r"a$\n", "a\n\n", [(0, 2)]),
    ],
)
def test_assertions(pattern: str, text: str, found: list[tuple[int, int]]) -> None:
    for size in (1, len(text)):
        search = PatternSearch((pattern,))
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        ours = [(find.start, find.end) for find in found_by_us(search, pieces)]
        ours += [(len(text) + find.start, len(text) + find.end) for find in search.at_end()]
        assert ours == found


def test_a_long_match_takes_its_end_back_only() -> None:
    search = PatternSearch(("a[^b]*b",))
    assert list(search.feed("a" + "x" * 5000)) == []
    assert search.held == stop_search.MAX_MATCH_CHARS == 1024
    assert list(search.feed("xb")) == [Found(2 - 1024, 2, "a[^b]*b")]


def test_work_per_character_is_bounded() -> None:
    """Patterns that are exponential for a backtracking search, or have very many states."""
    for pattern in ("(x+x+)+y", "(a|a)*c", "a[ab]{200}c", "(.*)*(.*)*z"):
        search = PatternSearch((pattern,))
        for _ in range(20):
            assert list(search.feed("xabaab" * 50)) == []
        automaton = search._automaton
        assert automaton._num_kept <= stop_automaton.MAX_KEPT_NODES
        assert len(search._starts) <= MAX_STOP_NODES


class CountingNFA:
    """Counts the spots that a character makes a search visit."""

    def __init__(self, nfa: StopNFA) -> None:
        self._nfa = nfa
        self.num_visited = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nfa, name)

    def search(
        self, spots: Sequence[int], before: int, after: int | None, seen: set[int]
    ) -> list[int]:
        size = len(seen)
        found = self._nfa.search(spots, before, after, seen)
        self.num_visited += len(seen) - size
        return found


@pytest.mark.parametrize(
    ("pattern", "chars", "num_sides"),
    [
        ("(?:[ab ]?){120}z", "ab ", 1),
        ("a[ab ]{120}z", "ab ", 1),
        (r"(?:(?:\b|\B|$)[ab\n]?){40}z", "ab\n", 3),
        (r"(?:(?:\b|\B|$|\Z)\n?){34}z", "a\n", 3),
        (r"(?:[ab ]?(?:\b|)){63}z", "ab ", 1),
    ],
)
def test_a_character_visits_each_spot_a_few_times(pattern: str, chars: str, num_sides: int) -> None:
    """Once where an attempt begins, once for what has waited, once for what comes after it; `$` and
    `\\Z` make three nodes of one. No state is known in advance."""
    automaton = stop_automaton.StopAutomaton([pattern])
    nfa = CountingNFA(automaton._nfa)
    automaton._nfa = cast(StopNFA, nfa)
    rng, state = random.Random(0), automaton.start
    for _ in range(300):
        nfa.num_visited = 0
        state = automaton.move(state, rng.choice(chars)).state
        assert nfa.num_visited <= (2 + nfa.looks_ahead) * num_sides * MAX_STOP_NODES


LOOKING_AHEAD = [
    *(r"\bab\b", r"a+\b", r"b\B", r"a.?\b", r"a\b.b"),
    *("(?m:^a+$)", "(?m:b$)", r"(?m:b\n$)", r"(?u:é\b)"),
]


@given(
    st.sampled_from(LOOKING_AHEAD), st.lists(st.text("ab é\n", min_size=1, max_size=5), max_size=8)
)
def test_patterns_that_look_ahead_against_re(pattern: str, pieces: list[str]) -> None:
    """`re` is made to match up to a given place by demanding the rest of the text after it."""
    text = "".join(pieces)
    expected = set()
    for end in range(1, len(text) + 1):
        rest = re.compile(rf"(?:{pattern})(?=(?s:.{{{len(text) - end}}})\Z)", re.ASCII)
        begun = [start for start in range(end) if rest.match(text, start)]
        if begun:
            expected.add((begun[0], end))
    search = PatternSearch((pattern,))
    found = found_by_us(search, pieces)
    found += [Found(len(text) + f.start, len(text) + f.end, f.matched) for f in search.at_end()]
    assert {(find.start, find.end) for find in found} == expected


def test_what_is_kept_counts_all_that_characters_can_add() -> None:
    """There is one state, with a move for every class of characters."""
    pattern = r"(?u)(\w?){100}\d"
    search = PatternSearch((pattern,))
    automaton = search._automaton
    for code in range(0x20, 0xD800):
        list(search.feed(chr(code)))
    states = automaton._states.values()
    num_moves = sum(len(state.moves) for state in states)
    num_targets = sum(map(len, automaton._targets.values()))
    assert num_moves > 100 and num_targets > 1000
    assert num_moves + num_targets <= automaton._num_kept <= stop_automaton.MAX_KEPT_NODES
