"""Random schemas of objects: closed, they allow all valid instances of listed names, no invalid
one, and seldom a valid one with other names."""

import itertools
import random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from scheduler_proc.grammar.base import GrammarError
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher, compact, schema_matcher
from tests.scheduler_proc.grammar.schema.listed_names import only_listed

NAMES = "abcd"
VALUES = [
    dict(zip(names, values, strict=True))
    for size in range(4)
    for names in itertools.combinations("abcde", size)
    for values in itertools.product([1, None], repeat=size)
]
LISTS = ("anyOf", "anyOf", "oneOf", "allOf")


def drawn(rng: random.Random, depth: int) -> dict[str, Any]:
    """A schema of an object's properties."""
    made: dict[str, Any] = {}
    leaves: list[Any] = [{}, {}, {"const": 1}, {"type": "integer"}, {"type": "null"}]
    if rng.random() < 0.7:
        names = rng.sample(NAMES, rng.choice([1, 1, 2]))
        made["properties"] = {name: rng.choice(leaves) for name in names}
    if rng.random() < 0.4:
        made["required"] = rng.sample(NAMES, 1)
    if depth == 0 or rng.random() < 0.3:
        return made
    match rng.choice([*LISTS, "if", "not", "dependentRequired", "dependentSchemas"]):
        case "if":
            parts = {"if": 0, "then": depth - 1, "else": depth - 1}
            return made | {key: drawn(rng, d) for key, d in parts.items() if rng.random() < 0.8}
        case "not":
            return {**made, "not": drawn(rng, 0)}
        case "dependentRequired" as key:
            return {**made, key: {rng.choice(NAMES): [rng.choice(NAMES)]}}
        case "dependentSchemas" as key:
            return {**made, key: {rng.choice(NAMES): drawn(rng, depth - 1)}}
        case key:
            return {**made, key: [drawn(rng, depth - 1) for _ in range(rng.choice([2, 2, 3]))]}


def accepts(matcher: ByteMatcher, value: dict[str, Any]) -> bool:
    """Whether an object is accepted with its members in some order."""
    return any(
        matcher.accepts(compact(dict(items))) for items in itertools.permutations(value.items())
    )


def matcher_of(schema: Any, closed: bool) -> ByteMatcher | None:
    """None if no value is accepted, or the schema is refused."""
    try:
        return schema_matcher(schema, closed=closed)
    except (GrammarError, AssertionError):
        return None


def check(seeds: range, values: int) -> None:
    with_others = 0
    for seed in seeds:
        rng = random.Random(seed)
        schema = {"type": "object", **drawn(rng, 2)}
        if matcher_of(schema, closed=False) is None:
            continue
        closed = matcher_of(schema, closed=True)
        validator = jsonschema.Draft202012Validator(schema)
        extra = False
        for value in rng.sample(VALUES, values):
            allowed = closed is not None and accepts(closed, value)
            is_valid, is_listed = validator.is_valid(value), only_listed(schema, value)
            assert allowed or not (is_valid and is_listed), (schema, value)
            assert is_valid or not allowed, (schema, value)
            extra |= allowed and not is_listed
        with_others += extra
    assert with_others <= len(seeds) // 8


def test_closed_objects_have_all_listed_names_and_seldom_others() -> None:
    check(range(40), values=20)


@pytest.mark.slow
def test_many_closed_objects() -> None:
    check(range(1000, 1300), values=len(VALUES))
