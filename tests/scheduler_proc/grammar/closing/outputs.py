"""Random outputs under constraints that are closed at their limit, without a model or a core."""

import json
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.grammar.base import CompiledGrammar
from scheduler_proc.grammar.closing.chain import Closing
from scheduler_proc.grammar.closing.witness import WitnessFinder
from scheduler_proc.grammar.llg.backend import compile_llguidance
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.automata import mask_ids, real_vocabulary

_NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}, "names": {"type": "array", "items": {"type": "string"}}},
    "required": ["names"],
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "anything": {},
    "an open object": {"type": "object"},
    "a list of itself": _NODE,
    "required": {
        "type": "object",
        "properties": {name: {"type": "number"} for name in ("width", "height", "depth")}
        | {"name": {"type": "string"}, "is_new": {"type": "boolean"}},
        "required": ["width", "height", "depth", "name", "is_new"],
    },
    "objects in a list": {
        "type": "array",
        "minItems": 2,
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {}}},
            "required": ["id", "tags"],
            "additionalProperties": False,
        },
    },
    "enum": {"type": "object", "properties": {"a": {"enum": ["red", "green"]}}, "required": ["a"]},
    "formats": {
        "type": "object",
        "properties": {"at": {"format": "date-time", "type": "string"}, "more": {}},
        "required": ["at"],
    },
    "lengths": {"type": "array", "items": {"type": "string", "minLength": 20}, "minItems": 1},
    "a pattern": {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[a-f0-9]{8}-[a-f0-9]{4}$"}},
        "additionalProperties": {"type": "string"},
        "required": ["id"],
    },
    "a choice": {"anyOf": [{"type": "object", "required": ["x"], "properties": {"x": {}}}, _NODE]},
}
_TAGS = {
    "structures": [
        {"begin": "<call>", "schema": {"type": "object", "required": ["to"]}, "end": "</call>"}
    ],
    "triggers": ["<call>"],
}
OTHERS = {
    "sums": Constraint("ebnf", 'root ::= e ";"\ne ::= "(" e " + " e ")" | "[" e* "]" | [0-9]+ "."'),
    "lines": Constraint("ebnf", 'root ::= ("- " [^\\n]+ "\\n")+ "end"'),
    "tags": Constraint("structural_tag", json.dumps(_TAGS)),
    "blanks": Constraint("json_schema", json.dumps(SCHEMAS["required"]), whitespace="free"),
}
CONSTRAINTS = OTHERS | {
    name: Constraint("json_schema", json.dumps(schema)) for name, schema in SCHEMAS.items()
}
MORE = (0, 1, 2, 4, 8, 16, 64)  # tokens that a limit is above the first witness


class Asked(NamedTuple):
    """What `instead_of` said of a token after so many ids."""

    position: int
    token: int
    answer: list[int] | None


class Output(NamedTuple):
    ids: list[int]
    is_whole: bool
    asked: list[Asked]


@cache
def compiled(name: str) -> CompiledGrammar:
    """By llguidance, over the real vocabulary."""
    return compile_llguidance(CONSTRAINTS[name], real_vocabulary())


@cache
def finder() -> WitnessFinder:
    return WitnessFinder(real_vocabulary())


_witnesses: dict[Any, list[int] | None] = {}  # by the grammar itself


def _witness(grammar: CompiledGrammar) -> list[int] | None:
    if grammar not in _witnesses:
        _witnesses[grammar] = finder().find_ahead(grammar.start())
    return _witnesses[grammar]


def first_witness(grammar: CompiledGrammar) -> list[int]:
    found = _witness(grammar)
    assert found is not None
    return [*found]


def closing(grammar: CompiledGrammar, limit: int) -> Closing:
    return Closing(grammar.start(), finder(), limit, _witness(grammar))


def random_output(grammar: CompiledGrammar, limit: int, rng: Random) -> Output:
    """Tokens that the masks allow, each as likely as any other, until the output ends or there are
    `limit` of them."""
    matcher, closes = grammar.start(), closing(grammar, limit)
    row = np.zeros(real_vocabulary().mask_width, np.uint32)
    ids: list[int] = []
    asked: list[Asked] = []
    while len(ids) < limit and not matcher.is_terminated():
        matcher.fill(row)
        token = rng.choice(mask_ids(row))
        answer = closes.instead_of(token)
        asked.append(Asked(len(ids), token, answer))
        new = [token] if answer is None else answer
        matcher.accept(new)
        ids += new
        if answer is not None:
            break
        closes.accept(new)
    return Output(ids, matcher.is_accepting() or matcher.is_terminated(), asked)
