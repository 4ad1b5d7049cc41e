"""Completions that are found: whole, short, and the same each time."""

import json
import re
from typing import Any

import numpy as np
import pytest

from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.automata import BYTES, mask_ids, real_vocabulary
from tests.scheduler_proc.grammar.closing.outputs import (
    CONSTRAINTS,
    compiled,
    finder,
    first_witness,
)

# A short text for each constraint, and how many tokens more than it takes are allowed.
SHORT = {
    "anything": "0",
    "an open object": "{}",
    "a list of itself": '{"names":[]}',
    "required": '{"width":0,"height":0,"depth":0,"name":"","is_new":true}',
    "objects in a list": '[{"id":0,"tags":[]},{"id":0,"tags":[]}]',
    "enum": '{"a":"red"}',
    "formats": '{"at":"2000-01-01T00:00:00Z"}',
    "lengths": '["assertIsInstanceeeee"]',
    "a pattern": '{"id":"facedfac-eeee"}',
    "a choice": '{"x":0}',
    "sums": "0.;",
    "lines": "- a\nend",
    "tags": "",
    "blanks": '{"width":0,"height":0,"depth":0,"name":"","is_new":true}',
}
SLACK = 4


def text_of(tokens: list[int], vocabulary: TokenVocabulary) -> str:
    return b"".join(vocabulary.token_bytes[i] for i in tokens).decode()


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_completion_is_whole_and_short(name: str) -> None:
    grammar = compiled(name).start()
    witness = first_witness(compiled(name))
    before = np.zeros(real_vocabulary().mask_width, np.uint32)
    after = before.copy()
    grammar.fill(before)
    assert finder().find_ahead(grammar) == witness  # the same again, on another copy
    grammar.fill(after)
    assert np.array_equal(before, after)  # it has stayed where it was
    grammar.accept(witness)
    assert grammar.is_accepting()
    shortest = finder().spelled(SHORT[name].encode())
    assert shortest is not None
    assert len(witness) <= len(shortest) + SLACK


def test_of_the_hint_what_still_completes_is_taken() -> None:
    grammar = compiled("required").start()
    start = finder().spelled(b'{"width":0,"height":')
    hint = finder().spelled(b'1,"depth":22,"name":"a word","is_new":false}')
    assert start is not None
    assert hint is not None
    grammar.accept(start)
    assert finder().find(grammar, hint) == hint
    grammar.accept(hint[:2])
    assert finder().find(grammar, hint) == hint[2:]


def test_a_hint_is_the_end_of_what_has_begun_before_it() -> None:
    grammar = compiled("a list of itself").start()
    start = finder().spelled(b'{"next":{"names":["a')
    hint = finder().spelled(b'"]},"names":["only this"]}')
    assert start is not None
    assert hint is not None
    grammar.accept(start)
    found = finder().find(grammar, hint)
    assert found == hint
    inner = finder().spelled(b'"]')
    assert inner is not None
    grammar.accept(inner)
    found = finder().find(grammar, hint)
    assert found is not None
    grammar.accept(found)
    assert grammar.is_accepting()


HARD: dict[str, tuple[dict[str, Any], str]] = {
    "an address": ({"format": "email"}, r"[^@]+@[^@]+"),
    "a link": ({"format": "uri"}, r"[A-Za-z]+:.*"),
    "a version": (
        {"pattern": r"^[a-z]+-\d{1,3}\.\d{1,3}/[a-f]{12}$"},
        r"[a-z]+-\d+\.\d+/[a-f]{12}",
    ),
    "a long text": ({"minLength": 300}, r".{300,330}"),
    "words": ({"pattern": r"^(?:[a-z]+ ){9}[a-z]+$"}, r"([a-z]+ ){9}[a-z]+"),
}


