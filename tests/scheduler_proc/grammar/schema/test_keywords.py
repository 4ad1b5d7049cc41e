"""Every keyword of JSON Schema is enforced exactly, or refused by name and place."""

import json
import random
from typing import Any

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema import prepare
from tests.scheduler_proc.grammar.byte_matcher import compact, schema_matcher

CLOSED = {"type": "object", "additionalProperties": False}
NAME_AGE = {"name": {"type": "string"}, "age": {"type": "integer"}}

# (schema, valid instances, invalid instances)
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [None, 1, [], {"a": 1}], []),
    ({"type": ["integer", "null"]}, [1, -5, None], [1.5, "1", True]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, [0.1, 2.5, 1], [0, 2.6, -1]),
    ({"minimum": 3, "exclusiveMinimum": True, "$schema": "http://json-schema.org/draft-04/schema#"},
     [4, "x"], [3]),
    ({"allOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"}, [6, 0, -12], [2, 3, 4]),
    ({"type": "integer", "multipleOf": 0.5}, [1, 7], ["1"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "😀😀"], ["a", "abcd"]),
    ({"type": "string", "pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
    ({"type": "string", "pattern": "^[^\"]$"}, ["a", "\\"], ['"', "ab"]),
    ({"type": "string", "pattern": "^\\S$"}, ["a"], ["\ufeff", " "]),
    ({"type": "string", "pattern": "^(\\S+\\s+){4}\\S+$", "maxLength": 64},
     ["0 4 * * *", "a\tb\nc \" \\"], ["0 4 * *", " 0 4 * * *", "0 4 * * " + "9" * 57]),
    ({"type": "string", "pattern": "^\\S+(\\s+\\S+){2}$", "minLength": 6, "maxLength": 9},
     ["a b cd", "abc d efg"], ["a b c", "abcd e fgh", "abcdefg"]),
    ({"type": "array", "items": {"type": "string", "pattern": "\\s\\S+", "maxLength": 200}},
     [["a b"], [" b" * 100]], [["ab"], [" b" * 101]]),
    ({"type": "string", "pattern": "^(^foo$)$|^$"}, ["foo", ""], ["foofoo", "fo"]),
    ({"type": "string", "pattern": "\\bcat\\b", "maxLength": 9}, ["cat", "a cat!"], ["cats", "a"]),
    ({"type": "string", "pattern": "^(\\p{Extended_Pictographic}|\\p{Emoji_Component})+$"},
     ["\U0001f469\u200d\U0001f680", "1"], ["a", ""]),
    ({"type": "string", "pattern": "^(?!aws:)(?=.*x$)[a-z:]+"}, ["bx", "axx", "a x"],
     ["aws:x", "b", "9x"]),
    ({"type": "string", "pattern": "^(?=^[a-z]+$)(?!.*b$).{2,3}$", "minLength": 3}, ["abc"],
     ["ac", "acb", "ab1"]),
    ({"not": {"pattern": "^(?!a|b$).", "type": "string"}, "type": "string"}, ["", "b", "ax"],
     ["bx", "c"]),
    ({"type": "object", "patternProperties": {"^(?!x-)a?": {"type": "null"}},
      "additionalProperties": {"type": "integer"}}, [{"x-a": 1, "b": None}, {}],
     [{"x-a": None}, {"b": 1}]),
    ({"type": "object",
      "not": {"patternProperties": {"^(?!x-)a": {}}, "additionalProperties": False}},
     [{"x-a": 1}, {"b": 1, "a": 1}], [{"a": 1}, {}]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2000-02-29"],
     ["2023-02-29", "1900-02-29", "2024-13-01"]),
    ({"type": "string", "format": "ipv6"}, ["::1", "1:2::ffff:1.2.3.4"], ["1::2::3", ":::"]),
    ({"type": "string", "format": "no-such-format"}, ["anything"], [1]),
    ({"type": ["string", "null"], "format": "hostname", "maxLength": 0}, [None], ["a"]),
    ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**63 - 1}, [2**53 + 2, 2**63 - 1],
     [2**53, 2**63]),
    ({"type": "integer", "minimum": -(2**63), "maximum": -(2**53) - 1}, [-(2**53) - 2, -(2**62)],
     [-(2**53), -(2**63) - 1]),
    ({"enum": ["a", 1, {"b": [True]}], "minimum": 2}, ["a", {"b": [True]}], [1, "b"]),
    ({"const": 1.0}, [1], [True, 2]),
    # Objects
    ({**CLOSED, "properties": NAME_AGE, "required": ["name"]},
     [{"name": "x"}, {"name": "x", "age": 3}], [{"age": 3}, {"name": 1}, {"name": "x", "b": 1}]),
    ({"type": "object", "properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    ({"type": "object", "required": ["x", "y"]}, [{"x": 1, "y": None}], [{"x": 1}]),
    ({"type": "object", "minProperties": 1, "properties": {"a": {"type": "null"}}},
     [{"a": None}, {"b": 1}], [{}, {"a": 1}]),
    ({**CLOSED, "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2, "minProperties": 1},
     [{"a": 1}, {"a": 1, "c": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{"ab": 1}], [{"A": 1}]),
    ({"type": "object", "propertyNames": {"maxLength": 1}, "properties": {"ab": {}}},
     [{"a": 1}], [{"ab": 1}, {"xy": 1}]),
    ({"type": "object", "patternProperties": {"^a": {"type": "null"}},
      "properties": {"ab": {"enum": [None, 1]}}, "additionalProperties": {"type": "boolean"}},
     [{"ab": None}, {"ax": None, "b": True}], [{"ab": 1}, {"ax": True}, {"b": None}]),
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}},
      "allOf": [{"properties": {"ab": {"minimum": 2}}, "additionalProperties": False}]},
     [{"ab": 2}, {}], [{"ab": 1}, {"ab": "x"}, {"ac": 2}]),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {"b": 1}],
     [{"a": 1}]),
    ({"type": "object", "dependencies": {"a": {"properties": {"c": {"type": "null"}}}}},
     [{"c": 1}, {"c": None, "a": 1}], [{"a": 1, "c": 1}, {"c": 1, "a": 1}]),
    ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}], "type": "object",
      "unevaluatedProperties": False}, [{"a": 1, "b": 2}], [{"c": 1}]),
    ({"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
      "type": "object", "unevaluatedProperties": False},
     [{"a": 1, "b": 2}, {"b": 1}, {"a": 1}], [{"a": 1, "c": 2}]),
    ({"allOf": [{"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"$ref": "#/$defs/b"}]}],
      "$defs": {"b": {"anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]}},
      "type": "object", "unevaluatedProperties": False},
     [{"a": 1, "b": 2}, {"b": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}, {}], [{"a": 1, "d": 2}]),
    ({"allOf": [{"if": {"properties": {"a": {"type": "null"}}, "required": ["a"]}}],
      "type": "object", "unevaluatedProperties": False}, [{"a": None}, {}], [{"a": 1}]),
    ({"enum": [{"a": 1}, {"b": 1}, {}], "properties": {"a": {}}, "unevaluatedProperties": False},
     [{"a": 1}, {}], [{"b": 1}]),
    ({"enum": [[1, 2], [1], []], "prefixItems": [True], "unevaluatedItems": False}, [[1], []],
     [[1, 2]]),
    ({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 2},
     [{"x": 1, "y": 2}], [{"x": 1}, {"x": 1, "z": 2}]),
    # Arrays
    ({"type": "array", "maxItems": 1, "items": {"not": {"pattern": "^a"}, "type": "string"}},
     [[], ["b"]], [["a"], ["b", "b"]]),
    ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "integer"}},
     [[], [None, 1, 2]], [[1], [None, "x"]]),
    ({"items": [{"type": "null"}], "additionalItems": False, "type": "array"}, [[None], []],
     [[None, 1]]),
    ({"type": "array", "maxItems": 1, "uniqueItems": True}, [[1], []], [[1, 1]]),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 1},
     [["a"], ["b", "a"]], [[], ["a", "a"]]),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"type": "string"}], "items": False,
      "uniqueItems": True}, [[None, "a"]], [[None, None]]),
    ({"type": "array", "maxItems": 3, "contains": {"type": "null"}, "maxContains": 1},
     [[None], [1, None, 2]], [[], [1], [None, None]]),
    ({"type": "array", "not": {"contains": {"type": "null"}}}, [[], [1]], [[None]]),
    ({"maxItems": 3, "contains": {"type": "null"}, "maxContains": 0}, [1], [[], [1], [None]]),
    ({"maxItems": 3, "contains": {"type": "null"}, "maxContains": 0, "minContains": 0}, [[], [1]],
     [[None], [1, None]]),
    ({"dependentSchemas": {"a": {"items": {"minimum": 2}}}, "type": ["array", "object"],
      "unevaluatedItems": {"type": "string"}}, [[], ["x"], {"a": 1}], [[3], [1]]),
    ({"type": "array", "contains": {"type": "null"}}, [[None], [1, None, 2]], [[], [1, 2]]),
    ({"contains": {"type": "null"}, "minContains": 2, "maxContains": 2, "type": "array"},
     [[None, 1, None], [2, None, None]], [[None], [None, None, None]]),
    ({"type": "array", "maxItems": 1,
      "prefixItems": [{"type": "string", "not": {"pattern": "a"}}, {}]},
     [[], ["b"]], [["a"], ["b", 1]]),
    ({"type": "array", "items": {"enum": [f"v{i}" for i in range(40)]}, "uniqueItems": True,
      "minItems": 2}, [["v9", "v3"], [f"v{i}" for i in range(39, -1, -1)]],
     [["v1"], ["v1", "v2", "v1"]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}], "maxItems": 3,
      "contains": {"type": "string"}}, [[1, 1, "a"]], [[], [1], ["a"], [1, 1]]),
    ({"type": "array", "items": {"enum": list(range(63))}, "uniqueItems": True},
     [list(range(63))], [[62, 62]]),
    ({"contains": {"type": "number", "minimum": 5}, "unevaluatedItems": {"type": "string"},
      "type": "array"},
     [[6], ["a", 7, "b"]], [["a"], [1, 6]]),
    # Names
    ({"type": "object", "patternProperties": {"^a": {"type": "integer"}},
      "allOf": [{"properties": {"ab": {}}, "additionalProperties": {"minimum": 2}}]},
     [{"ab": 1, "ac": 2, "b": 3}, {"b": "x"}], [{"ac": 1}, {"ac": "x"}, {"b": 1}]),
    ({"type": "object", "patternProperties": {"^a": {"minimum": 2}, "b$": {"type": "integer"}},
      "additionalProperties": False}, [{"ab": 2, "a": "x", "b": 1}],
     [{"ab": "x"}, {"ab": 1}, {"c": 1}]),
    ({"type": "object", "propertyNames": {"minLength": 2, "not": {"enum": ["ab"]}}},
     [{"ac": 1}, {}], [{"a": 1}, {"ab": 1}]),
    ({"propertyNames": {"pattern": "a"}, "type": "object", "properties": {"a": {}},
      "unevaluatedProperties": False}, [{"a": 1}, {}], [{"b": 1}, {"ab": 1}]),
    ({"type": "object", "not": {"additionalProperties": False, "properties": {"a": {}}}},
     [{"b": 1}, {"a": 1, "b": 1}], [{}, {"a": 1}]),
    ({"not": {"enum": [{"a": 1}, [1]]}, "type": ["object", "array"]},
     [{"a": 2}, {}, {"a": 1, "b": 1}, [2], [1, 1], []], [{"a": 1}, [1]]),
    ({**CLOSED, "properties": {chr(97 + i): {} for i in range(12)}, "minProperties": 2,
      "maxProperties": 3}, [{"a": 1, "l": 1}, {"b": 1, "c": 1, "d": 1}],
     [{"a": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}]),
    # Combinations
    ({"type": "string", "not": {"pattern": "^[^\"]$"}}, ["ab", '"', ""], ["a", "\u0001", "\n"]),
    ({"not": {"type": ["integer", "string"]}, "minimum": 1}, [1.5, None], [1, 0.5, "a"]),
    ({"dependencies": {"t": {"oneOf": [
        {"properties": {"t": {"const": i}, **{f"p{i}{j}": {"type": "null"} for j in range(5)}},
         "required": ["t"], "additionalProperties": False} for i in range(6)]}}, "type": "object"},
     [{"t": 2, "p21": None}, {}], [{"t": 2, "p31": None}, {"t": 7}]),
    ({"oneOf": [{"maximum": 5, "type": "number"}, {"minimum": 3, "type": "number"}]}, [1, 6.5],
     [3, 4.5, 5]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
     [{"a": 1}, {"b": 1, "c": 2}], [{}, {"a": 1, "b": 2}]),
    ({"not": {"type": ["string", "null"]}}, [1, [], {}], ["x", None]),
    ({"type": "string", "not": {"enum": ["a", "ab"]}}, ["", "b", "abc"], ["a", "ab"]),
    ({"type": "integer", "not": {"const": 3}}, [2, 4], [3]),
    ({"enum": ["ax", "bx"], "not": {"pattern": "^a"}}, ["bx"], ["ax"]),
    ({"type": "object", "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
      "then": {"required": ["v"]}, "else": {"properties": {"v": False}},
      "properties": {"k": {"type": "string"}, "v": {"type": "integer"}}},
     [{"k": "x", "v": 1}, {"k": "y"}, {}], [{"k": "x"}, {"k": "y", "v": 1}]),
    # References
    ({"$ref": "#/$defs/list", "$defs": {"list": {"anyOf": [{"type": "null"}, {**CLOSED,
      "properties": {"next": {"$ref": "#/$defs/list"}}, "required": ["next"]}]}}},
     [None, {"next": {"next": None}}], [{}, {"next": 1}]),
    ({"$ref": "#item", "$defs": {"x": {"$anchor": "item", "type": "null"}}, "minimum": 1},
     [None], [1]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a",
      "type": "string", "definitions": {"a": {"type": "null"}}}, [None], ["x"]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: compact(CASES[i][0])[:60])
