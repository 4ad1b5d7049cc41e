"""Strict forms of schemas and patterns, and answers taken back to the original form."""

import json
import random
import re
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from lang.backends.schemas.gemini import response_schema
from lang.backends.schemas.strict import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    Rules,
    portable_pattern,
    strict_pattern,
    strict_schema,
)
from lang.errors import UnsupportedError
from lang.values.instances import instance_check
from lang.values.structured import schema_of
from tests.lang.providers.formats import _STRICT, GeminiFormat, strict_fault
from tests.running.profiles import seeds

KINDS: list[Any] = [int, str, float, bool, list[int], int | None, dict[str, Any]]


def _random_type(rng: random.Random, depth: int, names: list[str]) -> Any:
    """A type of structs, lists and unions, with optional members of all kinds."""
    choice = rng.randrange(7 if depth else 3)
    if choice < 3:
        return rng.choice([int, str, bool, int | None, list[str]])
    if choice == 3:
        return list[_random_type(rng, depth - 1, names)]  # type: ignore[misc]
    if choice == 6:  # a union, whose members may be the same but for tag and types
        branches = [_random_struct(rng, depth, names, is_tagged=True) for _ in range(2)]
        return branches[0] | branches[1]
    made = _random_struct(rng, depth, names)
    return made | None if choice == 5 else made


def _random_struct(
    rng: random.Random, depth: int, names: list[str], *, is_tagged: bool = False
) -> Any:
    fields: list[Any] = []
    for number in range(rng.randrange(1, 4)):
        kind = _random_type(rng, depth - 1, names)
        name = f"m{number}"
        default = rng.random() < 0.5
        given = msgspec.field(default_factory=lambda: "left out")
        fields.append((name, kind, given) if default else (name, kind))
    names.append("")
    title = f"T{len(names)}"
    tag = title if is_tagged else None
    return msgspec.defstruct(title, fields, kw_only=True, omit_defaults=True, tag=tag)


def _random_value(rng: random.Random, schema: Any, root: Any) -> Any:
    """A value of a strict schema, as a provider writes it: all members, null where it may be."""
    if "$ref" in schema:
        return _random_value(rng, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return _random_value(rng, rng.choice(schema["anyOf"]), root)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    match schema["type"]:
        case "object":
            found = schema["properties"].items()
            return {name: _random_value(rng, part, root) for name, part in found}
        case "array":
            return [_random_value(rng, schema["items"], root) for _ in range(rng.randrange(3))]
        case "string":
            return rng.choice(["", "a", "null"])
        case "integer":
            return rng.randrange(9)
        case "boolean":
            return rng.random() < 0.5
        case kind:
            assert kind == "null"
            return None


@pytest.mark.parametrize("seed", seeds(60))
def test_what_a_strict_mode_writes_is_an_instance_of_the_original(seed: int) -> None:
    rng = random.Random(seed)
    kind = _random_type(rng, 3, [])
    source, convert = schema_of(kind)
    check = instance_check(source)
    for rules in (OPENAI, ANTHROPIC, GEMINI):
        strict = strict_schema(source, rules)
        assert strict_fault(strict.schema, _STRICT | {"minLength", "maxLength"}) is None
        for _ in range(5):
            written = json.dumps(_random_value(rng, strict.schema, strict.schema))
            text = strict.text_of(written)
            check(text)
            convert(text)
        if not rules.has_references:
            assert GeminiFormat()._schema_fault(response_schema(strict.schema)) is None


def test_branches_of_a_union_are_told_apart_by_their_types() -> None:
    def branch(kind: str, other: Any, *required: str) -> Any:
        properties = {"x": {"type": kind}, "y": {"type": other}}
        return {"type": "object", "properties": properties, "required": list(required)}

    missing, null = (
        branch("integer", "integer", "x"),
        branch("string", ["integer", "null"], "x", "y"),
    )
    source = json.dumps({"anyOf": [missing, null]})
    strict = strict_schema(source, OPENAI)
    assert strict.text_of('{"value": {"x": 1, "y": null}}') == '{"x":1}'
    assert strict.text_of('{"value": {"x": "1", "y": null}}') == '{"x":"1","y":null}'


def test_formats_are_those_of_the_provider() -> None:
    formats = ("date-time", "date", "uuid", "uri", "regex")
    members = {name: {"type": "string", "format": name} for name in formats}
    schema = {"type": "object", "properties": members, "required": list(formats)}
    for rules, taken in (
        (OPENAI, {"date-time", "date", "uuid"}),
        (ANTHROPIC, {"date-time", "date", "uuid", "uri"}),
        (GEMINI, {"date-time"}),
    ):
        made = strict_schema(json.dumps(schema), rules).schema["properties"]
        assert {name for name, part in made.items() if "format" in part} == taken


class Node(Struct):
    value: int
    next: "Node | None" = None


def test_types_that_hold_themselves() -> None:
    source, convert = schema_of(Node)
    strict = strict_schema(source, OPENAI)
    assert strict_fault(strict.schema, _STRICT) is None
    text = strict.text_of('{"value": 1, "next": {"value": 2, "next": null}}')
    assert convert(text) == Node(1, Node(2))
    for rules in (ANTHROPIC, GEMINI):
        with pytest.raises(UnsupportedError, match="holds itself"):
            strict_schema(source, rules)


def test_an_answer_that_is_nested_too_deeply_is_left_as_it_is() -> None:
    strict = strict_schema(schema_of(Node)[0], OPENAI)
    answer = '{"value":1,"next":' * 800 + "null" + "}" * 800
    assert strict.text_of(answer) == answer


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "without a type"),
        ({"type": "object"}, "no fixed names"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "no fixed names"),
        ({"type": "array"}, "no one schema"),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, "no one schema"),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "allOf"),
        ({"enum": [[1]]}, "array or object"),
        ({"$ref": "https://example.org/schema"}, "reference"),
        ({"type": "array", "items": True}, "no one schema"),
        ({"anyOf": [{"type": "string"}, {}]}, "at /anyOf/1"),
    ],
)
@pytest.mark.parametrize("rules", [OPENAI, ANTHROPIC, GEMINI])
def test_what_has_no_strict_form_is_refused_with_its_place(
    schema: Any, words: str, rules: Rules
) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        strict_schema(json.dumps(schema), rules)
    assert rules.provider in str(caught.value) and caught.value.param == "json_schema"


