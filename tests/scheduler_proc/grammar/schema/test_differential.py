"""Random schemas of all keywords: what compiles judges values as the package jsonschema does.

The package comes with litellm; without it the tests are skipped.
"""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.schemas import OrderSearch, RefusedError, compile_ours
from tests.running.profiles import examples

jsonschema = pytest.importorskip("jsonschema")

NAMES = st.sampled_from(["a", "b", "ab", "c"])
SOME_NAMES = st.lists(NAMES, min_size=1, max_size=2, unique=True)
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab", "ba", [], [1], [1, "a"], [1, 1], {},
    {"a": 1}, {"a": "a", "b": 2}, {"c": None}, {"ab": 1}, [[]], [{"a": 1}], {"a": {"b": 1}},
]  # fmt: skip
INSTANCES = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: st.one_of(st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, max_size=3)),
    max_leaves=5,
)
SMALL = st.integers(0, 2)
LEAVES = st.one_of(
    st.booleans(),
    st.sampled_from(VALUES).map(lambda value: {"const": value}),
    st.lists(st.sampled_from(VALUES), min_size=2, max_size=3).map(lambda some: {"enum": some}),
    st.sampled_from([
        {}, {"type": "integer"}, {"type": "string"}, {"type": ["integer", "null"]}, {"minimum": 1},
        {"exclusiveMaximum": 2.5}, {"multipleOf": 2}, {"minLength": 1}, {"maxLength": 1},
        {"pattern": "^a"}, {"pattern": "b$"}, {"type": "number", "maximum": 1},
        {"$ref": "#/$defs/x"},
    ]),
)  # fmt: skip


def objects_and_arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A few keywords about objects and arrays, not about numbers or strings."""
    some = st.lists(inner, min_size=1, max_size=2)
    keywords = {
        "type": st.sampled_from(["object", "array", ["object", "array"], ["array", "null"]]),
        "properties": st.dictionaries(NAMES, inner, min_size=1, max_size=2),
        "required": SOME_NAMES,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, min_size=1),
        "dependentRequired": st.dictionaries(NAMES, SOME_NAMES, min_size=1, max_size=1),
        "dependentSchemas": st.dictionaries(NAMES, inner, min_size=1, max_size=1),
        "prefixItems": some,
        "uniqueItems": st.just(True),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), some),
        **dict.fromkeys(
            ("minItems", "maxItems", "minProperties", "maxProperties", "minContains",
             "maxContains"), SMALL),
        **dict.fromkeys(
            ("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then",
             "else", "unevaluatedItems", "unevaluatedProperties"), inner),
    }  # fmt: skip
    names = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return names.flatmap(lambda found: st.fixed_dictionaries({k: keywords[k] for k in found}))


SCHEMAS = st.recursive(LEAVES, objects_and_arrays, max_leaves=8)


IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


def refers_in_place(schema: Any) -> bool:
    """Whether a `$ref` in it speaks of the same value, and not of one inside that."""
    if isinstance(schema, list):
        return any(map(refers_in_place, schema))
    if not isinstance(schema, dict):
        return False
    inner = [schema[name] for name in IN_PLACE if name in schema]
    inner += [*schema.get("dependentSchemas", {}).values()]
    return "$ref" in schema or any(map(refers_in_place, inner))


def check(schema: Any, other: Any, values: list[Any]) -> None:
    whole = {"allOf": [schema], "$defs": {"x": other}}
    try:
        compiled = compile_ours(whole)
    except RefusedError:
        return
    if refers_in_place(other):  # to itself, so the package does not come to an end
        return
    validator = jsonschema.Draft202012Validator(whole)
    search = OrderSearch(compiled.matcher, whole, compiled.orders)
    for value in values:
        assert search.accepts(value) in (validator.is_valid(value), None), (whole, value)


INPUTS = (objects_and_arrays(SCHEMAS), SCHEMAS, st.lists(INSTANCES, min_size=6, max_size=12))


@settings(max_examples=examples(60))
@given(*INPUTS)
@example({"contains": {"$ref": "#/$defs/x"}}, {"allOf": [{"if": {"$ref": "#/$defs/x"}}]}, [[1]])
def test_verdicts_are_those_of_a_validator(schema: Any, other: Any, values: list[Any]) -> None:
    check(schema, other, values)