def test_accepts_the_valid_and_rejects_the_invalid(case: int) -> None:
    schema, valid, invalid = CASES[case]
    matcher = schema_matcher(schema)
    for value in valid:
        assert matcher.accepts(compact(value)), value
    for value in invalid:
        assert not matcher.accepts(compact(value)), value


# The same for schemas that are closed by default
CLOSED_CASES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "object", "required": ["r"], "properties": {
        "a": {"$ref": "#/$defs/a"}, "o": {"type": "object"},
        "p": {"additionalProperties": True, "properties": {"q": {}}},
        "u": {"unevaluatedProperties": True, "properties": {"q": {}}}},
      "allOf": [{"properties": {"c": {}}}], "patternProperties": {"^x": {}},
      "$defs": {"a": {"type": "object", "properties": {"b": {}}}}},
     [{"a": {"b": 1}, "o": {"z": 1}, "p": {"z": 1}, "u": {"z": 1}, "c": 2, "r": 0, "x1": 0}],
     [{"r": 0, "z": 1}, {"a": {"z": 1}, "r": 0}]),
    ({"oneOf": [
        {"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}},
         "required": ["b"]}]}, [{"a": 1}, {}], [{"a": 1, "b": 1}, {"c": 1}]),
    ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    ({"type": "object"}, [{}, {"a": 1}], []),
    ({"type": "object", "patternProperties": {"^x": {"type": "null"}}}, [{"a": 1}], [{"x": 1}]),
    ({"properties": {"a": {"type": "object", "properties": {},
      "additionalProperties": True}}}, [{"a": {"b": 1}}], [{"b": 1}]),
    ({"x-closed": False, "properties": {"a": {}}}, [{"a": 1, "b": 1}], []),
    ({"type": "object", "anyOf": [{"properties": {"a": {"type": "null"}}},
      {"properties": {"b": {"type": "null"}}}, {"properties": {"c": {}}, "required": ["c"]}]},
     [{"a": None}, {"a": None, "b": None}, {"a": None, "b": None, "c": 1}, {"b": None, "c": 1}],
     [{"a": None, "b": 1}, {"a": None, "d": 1}]),
    ({"type": "object", "anyOf": [
        {"properties": {"t": {"const": i}, f"p{i}": {}}, "required": ["t"]} for i in range(40)]},
     [{"t": 39, "p39": 1}], [{"t": 39, "p38": 1}]),
    ({"type": "object", "properties": {"k": {"type": "string"}}, "if": {"required": ["k"]},
      "then": {"properties": {"v": {}}}, "else": {"properties": {"w": {}}}},
     [{"k": "x", "v": 1}, {"w": 1}], [{"k": "x", "w": 1}, {"v": 1}]),
    ({"type": "object", "properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {
        "b": {}}}}}, [{"a": 1, "b": 1}, {}], [{"b": 1}, {"a": 1, "c": 1}]),
    ({"type": "object", "dependentRequired": {"a": ["b"]}},
     [{"c": 1}, {"a": 1, "b": 1, "c": 1}], [{"a": 1}]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
        "v": {"type": "integer"}, "n": {"$ref": "#/$defs/n"}}}}},
     [{"v": 1, "n": {"v": 2, "n": {}}}], [{"v": 1, "n": {"z": 2}}]),
    ({"$ref": "#/$defs/a", "properties": {"b": {}}, "$defs": {"a": {"properties": {"a": {}}}}},
     [{"b": 1, "a": 1}], [{"c": 1}]),
    ({"type": "array", "items": {"properties": {"a": {}}}}, [[{"a": 1}, {}]], [[{"b": 1}]]),
    # A name that one schema forbids may not be there with another value instead.
    ({"type": "object", "properties": {"n": {}}, "oneOf": [
        {"properties": {"e": {"type": "null"}}, "required": ["e"]},
        {"properties": {"p": {"type": "null"}}, "required": ["p"]}]},
     [{"n": 1, "e": None}, {"p": None}], [{"e": None, "p": 1}, {"n": 1}]),
    ({"type": "object", "properties": {"a": {}}, "dependentRequired": {"x": ["y"], "a": ["b"]}},
     [{"a": 1, "b": 1}, {}], [{"x": 1, "y": 1}, {"a": 1}]),
    # but where all else is forbidden
    ({"oneOf": [{"type": "object", "properties": {"a": {"const": 1}}},
                {"type": "object", "properties": {"b": {"const": 1}}}]},
     [{"a": 1, "b": 2}], [{"a": 1}, {"a": 1, "b": 1}]),
    ({"type": "object", "properties": {"a": {}}, "if": {"properties": {"b": {"const": 1}}}},
     [{"b": 1}, {"a": 1}], [{"c": 1}]),
    ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["y"]},
      {"required": ["z"]}]}, [{"y": 1, "z": 1}, {"a": 1, "z": 1}], [{"a": 1}, {"a": 1, "q": 1}]),
    ({"type": "object", "anyOf": [{"anyOf": [{"properties": {n: {"const": 1}}} for n in "abc"]},
      {"properties": {"d": {"const": 1}}}]}, [dict.fromkeys("abcd", 1), {"b": 1, "d": 1}],
     [{"a": 1, "d": 2}, {"e": 1}]),
    ({"type": "object", "anyOf": [{"properties": {n: {}}, "required": [n]} for n in "abcdefg"]},
     [{"a": 1}, dict.fromkeys("abcdefg", 1)], [{"a": 1, "h": 1}, {}]),
    ({"type": "object", "allOf": [{"anyOf": [{"properties": {f"{n}{i}": {}}} for n in "xy"]}
      for i in range(6)]}, [{"x0": 1, "x5": 1, "y5": 1}], [{"z": 1}]),
    ({"type": "array", "items": {"type": "object", "properties": {"a": {}}},
      "enum": [[{"a": 1, "b": 2}]]}, [[{"a": 1, "b": 2}]], [[{"a": 1}]]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CLOSED_CASES)))
