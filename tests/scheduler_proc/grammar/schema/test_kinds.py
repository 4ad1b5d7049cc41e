"""Two hundred schemas that only a grammar can express; each judges as the package jsonschema does.

The package comes with litellm; without it the tests are skipped. A fixed seed draws the schemas.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from bench.schemas import OrderSearch, compile_ours
from scheduler_proc.grammar.schema import prepare
from tests.running.profiles import examples

jsonschema = pytest.importorskip("jsonschema")

SEED, SCHEMAS, INSTANCES = 16, 9 * examples(4), 24
WORDS = ["a", "b", "ab", "ba", "abc", "x-1", "x-ab", "id", "name", "zeta", "y", "q", "r1", "r2"]
SCALARS: list[Any] = [None, True, False, 0, 1, 2, 3, 7, -1, 1.5, -2.25, 10.5, *WORDS]
PATTERNS = ["^a", "b$", "^x-", "a.*b", "^[a-z]+$", "[0-9]", "^.{2,3}$"]
TYPES = [{"type": "string"}, {"type": "integer"}, {"type": "null"}, {"type": "number"}]

Draw = random.Random


def one_type(draw: Draw) -> dict[str, Any]:
    return draw.choice([*TYPES, {"enum": draw.sample(SCALARS, 3)}, {"minLength": 2}])


def distinct(draw: Draw) -> dict[str, Any]:
    """uniqueItems over so many values that their arrangements cannot be written out."""
    items: Any = {"enum": draw.sample(SCALARS, draw.randrange(6, 14))}
    if draw.random() < 0.3:
        items = {"type": "integer", "minimum": -1, "maximum": draw.randrange(6, 40)}
    schema = {"type": "array", "uniqueItems": True, "items": items, "minItems": draw.randrange(3)}
    if draw.random() < 0.4:
        schema["maxItems"] = draw.randrange(2, 5)
    if draw.random() < 0.3:
        some = {"enum": items["enum"][:3]} if "enum" in items else {"minimum": 3}
        schema |= {"contains": some, "minContains": draw.randrange(3)}
    if draw.random() < 0.3:
        schema["prefixItems"] = [{"enum": draw.sample(SCALARS, 2)}]
    return schema


def some_items(draw: Draw) -> dict[str, Any]:
    """contains, once or twice, in arrays without a bound."""
    parts = []
    for _ in range(draw.randrange(1, 3)):
        part: dict[str, Any] = {"contains": one_type(draw), "minContains": draw.randrange(1, 4)}
        if draw.random() < 0.4:
            part["maxContains"] = part["minContains"] + draw.randrange(2)
        parts.append(part)
    schema = {"type": "array", "allOf": parts, "minItems": draw.randrange(3)}
    if draw.random() < 0.3:
        schema |= {"prefixItems": [one_type(draw)], "unevaluatedItems": one_type(draw)}
    return schema


def no_pattern(draw: Draw) -> dict[str, Any]:
    without, pattern = draw.sample(PATTERNS, 2)
    more: list[dict[str, Any]] = [{}, {"minLength": 2}, {"pattern": pattern}]
    return {"type": "string", "not": {"pattern": without}, **draw.choice(more)}


def no_integer(draw: Draw) -> dict[str, Any]:
    each: list[dict[str, Any]] = [{}, {"minimum": -2}, {"maximum": 10}, {"exclusiveMinimum": 1}]
    bounds = draw.choice(each)
    return {"not": {"type": draw.choice(["integer", ["integer", "string"]])}, **bounds}


def patterns_in_common(draw: Draw) -> dict[str, Any]:
    named = {pattern: one_type(draw) for pattern in draw.sample(PATTERNS, draw.randrange(2, 4))}
    schema: dict[str, Any] = {"type": "object", "patternProperties": named}
    if draw.random() < 0.5:
        schema["additionalProperties"] = draw.choice([False, one_type(draw)])
    if draw.random() < 0.5:
        schema["properties"] = {name: one_type(draw) for name in draw.sample(WORDS, 2)}
    return schema


def names(draw: Draw) -> dict[str, Any]:
    conditions: list[dict[str, Any]] = [
        {"minLength": 2}, {"not": {"enum": draw.sample(WORDS, 3)}}, {"maxLength": 3},
        {"not": {"pattern": draw.choice(PATTERNS)}}, {"pattern": draw.choice(PATTERNS)},
    ]  # fmt: skip
    schema: dict[str, Any] = {"type": "object"}
    schema |= {"propertyNames": {"allOf": draw.sample(conditions, 2)}}
    if draw.random() < 0.4:
        schema |= {"patternProperties": {"a": one_type(draw)}, "unevaluatedProperties": False}
    return schema


def numbers_of_members(draw: Draw) -> dict[str, Any]:
    listed = {name: one_type(draw) for name in draw.sample(WORDS, 10)}
    bounds = {"minProperties": draw.randrange(2, 4), "maxProperties": draw.randrange(4, 7)}
    return {"type": "object", "properties": listed, "additionalProperties": False, **bounds}


def not_closed(draw: Draw) -> dict[str, Any]:
    closed: dict[str, Any] = {
        "type": "object",
        "properties": {name: {} for name in draw.sample(WORDS, 3)},
        "additionalProperties": False,
    }
    value = {name: draw.choice(SCALARS) for name in draw.sample(WORDS, 2)}
    inner = draw.choice([closed, {"propertyNames": {"pattern": "^a"}}, {"const": value}])
    return {"type": "object", "not": inner, "properties": {draw.choice(WORDS): one_type(draw)}}


def one_of_many(draw: Draw) -> dict[str, Any]:
    parts = [patterns_in_common(draw), some_items(draw), no_pattern(draw), no_integer(draw)]
    listed = {name: draw.choice(parts) for name in draw.sample(WORDS, 2)}
    return {"type": "object", "properties": {**listed, "a": draw.choice(parts)}, "required": ["a"]}


KINDS: list[Callable[[Draw], dict[str, Any]]] = [
    distinct, some_items, no_pattern, no_integer, patterns_in_common, names, numbers_of_members,
    not_closed, one_of_many,
]  # fmt: skip


def instance(draw: Draw, schema: dict[str, Any], depth: int = 0) -> Any:
    """A value of the type that the schema is mostly about."""
    kind = schema.get("type")
    if kind == "array":
        pool = schema.get("items", {}).get("enum", SCALARS)
        return [draw.choice(pool) for _ in range(draw.randrange(6))]
    if kind == "object":
        listed = schema.get("properties", {})
        chosen = draw.sample(WORDS, draw.randrange(6)) + [n for n in listed if draw.random() < 0.5]
        return {name: instance(draw, listed.get(name, {}), depth + 1) for name in chosen}
    if kind == "string":
        return draw.choice(WORDS)
    return draw.choice(SCALARS if depth else [*SCALARS, 1e-7, -2.5e-8, [], {"a": 1}])


@pytest.mark.draws
def test_what_only_a_grammar_can_say() -> None:
    draw = random.Random(SEED)
    seen = {True: 0, False: 0}
    for number in range(SCHEMAS):
        schema = KINDS[number % len(KINDS)](draw)
        validator = jsonschema.Draft202012Validator(schema)
        compiled = compile_ours(schema)
        search = OrderSearch(compiled.matcher, schema, compiled.orders)
        for _ in range(INSTANCES):
            value = instance(draw, schema)
            valid = validator.is_valid(value)
            seen[valid] += 1
            assert search.accepts(value) == valid, (schema, value)
    assert min(seen.values()) > 0.2 * SCHEMAS * INSTANCES, seen


def test_both_kinds_of_whitespace_give_one_language() -> None:
    from tests.scheduler_proc.grammar.byte_matcher import compact, schema_matcher

    draw = random.Random(SEED)
    for number in range(len(KINDS) * 2):
        schema = KINDS[number % len(KINDS)](draw)
        assert prepare(json.dumps(schema), "free").regex is None
        free, tight = schema_matcher(schema, "free"), schema_matcher(schema)
        for _ in range(INSTANCES):
            text = compact(instance(draw, schema))
            assert free.accepts(text) == tight.accepts(text), (schema, text)
            spaced = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
            assert free.accepts(spaced) == tight.accepts(text), (schema, spaced)