def test_keywords_that_a_provider_lacks_are_dropped() -> None:
    text = {"type": "string", "minLength": 2, "pattern": "^(?=a)", "contentEncoding": "base64"}
    number = {"type": "integer", "minimum": 1, "default": 3}
    schema = {
        "type": "object",
        "properties": {"a": text, "b": number, "c": {"type": "array", "items": number}},
        "required": ["a", "b", "c"],
    }
    schema["properties"]["c"]["minItems"] = 3  # type: ignore[index]
    made = strict_schema(json.dumps(schema), ANTHROPIC).schema["properties"]
    assert made["a"] == {"type": "string"} and made["b"] == {"type": "integer"}
    assert made["c"]["minItems"] == 1
    made = strict_schema(json.dumps(schema), OPENAI).schema["properties"]
    assert made["b"] == {"type": "integer", "minimum": 1}


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        (r"(?P<a>[a-z]+)-\d{2}", "ab-12"),
        (r"[(?P<x>]+", "(P<"),
        (r"\(\?P<x>", "(?P<x>"),
        (r"(?:a|b)*?c", "abc"),
        (r"[^]a]\[(x)", "b[x"),
        (r"[]\b]+", "]"),
    ],
)
def test_patterns_without_names(regex: str, text: str) -> None:
    made = portable_pattern(regex)
    assert "?P<" not in made.replace("[(?P<x>]", "").replace(r"\(\?P<x>", "")
    assert re.fullmatch(regex, text) and re.fullmatch(made, text)
    strict = strict_pattern(regex, OPENAI)
    assert strict.text_of(json.dumps({"value": text})) == text
    assert re.search(strict.schema["properties"]["value"]["pattern"], text)


@pytest.mark.parametrize("regex", [r"\bword", r"(?=a)b", r"(a)\1", r"(?i)a", r"a(?<!b)", r"a\Z"])
def test_patterns_that_only_python_has_are_refused(regex: str) -> None:
    with pytest.raises(UnsupportedError, match="at character"):
        portable_pattern(regex)


def test_answers_of_another_form_are_left_as_they_are() -> None:
    strict = strict_schema('{"type": "array", "items": {"type": "integer"}}', OPENAI)
    for answer in ("[1]", '{"value": [1], "more": 2}', '{"value": [1', "", "null"):
        assert strict.text_of(answer) == answer
    assert strict.text_of('{"value": [1, 2]}') == "[1,2]"
    assert strict_pattern("a", OPENAI).text_of('{"value": 3}') == '{"value": 3}'