def test_closed_objects_have_the_names_of_all_that_applies(case: int) -> None:
    schema, valid, invalid = CLOSED_CASES[case]
    matchers = [schema_matcher(schema, closed=True)]
    if "x-closed" not in schema:
        matchers.append(schema_matcher({"x-closed": True, **schema}))
    for matcher in matchers:
        for value in valid:
            assert matcher.accepts(compact(value)), value
        for value in invalid:
            assert not matcher.accepts(compact(value)), value


REFUSED = [
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    (
        {"type": "array", "uniqueItems": True, "items": {"enum": list(range(64))}},
        "#/uniqueItems",
    ),
    (
        {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0}},
        "#/uniqueItems",
    ),
    (
        {"not": {"patternProperties": {"a": {"type": "null"}}}, "type": "object"},
        "#/not/patternProperties",
    ),
    ({"multipleOf": 0.5, "not": {"type": "integer"}}, "#/not/type"),
    (
        {"type": "object", "not": {"propertyNames": {"pattern": "^a"}}, "minProperties": 1},
        "#/not/propertyNames",
    ),
    ({"not": {"multipleOf": 2}, "type": "number"}, "#/not/multipleOf"),
    ({"properties": {"a/b": {"pattern": "(?=a)"}}}, "#/properties/a~1b/pattern"),
    ({"$ref": "http://example.com/other.json"}, "outside"),
    ({"$ref": "#"}, "refers to itself"),
    ({"$id": "http://a/b", "$ref": "//[x"}, "'//[x' is no URI"),
    ({"$id": "http://a/b", "allOf": [{"$id": "//[x"}]}, "JSON schema at #/allOf/0: $id"),
    ({"$id": "http://[x", "allOf": [{"$ref": "a"}]}, "JSON schema at #/allOf/0: $ref"),
    ({"pattern": "\\ud83d\\u0041"}, "not a character at position 0"),
    ({"pattern": "[\\ud83d\\ue000]"}, "not a character at position 1"),
    ({"$recursiveRef": "#"}, "$recursiveRef"),
    ({"type": "text"}, "'text' is not a JSON type"),
    ({"minLength": -1}, "#/minLength"),
    ({"required": True}, "#/required"),
    ({"properties": []}, "#/properties"),
    ({"allOf": [1]}, "#/allOf/0"),
    (False, "no value can be valid"),
    ({"x-closed": "no"}, "#/x-closed"),
    (
        {"x-closed": True, "properties": {}, "type": "object", "minProperties": 1},
        '"x-closed": false',
    ),
    ({"type": "string", "pattern": "b$", "not": {"pattern": "b$"}}, "no value can be valid"),
    ({"x-closed": True, "type": "string", "enum": [1]}, "no value can be valid"),
    ({"type": "string", "pattern": "^(?:^a|b$)$", "minLength": 2}, "no value can be valid"),
    ({"type": "string", "pattern": "(\\b|a)" * 50}, "the pattern is too complex"),
    ({"required": ["a"], "type": "object", "properties": {"a": {"$ref": "#"}}}, "no value"),
    ({"$schema": "http://example.com/mine"}, "$schema"),
    ({"$schema": "http://json-schema.org/draft-03/schema", "divisibleBy": 2}, "#/divisibleBy"),
    ({"$schema": "http://json-schema.org/draft-03/schema", "not": {"extends": {}}}, "/extends"),
    (
        {"allOf": [{"enum": [{"a": 1}, 1]}], "unevaluatedProperties": False},
        "#/unevaluatedProperties",
    ),
    (
        {"anyOf": [{"const": [1]}, {"type": "null"}], "unevaluatedItems": False},
        "#/unevaluatedItems",
    ),
    ({"type": "object", "minProperties": 2}, "#/minProperties"),
    ({"type": "object", "minProperties": 3, "required": ["a"]}, "#/minProperties"),
    ({"const": "\ud800"}, "#/const"),
    ({"enum": [1, [{"\udfff": 1}]]}, "#/enum"),
    ({"properties": {"\ud800": {}}}, "#/properties"),
    ({"not": {"required": ["\ud800"]}}, "#/not/required"),
    ({"dependentRequired": {"a": ["\ud800"]}}, "#/dependentRequired"),
    ({"not": {"dependencies": {"a": [1]}}}, "#/not/dependencies"),
]


