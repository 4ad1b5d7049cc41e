"""Texts of patterns, and completions that need them."""

import json
import re
from itertools import product

import pytest

from scheduler_proc.grammar.closing.texts import (
    LONGEST_PATTERN,
    MOST_PATTERNS,
    shortest_text,
    texts_of,
)
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.regex.compile import compile_regex
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.automata import real_vocabulary
from tests.scheduler_proc.grammar.closing.outputs import finder


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("wifi", b"wifi"),
        (r"^\d{2}-\d{2}$", b"00-00"),
        ("a*", b""),
        (r"[!-~]\.x", b"0.x"),
        ("(aa|b)(c|dd)", b"bc"),
        ("é+", "é".encode()),
    ],
)
def test_the_shortest_text(pattern: str, text: bytes) -> None:
    assert shortest_text(compile_regex(pattern)) == text


@pytest.mark.parametrize("pattern", ["(ab|a)*b", "a?b?c?d", "[ab]{3}|b", "(a|b)c+(a|b)"])
def test_no_text_is_shorter(pattern: str) -> None:
    text = shortest_text(compile_regex(pattern)).decode()
    assert re.fullmatch(pattern, text)
    shorter = ("".join(some) for size in range(len(text)) for some in product("abcd", repeat=size))
    assert not any(re.fullmatch(pattern, other) for other in shorter)


def test_patterns_are_found_wherever_they_are() -> None:
    inner = {"items": {"pattern": 'say "a"'}, "patternProperties": {"^x-": {"pattern": "b|cc"}}}
    constraint = schema({"properties": {"pattern": inner, "other": {"pattern": "wifi"}}})
    assert sorted(texts_of(constraint)) == [b"b", rb"say \"a\"", b"wifi", b"x-"]
    tag = {"structures": [{"begin": "<a>", "schema": {"pattern": "in a tag"}, "end": "</a>"}]}
    assert texts_of(Constraint("structural_tag", json.dumps(tag))) == [b"in a tag"]
    assert texts_of(Constraint("regex", "a+")) == []


def test_what_is_not_looked_at() -> None:
    bad = ["(", "a" * (LONGEST_PATTERN + 1), "[ab]*a[ab]{14}", "a*"]
    assert texts_of(schema({"anyOf": [{"pattern": one} for one in bad]})) == []
    many = [{"pattern": f"t{i}"} for i in range(MOST_PATTERNS + 5)]
    assert len(texts_of(schema({"anyOf": many}))) == MOST_PATTERNS


@pytest.mark.parametrize("pattern", ["wifi", r"\d{4}-\d{2}", "[a-z]+@x[.]org"])
def test_a_pattern_anywhere_in_a_text_has_a_completion(pattern: str) -> None:
    value = {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": pattern}, "n": {"type": "integer"}},
        "required": ["name", "n"],
    }
    compiled = compile_llguidance(schema(value), real_vocabulary())
    found = finder().find_ahead(compiled.start(), texts=texts_of(schema(value)))
    assert found is not None
    text = b"".join(real_vocabulary().token_bytes[i] for i in found)
    assert re.search(pattern, json.loads(text)["name"])
    start = compiled.start()
    start.accept(found)
    assert start.is_accepting()
