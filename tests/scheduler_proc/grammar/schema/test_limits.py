"""Hostile schemas compile or end in an error that says why; none takes much time or memory."""

import json
import tracemalloc
from typing import Any

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema import document, prepare, simplify
from scheduler_proc.grammar.schema.shapes import Strings
from scheduler_proc.grammar.schema.terminal import is_never_met
from tests.scheduler_proc.grammar.byte_matcher import schema_matcher


def test_ten_thousand_enum_values() -> None:
    matcher = schema_matcher({"enum": [f"value{i}" for i in range(10_000)]})
    assert matcher.accepts('"value9999"')
    assert not matcher.accepts('"value10000"')


@pytest.mark.full
def test_thousands_of_optional_properties_do_not_make_a_regex_of_their_square() -> None:
    listed = {f"property{i}": {"type": "null"} for i in range(4000)}
    source = json.dumps({"type": "object", "properties": listed, "additionalProperties": False})
    tracemalloc.start()
    try:
        assert prepare(source, "compact").regex is None
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.full
def test_thousands_of_properties_are_not_nested_in_a_grammar() -> None:
    listed = {f"property{i}": {"type": "null"} for i in range(4000)}
    for more in ({"minProperties": 1}, {"propertyNames": {"not": {"pattern": "x"}}}):
        with pytest.raises(GrammarError, match="too large a grammar"):
            prepare(json.dumps({"type": "object", "properties": listed, **more}), "compact")


def test_what_contains_counts_is_bounded() -> None:
    some = [{"contains": {"const": i}, "minContains": 9} for i in range(4)]
    with pytest.raises(GrammarError, match=r"#/allOf/0/contains.* steps"):
        prepare(json.dumps({"type": "array", "allOf": some}), "compact")


@pytest.mark.full
def test_overlapping_patterns_are_bounded() -> None:
    named = {f"a{{{i}}}": {"minimum": i} for i in range(1, 12)}
    named |= {f"{chr(98 + i)}.*{chr(99 + i)}": {"maximum": i} for i in range(10)}
    with pytest.raises(GrammarError, match=r"#/patternProperties.* (alternatives|comparisons)"):
        prepare(json.dumps({"type": "object", "patternProperties": named}), "compact")


def test_patterns_that_begin_otherwise_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = counted_comparisons(monkeypatch)
    named = {name: {"const": name} for name in (f"^{i}-" for i in range(100, 400))}
    matcher = schema_matcher({"type": "object", "patternProperties": named})
    assert matcher.accepts('{"399-x":"^399-"}')
    assert not matcher.accepts('{"399-x":"^398-"}')
    assert not compared


def test_comparisons_of_patterns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = counted_comparisons(monkeypatch)
    named = {f"{i}$": {"const": i} for i in range(100, 400)}
    with pytest.raises(GrammarError, match=r"#/patternProperties.* comparisons"):
        prepare(json.dumps({"type": "object", "patternProperties": named}), "compact")
    assert 100 < len(compared) <= 500


def counted_comparisons(monkeypatch: pytest.MonkeyPatch) -> list[Strings]:
    """A list that collects the sets of strings that the back end is asked about."""
    compared: list[Strings] = []

    def noted(strings: Strings) -> bool:
        compared.append(strings)
        return is_never_met(strings)

    monkeypatch.setattr(simplify, "is_never_met", noted)
    return compared


def reference_bomb(width: int, depth: int) -> dict[str, Any]:
    """Definitions, each with many references to the next: width ** depth when expanded."""
    levels: dict[str, Any] = {}
    for i in range(depth):
        following = {"$ref": f"#/$defs/d{i + 1}"}
        levels[f"d{i}"] = {"anyOf": [following, {"allOf": [following]}] * (width // 2)}
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{depth}": {"type": "null"}}}


def test_a_bomb_of_references_collapses() -> None:
    matcher = schema_matcher(reference_bomb(width=10, depth=20))
    assert matcher.accepts("null")


def test_combinations_are_bounded() -> None:
    choice = [{"properties": {f"p{i}": {"const": i}}, "required": [f"p{i}"]} for i in range(40)]
    schema = {"type": "object", "allOf": [{"anyOf": choice}, {"anyOf": choice[::-1]}] * 3}
    with pytest.raises(GrammarError, match=r"alternatives|complex"):
        prepare(json.dumps(schema), "compact")


def test_deep_nesting_is_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(document.MAX_DEPTH + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(GrammarError, match="nested deeper"):
        prepare(json.dumps(schema), "compact")
    with pytest.raises(GrammarError, match="nested too deeply"):
        prepare('{"items":' * 100_000 + "true" + "}" * 100_000, "compact")


def test_size_is_limited() -> None:
    with pytest.raises(GrammarError, match="longer than"):
        prepare(" " * document.MAX_SOURCE_CHARS + "{}", "compact")
    many = {"anyOf": [{"minLength": i} for i in range(document.MAX_SUBSCHEMAS)]}
    with pytest.raises(GrammarError, match="subschemas"):
        prepare(json.dumps(many), "compact")


def test_a_long_chain_of_references_is_refused_clearly() -> None:
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**links, "d5000": {"type": "null"}}}
    with pytest.raises(GrammarError, match="references"):
        prepare(json.dumps(schema), "compact")


def test_a_pattern_that_backtracks_is_judged_in_linear_time() -> None:
    schema = {"pattern": "^(a+)+$", "enum": ["a" * 5000, "a" * 5000 + "!"]}
    matcher = schema_matcher(schema)
    assert matcher.accepts(json.dumps("a" * 5000))
    assert not matcher.accepts(json.dumps("a" * 5000 + "!"))
