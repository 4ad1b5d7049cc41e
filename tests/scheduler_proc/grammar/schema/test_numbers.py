"""Every combination of bounds and multiples of numbers judges as the package jsonschema does.

The package comes with litellm; without it the tests are skipped.
"""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema import prepare
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher, schema_matcher

jsonschema = pytest.importorskip("jsonschema")

# Doubles hold these multiples exactly, so that the package does not round.
BOUNDS = st.one_of(
    st.integers(-12, 12),
    st.integers(-1200, 1200).map(lambda hundredths: hundredths / 100),
    st.sampled_from([1e-7, -2.5e-8, 0.05, -0.05, 1e20, -1e22, 2**53 + 2, 99.99, 100, -1000]),
)
STEPS = st.sampled_from([1, 2, 3, 5, 10, 0.5, 0.25, 1.5, 0.125, 2.5])
KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(KEYWORDS), max_size=4, unique=True))
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["number", "number", "integer"]))}
    schema |= {name: draw(BOUNDS) for name in names}
    if draw(st.booleans()):
        schema["multipleOf"] = draw(STEPS)
    if draw(st.integers(0, 4)) == 0:
        schema["not"] = {"type": "integer"}
    return schema


def near(bound: float) -> list[float]:
    moves = [0, 1, -1, 0.5, -0.25, 0.01, -0.01, 0.001]
    return [*(round(bound + by, 6) for by in moves), bound]


def plain(value: float) -> str:
    """The digits of a number, without exponent and trailing zeros."""
    text = f"{Decimal(repr(value)):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def compiled(schema: dict[str, Any]) -> ByteMatcher | None:
    """The compiled schema; None if no number can be valid, or the schema is refused by name."""
    try:
        return schema_matcher(schema)
    except GrammarError as error:
        assert "no value can be valid" in str(error) or "multipleOf" in str(error), error
        return None


@example({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, [1])
@example({"type": "number", "maximum": -1, "minimum": -1.6, "exclusiveMaximum": -1}, [-1])
@example({"type": "number", "exclusiveMinimum": 0, "maximum": 0.01}, [0.0])
@example({"type": "number", "maximum": 1.41}, [1.4])
@example({"type": "number", "multipleOf": 0.25}, [0.5, -1.5])
@example({"type": "number", "minimum": 1e22}, [1e22, 1e21])
@example({"type": "integer", "minimum": 2**63 - 1}, [2**63 - 1, 2**63 - 2])
@example({"type": "integer", "minimum": -(2**70) - 1, "maximum": -(2**70) + 1}, [-(2**70)])
@given(schemas(), st.lists(BOUNDS, min_size=4, max_size=8))
def test_verdicts_are_those_of_a_validator(schema: dict[str, Any], some: list[float]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    matcher = compiled(schema)
    values = some + [value for name in KEYWORDS if name in schema for value in near(schema[name])]
    for value in values:
        if "multipleOf" in schema and abs(value) > 2**50:  # the package divides doubles
            continue
        valid = validator.is_valid(json.loads(plain(value)))
        if matcher is None:
            assert not valid or "multipleOf" in schema, (schema, value)
            continue
        assert matcher.accepts(plain(value)) == valid, (schema, value)
        digits = plain(value)
        for other in (json.dumps(value), digits + ("0" if "." in digits else ".0")):
            assert valid or not matcher.accepts(other), (schema, other)


@given(schemas())
def test_both_kinds_of_whitespace_give_one_language(schema: dict[str, Any]) -> None:
    matcher = compiled({"type": "array", "items": schema, "minItems": 1})
    if matcher is not None:
        loose = schema_matcher({"type": "array", "items": schema, "minItems": 1}, "free")
        for name in KEYWORDS:
            for value in near(schema.get(name, 0)):
                text = f"[{plain(value)}]"
                assert loose.accepts(text) == matcher.accepts(text), (schema, text)


def test_small_numbers_may_have_exponents() -> None:
    matcher = schema_matcher({"type": "number", "exclusiveMinimum": 0, "maximum": 0.05})
    assert matcher.accepts("9e-03") and matcher.accepts("1.5E-7")
    assert not matcher.accepts("6e-02") and not matcher.accepts("-1e-7")


def test_bounds_of_hundreds_of_digits() -> None:
    largest = 1.7976931348623157e308
    matcher = schema_matcher({"type": "number", "minimum": -largest, "maximum": largest})
    assert matcher.accepts("-12.5") and matcher.accepts("9" * 50) and not matcher.accepts("9" * 999)
    matcher = schema_matcher({"type": "number", "exclusiveMinimum": 5e-324})
    assert matcher.accepts("0." + "0" * 40 + "1") and not matcher.accepts("0.0")
    with pytest.raises(GrammarError, match="more than 50 digits"):
        prepare(json.dumps({"type": "number", "minimum": 1e200}), "compact")


def test_multiples_with_too_many_remainders_are_refused() -> None:
    with pytest.raises(GrammarError, match=r"multipleOf 1\.23457e\+08 needs an automaton"):
        prepare(json.dumps({"type": "integer", "multipleOf": 0.123456789}), "compact")


def test_a_range_without_multiples_is_no_value() -> None:
    for schema in (
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "number", "multipleOf": 5, "minimum": 6, "maximum": 9.5},
        {"type": "integer", "minimum": 0.2, "maximum": 0.8},
    ):
        with pytest.raises(GrammarError, match="no value can be valid"):
            prepare(json.dumps(schema), "compact")
    either = {"anyOf": [{"type": "integer", "minimum": 0.2, "maximum": 0.8}, {"type": "null"}]}
    assert schema_matcher(either).accepts("null")