@pytest.mark.parametrize(("schema", "named"), REFUSED)
def test_what_is_not_supported_is_refused_by_name_and_place(schema: Any, named: str) -> None:
    with pytest.raises(GrammarError) as caught:
        prepare(json.dumps(schema), "compact")
    assert named in str(caught.value)
    assert ("x-closed" in str(caught.value)) is ("x-closed" in named)


def test_text_that_is_no_schema_is_refused() -> None:
    for source in ("{", "[]", '{"minimum": NaN}', "1", '{"const": 1e400}', '{"enum": [[-1e400]]}'):
        with pytest.raises(GrammarError):
            prepare(source, "compact")


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63, 10**400, [{"a": 2**53 + 1}]])
def test_values_that_the_back_end_would_round_are_left_to_the_automaton(value: Any) -> None:
    flat = prepare(json.dumps({"const": value}), "compact")
    assert flat.regex is not None
    with pytest.raises(GrammarError, match="2\\^53"):
        _ = flat.grammar
    with pytest.raises(GrammarError, match="2\\^53"):
        prepare(json.dumps({"type": "object", "properties": {"a": {"const": value}}}), "compact")


def test_a_listed_name_cannot_be_spelled_past_its_condition() -> None:
    schema = {"type": "object", "properties": {"a": False, 'q"': {"type": "null"}}}
    matcher = schema_matcher(schema)
    assert not matcher.accepts('{"\\u0061":1}')
    assert not matcher.accepts('{"q\\"":1}')
    assert matcher.accepts('{"q\\"":null,"b\\"":1}')


