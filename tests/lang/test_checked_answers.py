"""Answers of servers that may have ignored a constraint are checked here."""

import json
import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lang as sgl
from lang.backends.base import Capabilities
from lang.values.instances import instance_check
from lang.values.matching import matcher_of
from srt.wire.constraint import GrammarError
from tests.lang.fakes import FakeBackend

POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {}}, "required": ["x"]}
CLOSED = POINT | {"additionalProperties": False}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"type": "array", "items": {"anyOf": [{"const": 1}, {"$ref": "#"}]}}},
}
NEWEST = "https://json-schema.org/draft/2020-12/schema"
DIGITS, NESTED = "[0-9]{1,3}", 'root ::= "(" root ")" | "x"'
LARK = 'start: "yes" | NAME\nNAME: /[A-Z][a-z]+/'


def answered(text: str, gen: Any, *, finish: str = "stop", enforces: bool = False) -> Any:
    backend = FakeBackend(lambda *_: text, score=False)
    backend.capabilities = Capabilities(constraints=True, enforces=enforces)
    backend.finish = finish
    return sgl.function(lambda s: s.__iadd__("Q: " + gen)).run(backend=backend)


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_breaks_its_constraint_is_an_error(stream: bool) -> None:
    backend = FakeBackend(lambda *_: "hello", score=False)
    backend.capabilities = Capabilities(constraints=True, enforces=False)

    def body(s: Any) -> None:
        s += "Q: " + sgl.gen("a", regex=DIGITS)

    state = sgl.function(body).run(backend=backend, stream=stream)
    with pytest.raises(sgl.ProgramError, match="regex, which the server may have ignored"):
        _ = state["a"]
    error = state.error()
    assert isinstance(error, sgl.AnswerError) and error.text == "hello"
    assert state.text("keep") == "Q: hello"


@pytest.mark.parametrize(
    ("arguments", "right", "wrong"),
    [
        ({"regex": DIGITS}, "12", "1234"),
        ({"regex": "(?P<n>[0-9]+) apples"}, "3 apples", "three apples"),
        ({"ebnf": NESTED}, "((x))", "((x)"),
        ({"ebnf": LARK}, "Ada", "ada"),
        ({"grammar": sgl.g.text("a") + sgl.g.regex("b+")}, "abb", "aa"),
        ({"json_schema": json.dumps(CLOSED)}, '{"y": 1, "x": 2}', '{"x": 2, "z": 1}'),
        ({"schema": CLOSED}, '{"x": 2}', '{"y": 2}'),
        ({"dtype": int}, "12", "twelve"),
    ],
)
def test_each_kind(arguments: dict[str, Any], right: str, wrong: str) -> None:
    gen = sgl.gen("a", **arguments)
    assert answered(right, gen).error() is None
    assert isinstance(answered(wrong, gen).error(), sgl.AnswerError)
    if "dtype" not in arguments and "schema" not in arguments:
        assert answered(wrong, gen, enforces=True).error() is None


def test_a_text_that_was_cut() -> None:
    date = sgl.gen("a", regex="[0-9]{4}-[0-9]{2}", max_tokens=5)
    assert answered("2024-", date, finish="length")["a"] == "2024-"
    for text, why in (("2024-", "stop"), ("May 1", "length")):
        assert isinstance(answered(text, date, finish=why).error(), sgl.AnswerError)
    value = sgl.gen("a", json_schema=json.dumps(CLOSED), max_tokens=5)
    cut = answered('{"x": 2', value, finish="length").error()
    assert isinstance(cut, sgl.AnswerError) and "cut at max_tokens=5" in str(cut)
    # A stop may end it anywhere in a match.
    stopped = sgl.gen("a", regex="[0-9]{4}-[0-9]{2}", stop="-")
    assert answered("2024", stopped)["a"] == "2024"
    for text in ("May", "202"):
        assert isinstance(answered(text, stopped).error(), sgl.AnswerError)
    error = answered("x" * 9999, sgl.gen("a", regex=DIGITS)).error()
    assert error.text == "x" * 9999 and len(str(error)) < 2000


