"""The regex of a flat schema has exactly the language of the grammar that it replaces."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.grammar.schema import prepare
from tests.running.profiles import examples
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher

Schema = dict[str, Any]

leaves = st.one_of(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "maxLength": 3},
            {"type": "string", "pattern": '^[^"\\\\a]{1,2}$'},
            {"type": "string", "format": "date"},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "integer"},
            {"type": "number"},
            {"type": ["integer", "null"]},
            {"enum": ["a", 'q"\n', 1, None, [1, "x"]]},
            {"const": {"a": 1, "b": []}},
        ]
    ),
    st.builds(
        lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width},
        st.integers(0, 2000),
        st.integers(0, 2000),
    ),
    st.builds(lambda low: {"type": "integer", "exclusiveMinimum": low}, st.integers(0, 200)),
)


def objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    names = st.sampled_from(["a", "b", 'c"', "\u00e9"])
    return st.builds(
        lambda members, required: {
            "type": "object",
            "properties": members,
            "required": [name for name in members if name in required],
            "additionalProperties": False,
        },
        st.dictionaries(names, inner, max_size=3),
        st.sets(names),
    )


def arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.builds(
        lambda prefix, items, least, more: {
            "type": "array",
            **({"prefixItems": prefix} if prefix else {}),
            "items": items,
            "minItems": least,
            **({} if more is None else {"maxItems": least + more}),
        },
        st.lists(inner, max_size=2),
        inner,
        st.integers(0, 3),
        st.none() | st.integers(0, 2),
    )


schemas = st.recursive(leaves, lambda inner: objects(inner) | arrays(inner), max_leaves=5)


def check_same_language(schema: Schema, whitespace: str, seed: int) -> None:
    prepared = prepare(json.dumps(schema), whitespace)
    if prepared.regex is None:
        return
    regex, matcher = re.compile(prepared.regex, re.ASCII), ByteMatcher(prepared.grammar)
    rng = random.Random(seed)
    for _ in range(4):
        text = matcher.sample(rng, size=150)
        if text is None:
            continue
        assert regex.fullmatch(text), text
        for changed in changes(text, rng):
            assert bool(regex.fullmatch(changed)) == matcher.accepts(changed), changed


def changes(text: str, rng: random.Random) -> list[str]:
    """Texts that differ from `text` a little."""
    alphabet = '{}[]",:\\ \n019-.eEtrufalsn\u00e9\x7fabc+'
    found = []
    for _ in range(12):
        at = rng.randrange(len(text) + 1)
        found.append(text[:at] + text[at + rng.randrange(2) :])
        found.append(text[:at] + rng.choice(alphabet) + text[at + rng.randrange(2) :])
    return found


@settings(max_examples=examples(40))
@given(schemas, st.sampled_from(["compact", "free"]), st.integers(0, 1000))
def test_the_regex_has_the_language_of_the_grammar(
    schema: Schema, whitespace: str, seed: int
) -> None:
    check_same_language(schema, whitespace, seed)


def test_a_record_of_fields_is_flat() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    regex = prepare(json.dumps(schema), "compact").regex
    assert regex is not None
    assert re.fullmatch(regex, '{"name":"Jos\u00e9 \\"x\\"","age":31}')
    assert not re.fullmatch(regex, '{"name":"x","age":-1}')
    assert not re.fullmatch(regex, '{"name":"x", "age":1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "array"},
        {"type": "number", "minimum": 0.5},
        {"type": "string", "maxLength": 5000},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
    ],
)
def test_what_is_open_recursive_or_large_is_not_flat(schema: Schema) -> None:
    assert prepare(json.dumps(schema), "compact").regex is None