@pytest.mark.parametrize(("char", "spellings"), [("\n", ("\\n", "\\u000a", "\\u000A")),
                                                 ("\x7f", ("\\u007f", "\\u007F"))])  # fmt: skip
def test_a_listed_name_of_two_spellings(char: str, spellings: tuple[str, ...]) -> None:
    schema = {"type": "object", "properties": {"b": False, f"a{char}": {"type": "null"}}}
    matcher = schema_matcher(schema)
    for spelling in spellings:
        assert not matcher.accepts(f'{{"a{spelling}":1}}')
        assert matcher.accepts(f'{{"c{spelling}":1}}')
    assert not matcher.accepts('{"b":1}')


def test_what_holds_for_other_names_does_not_hold_for_those_listed() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}}
    matcher = schema_matcher(schema)
    assert matcher.accepts('{"a":1,"b":null}') and not matcher.accepts('{"a":1,"b":1}')


def test_a_name_cannot_be_spelled_past_a_pattern() -> None:
    schema = {"type": "object", "patternProperties": {"^a": {"type": "null"}}}
    matcher = schema_matcher(schema)
    assert not matcher.accepts('{"\\u0061b":1}')
    assert matcher.accepts('{"b":1}')


@pytest.mark.parametrize(
    "bounds",
    [
        {"required": ["c"], "maxProperties": 2},
        {"required": ["z"], "maxProperties": 2},
        {"required": ["a", "c"], "maxProperties": 2},
        {"minProperties": 2},
        {"required": ["b"], "minProperties": 3},
        {"minProperties": 2, "maxProperties": 2},
        {"minProperties": 1, "additionalProperties": True, "maxProperties": 2},
        {"required": ["z"], "additionalProperties": {"type": "null"}, "maxProperties": 1},
    ],
)
def test_counted_properties_never_lead_where_nothing_fits(bounds: Any) -> None:
    properties = {name: {"type": "null"} for name in "abc"}
    if "z" in bounds.get("required", ()):
        bounds = {"additionalProperties": {"type": "null"}, **bounds}
    schema = {**CLOSED, "properties": properties, **bounds}
    matcher, rng = schema_matcher(schema), random.Random(0)
    for _ in range(200):
        # `sample` raises IndexError where no byte may follow.
        matcher.sample(rng, 400)


def test_properties_come_in_the_order_of_the_schema() -> None:
    schema = {"allOf": [{"properties": {"z": {}}}], "properties": {"b": {}, "a": {}},
              "required": ["z", "a", "b"]}  # fmt: skip
    matcher = schema_matcher(schema)
    assert matcher.accepts('{"b":1,"a":2,"z":3,"c":4}')
    assert not matcher.accepts('{"a":2,"b":1,"z":3}')


def test_whitespace_is_free_only_if_asked_for() -> None:
    schema = {**CLOSED, "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    text = '{ "a" :\n[1, 2 ] }'
    assert schema_matcher(schema, "free").accepts(text)
    assert not schema_matcher(schema).accepts(text)
    assert schema_matcher(schema).accepts('{"a":[1,2]}')
