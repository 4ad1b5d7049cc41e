"""Character sets: every code point of Unicode through the automaton, compared with `re`."""

import re

import numpy as np
import pytest

from scheduler_proc.grammar.regex import ByteDFA, compile_regex
from scheduler_proc.grammar.regex.utf8 import EXIT, ByteForm, byte_form
from srt.patterns.classes import fold
from srt.patterns.ranges import (
    ANY,
    MAX_CODE_POINT,
    complement,
    subtract,
    union,
    without_surrogates,
)

# All characters that UTF-8 encodes, by the number of their bytes.
_POINTS = [
    np.arange(0x80),
    np.arange(0x80, 0x800),
    np.concatenate([np.arange(0x800, 0xD800), np.arange(0xE000, 0x10000)]),
    np.arange(0x10000, 0x110000),
]


def accepted_characters(dfa: ByteDFA) -> np.ndarray:
    """Which code points are accepted as whole texts, bool [0x110000]."""
    table = np.vstack([dfa.transitions, np.full(dfa.transitions.shape[1], -1)])  # row -1: dead
    found = np.zeros(MAX_CODE_POINT + 1, bool)
    for length, points in enumerate(_POINTS, start=1):
        text = points.astype("<u4").tobytes().decode("utf-32-le")
        data = np.frombuffer(text.encode(), np.uint8).reshape(-1, length)
        states = np.zeros(len(points), np.int64)
        for column in dfa.byte_class[data].T:
            states = table[states, column]
        found[points] = (states >= 0) & np.append(dfa.accepting, False)[states]
    return found


def expected_characters(pattern: str) -> np.ndarray:
    """Which code points `re` matches, from the runs that it finds in a text of all characters."""
    flags = 0 if pattern.startswith("(?u)") else re.ASCII
    points = np.concatenate(_POINTS)
    text = points.astype("<u4").tobytes().decode("utf-32-le")
    found = np.zeros(MAX_CODE_POINT + 1, bool)
    for match in re.finditer(f"{pattern}+", text, flags):
        found[points[match.start() : match.end()]] = True
    return found


@pytest.mark.parametrize(
    "pattern",
    [
        *(r".", r"(?s).", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"),
        *(r"(?u)\d", r"(?u)\D", r"(?u)\s", r"(?u)\S", r"(?u)\w", r"(?u)\W", r"(?u)[^\w\s]"),
        *(r"[^\w]", r"[\W\d]", r"[^\W\d]", "[a-é]", "[^é-€]", "[ࠀ-\U00010000]", "[^\ud7ff-\ue000]"),
        *("(?i)[a-k]", "(?i)[^a-k]", "(?i)[Y-c]", "(?i)é", "(?i)[\x00-\xff]", r"(?i)[^\w]"),
        *("(?u)(?i)[a-k]", "(?u)(?i)[^A-Z]", "(?u)(?i)[À-ſ]", r"(?u)(?i)[\Wk]", "(?u)(?i)[^ſ]"),
        *("(?u)(?i)[Ͱ-Ͽ]", "(?u)(?i)[Ā-\uffff]", "(?u)(?i)\U00010400", "(?u)(?i)[\U00010400-𐐐]"),
        *("[\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff]", "[^\x7f\x80\u07ff\u0800\uffff]"),
    ],
)
def test_sets_contain_the_characters_that_re_finds(pattern: str) -> None:
    accepted = accepted_characters(compile_regex(pattern))
    np.testing.assert_array_equal(accepted, expected_characters(pattern))


def test_every_letter_folds_as_in_re() -> None:
    text = "".join(c for c in map(chr, range(0x110000)) if c.lower() != c or c.upper() != c)
    for char in text:
        expected = {ord(c) for c in re.findall(re.escape(char), text, re.IGNORECASE)}
        folded = fold(((ord(char), ord(char)),), unicode=True)
        assert {point for low, high in folded for point in range(low, high + 1)} == expected


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("(?u)(?i)[a\U00010400]", "aA\U00010400\U00010428", "b"),
        ("(?i)[\U00010400-\U00010410]", "\U00010400", "\U00010428"),
    ],
)
def test_folding_beyond_the_bmp_follows_the_general_rule(
    pattern: str, inside: str, outside: str
) -> None:
    """Here `re` itself does not follow it."""
    accepted = accepted_characters(compile_regex(pattern))
    assert all(accepted[ord(char)] for char in inside)
    assert not any(accepted[ord(char)] for char in outside)


def test_arithmetic_of_ranges() -> None:
    assert union([(5, 9), (1, 2), (3, 3), (8, 12), (20, 20)]) == ((1, 3), (5, 12), (20, 20))
    assert complement(()) == ANY
    assert complement(((0, 4), (9, MAX_CODE_POINT))) == ((5, 8),)
    assert subtract(((1, 9),), ((4, 5), (9, 20))) == ((1, 3), (6, 8))
    assert without_surrogates(((0, MAX_CODE_POINT),)) == ANY


@pytest.mark.parametrize(
    "ranges", [((0x7F, 0x80),), ((0x7FE, 0x801), (0xFFE, 0x2001)), ((0xFFF0, 0x10010),)]
)
def test_byte_forms_are_minimal(ranges: tuple[tuple[int, int], ...]) -> None:
    """No two nodes have the same edges, so no two read the same bytes."""
    form = byte_form(ranges)
    assert len(set(map(frozenset, form))) == len(form)
    assert decoded(form, len(form) - 1) == {
        chr(point).encode() for low, high in ranges for point in range(low, high + 1)
    }


def decoded(form: ByteForm, node: int) -> set[bytes]:
    """All byte strings that lead from `node` to the exit."""
    if node == EXIT:
        return {b""}
    known: dict[int, set[bytes]] = {EXIT: {b""}}
    for index, edges in enumerate(form):  # edges lead to earlier nodes
        known[index] = {
            bytes((byte,)) + rest
            for mask, target in edges
            for byte in range(256)
            if mask >> byte & 1
            for rest in known[target]
        }
    return known[node]
