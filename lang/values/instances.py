"""Whether a JSON value is an instance of a JSON Schema, whoever wrote it and in whatever order.

Used for answers of servers that need not have enforced the schema. The package jsonschema judges,
with keywords of ours where its own are slow or follow Python: patterns are ECMA's and take time
linear in the text, as distinct items do, and multiples are those of decimal fractions.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from lang.values.matching import matcher_of_tree
from srt.patterns.read_ecma import read_ecma
from srt.wire.constraint import GrammarError

MAX_SHOWN_CHARS = 80  # of a keyword's value in a message


@lru_cache(64)
def instance_check(source: str) -> Callable[[str], None]:
    """What raises ValueError for a text that is not JSON, or no instance of the schema; `format` is
    an annotation. Raises GrammarError for a schema that is wrong, or that has what cannot be
    checked, such as a reference to another document: nothing is fetched."""
    try:
        validator = _validator(_read_json(source))
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"the schema cannot be read: {error}") from None

    def check_text(text: str) -> None:
        try:
            error = next(validator.iter_errors(_read_json(text)), None)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if error is not None:
            raise ValueError(_words(error))

    return check_text


def _read_json(text: str) -> Any:
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not a JSON number, or too large for one")
    return value


def _words(error: Any) -> str:
    """What is wrong, and where as a JSON pointer."""
    path = "".join(f"/{str(p).replace('~', '~0').replace('/', '~1')}" for p in error.absolute_path)
    where = f"the value at {path}" if path else "the value"
    if error.validator is None:
        return f"{where} must not be there"
    given = json.dumps(error.validator_value, ensure_ascii=False)
    shown = f" {given}" if len(given) <= MAX_SHOWN_CHARS else ""
    return f"{where} does not fit {error.validator}{shown}"


# ---- reading a schema ----------------------------------------------------------------------------


def _validator(schema: Any) -> Any:
    from referencing import Registry  # late, as jsonschema: most programs need none of it

    draft = _draft_of(schema)
    _read_parts(schema, draft)
    return _extended(draft)(schema, registry=Registry())


def _draft_of(schema: Any) -> Any:
    """The draft that `$schema` names; without it the newest, or the one before it, in which `items`
    may be a list."""
    import jsonschema  # type: ignore[import-untyped]

    drafts = [jsonschema.Draft202012Validator, jsonschema.Draft201909Validator]
    if isinstance(schema, dict) and isinstance(schema.get("$schema"), str):
        drafts = [jsonschema.validators.validator_for(schema, drafts[0])]
    errors = []
    for draft in drafts:
        try:
            _check_form(draft, schema)
            return draft
        except GrammarError as error:
            errors.append(error)
    raise errors[0]


def _check_form(draft: Any, schema: Any) -> None:
    """Raise GrammarError for what is no schema; patterns are read elsewhere."""
    from jsonschema import SchemaError

    try:
        draft.check_schema(schema, format_checker=None)
    except SchemaError as error:
        raise GrammarError(_words(error)) from None


def _read_parts(root: Any, draft: Any) -> None:
    """Read the patterns of all schemas in a document, and follow their references, which may lead
    to places that hold no schemas by themselves. Raises GrammarError."""
    from referencing import Registry, jsonschema
    from referencing.exceptions import Unresolvable

    kind = jsonschema.specification_with(draft.ID_OF(draft.META_SCHEMA))
    seen, keywords = set[int](), set[str]()
    waiting = deque([(root, Registry().resolver_with_root(kind.create_resource(root)), False)])
    while waiting:
        schema, resolver, is_target = waiting.pop()
        if id(schema) in seen:
            continue
        if is_target:
            _check_form(draft, schema)
        if not isinstance(schema, dict):
            continue
        seen.add(id(schema))
        keywords |= schema.keys()
        schema.pop("$schema", None)  # by it the package would leave our keywords
        for pattern in (*schema.get("patternProperties", ()), schema.get("pattern", "")):
            _pattern(pattern)
        for ref in (schema[key] for key in _REFERENCES if key in schema):
            try:
                found = resolver.lookup(ref)
            except (Unresolvable, AttributeError, TypeError, ValueError):
                raise GrammarError(f"{ref!r} is no reference to a place in the schema") from None
            waiting.appendleft((found.contents, found.resolver, True))
        for each in kind.create_resource(schema).subresources():
            waiting.append((each.contents, resolver.in_subresource(each), False))
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        raise GrammarError("unevaluatedProperties beside patternProperties cannot be checked")


@lru_cache(256)
def _pattern(source: str) -> Callable[[str], bool]:
    """Whether a text has a match of an ECMA-262 pattern. Raises GrammarError."""
    wanted, without = ([matcher_of_tree(node) for node in nodes] for nodes in read_ecma(source))
    return lambda text: (
        all(each.reads(text) for each in wanted) and not any(each.reads(text) for each in without)
    )


# ---- keywords of ours ----------------------------------------------------------------------------


@cache
def _extended(draft: Any) -> Any:
    from jsonschema import validators

    return validators.extend(draft, _OURS)


def _pattern_properties(validator: Any, given: Any, value: Any, _: Any) -> Iterator[Any]:
    for pattern, schema in given.items() if isinstance(value, dict) else ():
        fits = _pattern(pattern)
        for key in filter(fits, value):
            yield from validator.descend(value[key], schema, path=key)


def _additional_properties(validator: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
    patterns = [_pattern(each) for each in schema.get("patternProperties", ())]
    for key, each in value.items() if isinstance(value, dict) else ():
        if key not in schema.get("properties", ()) and not any(fits(key) for fits in patterns):
            yield from validator.descend(each, given, path=key)


def _of(kind: type | tuple[type, ...], holds: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    """A keyword about values of one kind."""

    def check(_: Any, given: Any, value: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError

        if isinstance(value, kind) and not isinstance(value, bool) and not holds(value, given):
            yield ValidationError("")  # the words are ours

    return check


def _is_multiple(value: Any, of: Any) -> bool:
    return (Fraction(str(value)) / Fraction(str(of))).denominator == 1


def _all_differ(values: list[Any], wanted: bool) -> bool:
    return not wanted or len(set(map(_key, values))) == len(values)


def _key(value: Any) -> Any:
    """A key that equal values have in common: 1 and 1.0, but not true."""
    if isinstance(value, list):
        return (list, *map(_key, value))
    if isinstance(value, dict):
        return (dict, frozenset((name, _key(each)) for name, each in value.items()))
    return (bool, value) if isinstance(value, bool) else value


_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OURS = {
    "pattern": _of(str, lambda text, source: _pattern(source)(text)),
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "multipleOf": _of((int, float), _is_multiple),
    "uniqueItems": _of(list, _all_differ),
}
