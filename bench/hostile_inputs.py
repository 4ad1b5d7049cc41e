"""Constraints that are made to hurt, for `bench.hostile` and the tests: fields of SamplingParams.

Each attack is a function of a serial number, which goes into the text so that nothing that was
compiled before can be reused; the shape is the same for every number.
"""

import json
from collections.abc import Callable
from typing import Any

Attack = Callable[[int], dict[str, Any]]


def _stars(n: int) -> dict[str, Any]:
    return {"regex": f"((a|a)*|(a|aa)*)*b{n}"}


def _nested_counts(n: int) -> dict[str, Any]:
    return {"regex": "((a{1,50}){1,50}){1,50}" + f"b{n}"}


def _words(n: int) -> dict[str, Any]:
    return {"regex": rf"(\w{{1,50}} ){{1,20}}end{n}"}


def _optional_branches(n: int) -> dict[str, Any]:
    return {"regex": rf"(?:(?:ab?){{0,300}}c?){{0,300}}{n}"}


def _exponential(n: int) -> dict[str, Any]:
    return {"regex": f"[ab]*a[ab]{{200}}{n}"}


def _long_pattern(n: int) -> dict[str, Any]:
    return {"regex": "[a-z]+ " * 14_000 + str(n)}


def _long_literal(n: int) -> dict[str, Any]:
    return {"regex": "abcdefghij" * 10_000 + str(n)}


def _alternatives(n: int) -> dict[str, Any]:
    return {"regex": "|".join(f"word{i * 7919 % 10_000}x{n}" for i in range(10_000))}


def _nested_groups(n: int) -> dict[str, Any]:
    return {"regex": "(" * 10_000 + f"a{n}" + ")" * 10_000}


def _choices(n: int) -> dict[str, Any]:
    return {"choices": [f"{i * 2654435761 % 2**32:x}{n:x}" for i in range(40_000)]}


def _reference_bomb(n: int) -> dict[str, Any]:
    links = [{"$ref": f"#/$defs/d{i + 1}"} for i in range(30)]
    pairs: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"a": link, "b": link}}
        for i, link in enumerate(links)
    }
    return _schema({"$ref": "#/$defs/d0", "$defs": {**pairs, "d30": {"const": n}}})


def _deep_schema(n: int) -> dict[str, Any]:
    return {"json_schema": '{"items":' * 10_000 + f'{{"const":{n}}}' + "}" * 10_000}


def _endless_schema(n: int) -> dict[str, Any]:
    return _schema({"$ref": "#", "title": str(n)})


def _large_enum(n: int) -> dict[str, Any]:
    return _schema({"enum": [f"value {i} {n}" for i in range(10_000)]})


def _optional_properties(n: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(2000)]
    return _schema({"type": "object", "properties": {name: {"const": n} for name in names}})


def _required_properties(n: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(5000)]
    properties = {name: {"type": "integer", "minimum": n} for name in names}
    return _schema({"type": "object", "properties": properties, "required": names})


def _overlapping_objects(n: int) -> dict[str, Any]:
    shapes = [
        {
            "type": "object",
            "properties": {"a": {"type": "string", "pattern": f"^a{{{i}}}.*{n}$"}},
            "required": ["a"],
        }
        for i in range(300)
    ]
    return _schema({"anyOf": shapes})


def _string_pattern(n: int) -> dict[str, Any]:
    text = {"type": "string", "pattern": rf"^(\w{{1,50}} ){{1,20}}end{n}$"}
    return _schema({"type": "array", "items": {"type": "object", "additionalProperties": text}})


def _left_recursion(n: int) -> dict[str, Any]:
    return {"ebnf": f'root ::= root "a" | root root | "a{n}"'}


def _ambiguity(n: int) -> dict[str, Any]:
    return {"ebnf": f'root ::= e "{n}"\ne ::= e e e | e e | "a" | [a-z] | [a-z] [a-z]'}


def _overlapping_runs(n: int) -> dict[str, Any]:
    return {"ebnf": f'root ::= (x | y)* "end{n}"\nx ::= [a-z ]+\ny ::= [a-z ]* y?'}


def _ambiguous_letters(n: int) -> dict[str, Any]:
    """Every prefix has as many parses as is possible without an error."""
    return {"ebnf": f'root ::= a "{n}"\na ::= a b | b\nb ::= b c | c\nc ::= c d | d\nd ::= [a-z ]'}


def _doubling_rules(n: int) -> dict[str, Any]:
    rules = [f'r{i} ::= r{i + 1} r{i + 1} | r{i + 1} | ""' for i in range(150)]
    return {"ebnf": "\n".join(["root ::= r0", *rules, f'r150 ::= [a-z ] | "{n}"'])}


def _many_terminals(n: int) -> dict[str, Any]:
    names = [f"t{i}" for i in range(1000)]
    rules = [f'{t} ::= [a-z ]{{1,{i % 50 + 1}}} "x{i}"' for i, t in enumerate(names)]
    return {"ebnf": "\n".join([f'root ::= "{n}"? ({" | ".join(names)})', *rules])}


def _many_tags(n: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"const": n}}}
    tags = [{"begin": f"<f{i}>", "schema": schema, "end": "</f>"} for i in range(400)]
    return {"structural_tag": json.dumps({"structures": tags, "triggers": ["<f"]})}


def _schema(schema: Any) -> dict[str, Any]:
    return {"json_schema": json.dumps(schema)}


ATTACKS: dict[str, Attack] = {
    "regex, nested stars": _stars,
    "regex, nested counts": _nested_counts,
    "regex, counted words": _words,
    "regex, optional branches": _optional_branches,
    "regex, 2^200 states": _exponential,
    "regex, 98 kB of words": _long_pattern,
    "regex, 100 kB literal": _long_literal,
    "regex, 10,000 alternatives": _alternatives,
    "regex, 10,000 deep": _nested_groups,
    "choices, 40,000": _choices,
    "schema, $ref bomb": _reference_bomb,
    "schema, 10,000 deep": _deep_schema,
    "schema, refers to itself": _endless_schema,
    "schema, 10,000 enum values": _large_enum,
    "schema, 2,000 optional": _optional_properties,
    "schema, 5,000 required": _required_properties,
    "schema, 300 overlapping": _overlapping_objects,
    "schema, string pattern": _string_pattern,
    "ebnf, left recursion": _left_recursion,
    "ebnf, ambiguous": _ambiguity,
    "ebnf, overlapping runs": _overlapping_runs,
    "ebnf, recursive letters": _ambiguous_letters,
    "ebnf, doubling rules": _doubling_rules,
    "ebnf, 1,000 terminals": _many_terminals,
    "tags, 400": _many_tags,
}