@pytest.mark.parametrize("name", HARD)
def test_texts_that_only_some_tokens_lead_out_of(name: str) -> None:
    form, pattern = HARD[name]
    members = {"it": {"type": "string", **form}, "more": {}}
    schema = {"type": "object", "properties": members, "required": ["it"]}
    grammar = compile_llguidance(
        Constraint("json_schema", json.dumps(schema)), real_vocabulary()
    ).start()
    witness = finder().find_ahead(grammar)
    assert witness is not None
    assert re.fullmatch(pattern, json.loads(text_of(witness, real_vocabulary()))["it"])


def test_many_items_that_look_alike() -> None:
    numbers = {"type": "array", "items": {"type": "number"}, "minItems": 12}
    schema = {"type": "array", "items": numbers, "minItems": 3, "maxItems": 4}
    constraint = Constraint("json_schema", json.dumps(schema))
    grammar = compile_llguidance(constraint, real_vocabulary()).start()
    witness = finder().find_ahead(grammar)
    assert witness is not None
    assert [len(row) for row in json.loads(text_of(witness, real_vocabulary()))] == [12] * 3


def test_what_comes_after_a_text_begins_with_it() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    constraint = Constraint("json_schema", json.dumps(schema), after="</think>")
    grammar = compile_llguidance(constraint, real_vocabulary()).start()
    witness = finder().find_ahead(grammar, b"</think>")
    assert witness is not None
    assert text_of(witness, real_vocabulary()) == '</think>{"a":""}'
    mute = TokenVocabulary.from_tokens([b"{", b"}", b"<eos>"], [2], [2])
    grammar = compile_llguidance(Constraint("regex", "[{}]+"), mute).start()
    assert WitnessFinder(mute).find_ahead(grammar, b"</think>") is not None  # nothing spells it


@pytest.mark.parametrize("name", ["required", "objects in a list", "sums"])
def test_nothing_longer_than_asked_for(name: str) -> None:
    length = len(first_witness(compiled(name)))
    grammar = compiled(name).start()
    for most in (0, 1, length // 2, length - 1, length, length + 1):
        found = finder().find(grammar, (), most)
        assert found is None or len(found) <= most
    assert finder().find(grammar, (), length) is not None
    assert finder().find(grammar, (), 1) is None


def test_an_end_that_is_here_takes_no_token() -> None:
    grammar = compiled("an open object").start()
    grammar.accept(first_witness(compiled("an open object")))
    assert finder().find(grammar, (), 0) == []


def test_a_vocabulary_of_bytes() -> None:
    schema = {"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"]}
    constraint = Constraint("json_schema", json.dumps(schema))
    grammar = compile_llguidance(constraint, BYTES).start()
    witness = WitnessFinder(BYTES).find(grammar)
    assert witness is not None
    assert re.fullmatch(r'\{"é":\d\}', text_of(witness, BYTES))


def test_a_vocabulary_that_cannot_spell_what_is_forced() -> None:
    words = TokenVocabulary.from_tokens([b"a", b"b", b"ab", b"<eos>"], [3], [3])
    grammar = compile_llguidance(Constraint("regex", "ab+c"), words).start()
    assert WitnessFinder(words).find(grammar) is None


def test_tokens_in_no_kind_are_tried_too() -> None:
    words = TokenVocabulary.from_tokens([b"\x01", b"\x02", b"\xc3", b"\xa9", b"<eos>"], [4], [4])
    grammar = compile_llguidance(Constraint("regex", "(\x01|é)\x02+é"), words).start()
    witness = WitnessFinder(words).find(grammar)
    assert witness is not None
    grammar.accept(witness)
    assert grammar.is_accepting()


def test_where_only_one_text_ends_a_string() -> None:
    grammar = compile_llguidance(Constraint("regex", "[a-z]{30}[0-9]{2}x"), BYTES).start()
    witness = WitnessFinder(BYTES).find_ahead(grammar)
    assert witness is not None
    assert re.fullmatch("[a-z]{30}[0-9]{2}x", text_of(witness, BYTES))
    row = np.zeros(BYTES.mask_width, np.uint32)
    grammar.accept(witness)
    grammar.fill(row)
    assert mask_ids(row) == list(BYTES.eos_ids)