def test_what_cannot_be_checked_is_refused_before_it_is_asked() -> None:
    for field, source in (
        ("json_schema", '{"$ref": "https://example.com/schema"}'),
        ("json_schema", '{"unevaluatedProperties": false, "patternProperties": {}}'),
        ("json_schema", "{"),
        ("ebnf", "start: nowhere"),
    ):
        state = answered("x", sgl.gen("a", **cast("Any", {field: source})))
        error = state.error()
        assert isinstance(error, sgl.UnsupportedError) and error.param == field
        assert len(state.trace()) == 0


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (True, "1", None),
        (False, None, "1"),
        (TREE, "[1, [1, []]]", "[1, [2]]"),
        ({"type": ["integer", "null"]}, "3.0", "true"),
        ({"enum": [1, "a", {"b": [True]}]}, '{"b": [true]}', '{"b": [1]}'),
        ({"const": 1}, "1.0", "true"),
        ({"minimum": 1, "exclusiveMaximum": 3, "multipleOf": 0.1}, "2.3", "3"),
        ({"multipleOf": 0.01}, "4.35", "4.355"),
        ({"minLength": 2, "maxLength": 3, "pattern": "^ä"}, '"äb"', '"bä"'),
        ({"pattern": "b"}, '"abc"', '"ac"'),
        ({"items": {"type": "string"}, "minItems": 1, "maxItems": 2}, '["a"]', '["a", 1]'),
        ({"prefixItems": [{"const": 1}], "items": False}, "[1]", "[1, 2]"),
        ({"items": [{"const": 1}], "additionalItems": False}, "[1]", "[1, 2]"),
        (
            {"uniqueItems": True},
            '[1, true, [1], [true], "1"]',
            '[{"a": 1, "b": 2}, {"b": 2, "a": 1.0}]',
        ),
        ({"items": {"$ref": "#"}, "$schema": NEWEST, "pattern": r"^\p{L}"}, '["ä"]', '["1"]'),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}},
            '{"b": 1}',
            '{"a": 1}',
        ),
        (
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            '{"a": 1}',
            '{"b": 1}',
        ),
        ({"pattern": "^(a+)+$", "nullable": True, "x-mine": 1}, '"aa"', f'"{"a" * 99}b"'),
        ({"type": "number"}, "1e308", "1e309"),
        ({"contains": {"const": 1}, "maxContains": 1}, "[2, 1]", "[1, 1]"),
        ({"patternProperties": {"^x": {"type": "null"}}}, '{"x1": null}', '{"x1": 1}'),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
            '{"a": 1}',
            '{"b": 1}',
        ),
        ({"propertyNames": {"maxLength": 1}}, '{"a": 1}', '{"ab": 1}'),
        ({"minProperties": 1, "maxProperties": 1}, '{"a": 1}', "{}"),
        ({"dependentRequired": {"a": ["b"]}}, '{"b": 1}', '{"a": 1}'),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, '{"b": 1}', '{"a": 1}'),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, "2", "3"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "3", "2"),
        ({"not": {"type": "null"}}, "1", "null"),
        ({"if": {"const": 1}, "then": False, "else": {"const": 2}}, "2", "1"),
        ({"$defs": {"a/b": {"const": 1}}, "$ref": "#/$defs/a~1b"}, "1", "2"),
        ({"format": "date", "title": "an annotation"}, '"no date"', "{"),
        ({}, "[]", "NaN"),
    ],
)
def test_instances_of_schemas(schema: Any, right: str | None, wrong: str | None) -> None:
    check = instance_check(json.dumps(schema))
    if right is not None:
        check(right)
    if wrong is not None:
        with pytest.raises(ValueError):
            check(wrong)


def test_where_an_instance_is_wrong() -> None:
    check = instance_check(json.dumps({"properties": {"a/b": {"items": {"type": "string"}}}}))
    with pytest.raises(ValueError, match='the value at /a~1b/1 does not fit type "string"'):
        check('{"a/b": ["x", 1]}')


@pytest.mark.parametrize(
    "schema",
    [1, {"type": "text"}, {"$ref": "#/nowhere"}, {"$ref": "#x"}, {"minimum": "1"}, {"enum": 1},
     {"allOf": {}}, {"properties": []}, {"pattern": "("}, {"required": [1]}, {"$dynamicRef": "#a"},
     {"items": {"$ref": "http://127.0.0.1/x"}}, {"$ref": "#/mine", "mine": {"type": "text"}},
     {"$ref": "#/required", "required": ["a"]}],
)  # fmt: skip
def test_schemas_that_are_wrong(schema: Any) -> None:
    with pytest.raises(GrammarError):
        instance_check(json.dumps(schema))


def test_what_is_said_of_a_large_value_or_keyword_is_short() -> None:
    check = instance_check(json.dumps({"enum": list(range(1000)), "x": {"$schema": 1}}))
    with pytest.raises(ValueError, match=r"^the value does not fit enum$"):
        check(json.dumps("x" * 100_000))


def test_a_value_that_is_nested_deeply_is_an_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        instance_check(json.dumps(TREE))("[" * 100_000 + "]" * 100_000)


def test_a_text_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lang.values.matching.MAX_CPU_S", 0.01)
    with pytest.raises(ValueError, match="takes too long"):
        matcher_of("regex", "(.{1,1000}b){1,500}").reads("ab" * 20_000)


@given(st.text("ab\n é", max_size=6))
def test_a_regex_matches_what_res_fullmatch_does(text: str) -> None:
    pattern = r"(a|b)*(é|\n)?[^a]{0,2}"
    found = matcher_of("regex", pattern).reads(text, to_the_end=True)
    assert found == (re.fullmatch(pattern, text) is not None)
