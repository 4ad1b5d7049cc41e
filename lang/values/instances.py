"""Whether a JSON value is an instance of a JSON Schema, whoever wrote it and in whatever order.

Used for answers of servers that need not have enforced the schema. Every keyword of the drafts from
6 on is checked, except annotations, to which `format` and `content...` belong; what cannot be
checked is refused when the schema is read. Patterns take time linear in the text.
"""

import json
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from lang.values.matching import matches
from srt.patterns.read_ecma import read_ecma
from srt.patterns.write import regex
from srt.wire.constraint import GrammarError

# What is wrong with the value at this place, which is a JSON pointer; None if nothing is.
Check = Callable[[Any, str], str | None]

_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and (type(value) is int or value.is_integer()),
}
_REFUSED = ("$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties")


@lru_cache(64)
def instance_check(source: str) -> Callable[[str], None]:
    """What raises ValueError for a text that is not JSON, or no instance of the schema. Raises
    GrammarError for a schema that is wrong, or that has what cannot be checked."""
    try:
        check = _Schema(json.loads(source)).root
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None

    def check_text(text: str) -> None:
        try:
            wrong = check(json.loads(text, parse_constant=_refuse_constant), "")
        except RecursionError:
            wrong = "it is nested too deeply"
        if wrong is not None:
            raise ValueError(wrong)

    return check_text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: True is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _below(at: str, key: object) -> str:
    return f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _where(at: str) -> str:
    return f"the value at {at}" if at else "the value"


class _Schema:
    """Reads a schema's document; `root` checks a value."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._by_ref: dict[str, Check] = {}
        self.root = self._read(document)

    def _read(self, schema: Any) -> Check:
        if isinstance(schema, bool):
            return lambda _, at: None if schema else f"{_where(at)} must not be there"
        if not isinstance(schema, dict):
            raise GrammarError(f"a schema must be an object or a boolean, not {schema!r}")
        for keyword in _REFUSED:
            if keyword in schema:
                raise GrammarError(f"{keyword} cannot be checked")
        makers = {
            "$ref": self._ref,
            "type": self._type,
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "not": self._not,
            "dependentSchemas": self._dependent,
            "propertyNames": self._names,
            "contains": self._contains,
            **_PLAIN,
        }
        checks = [makers[key](given, schema) for key, given in schema.items() if key in makers]
        checks += [self._members(schema), self._items(schema), self._condition(schema)]
        return _each(checks)

    def _all(self, schemas: Any) -> list[Check]:
        if not isinstance(schemas, list):
            raise GrammarError(f"a list of schemas is expected, not {schemas!r}")
        return [self._read(each) for each in schemas]

    def _by_name(self, schemas: Any) -> dict[str, Check]:
        if not isinstance(schemas, dict):
            raise GrammarError(f"an object of schemas is expected, not {schemas!r}")
        return {name: self._read(each) for name, each in schemas.items()}

    # ---- references ----------------------------------------------------------------------------

    def _ref(self, ref: Any, _: Any) -> Check:
        """Read once, and only when all of its own references can find it."""
        if not isinstance(ref, str):
            raise GrammarError(f"$ref must be a string, not {ref!r}")
        if ref not in self._by_ref:
            target = self._target(ref)
            self._by_ref[ref] = lambda value, at: found(value, at)
            found = self._read(target)
        return lambda value, at: self._by_ref[ref](value, at)

    def _target(self, ref: str) -> Any:
        found = self._document
        if ref != "#" and not ref.startswith("#/"):
            raise GrammarError(f"$ref {ref!r} cannot be checked: only '#' and '#/...' are known")
        try:
            for part in unquote(ref).split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                found = found[int(key) if isinstance(found, list) else key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise GrammarError(f"$ref {ref!r} is not in the schema") from None
        return found

    # ---- any value -----------------------------------------------------------------------------

    def _type(self, given: Any, _: Any) -> Check:
        names = given if isinstance(given, list) else [given]
        if unknown := [name for name in names if name not in _TYPES]:
            raise GrammarError(f"type {unknown[0]!r} is not one of {', '.join(_TYPES)}")
        expected = " or ".join(names)

        def check(value: Any, at: str) -> str | None:
            fits = any(_TYPES[name](value) for name in names)
            return None if fits else f"{_where(at)} must be of the type {expected}"

        return check

    def _all_of(self, given: Any, _: Any) -> Check:
        return _each(self._all(given))

    def _any_of(self, given: Any, _: Any) -> Check:
        return _some(self._all(given), lambda count: count > 0, "anyOf")

    def _one_of(self, given: Any, _: Any) -> Check:
        return _some(self._all(given), lambda count: count == 1, "oneOf")

    def _not(self, given: Any, _: Any) -> Check:
        return _some([self._read(given)], lambda count: count == 0, "not")

    def _condition(self, schema: Any) -> Check:
        """`if` with `then` and `else`."""
        if "if" not in schema:
            return _each([])
        condition = self._read(schema["if"])
        ways = [self._read(schema.get(key, True)) for key in ("then", "else")]
        return lambda value, at: ways[condition(value, at) is not None](value, at)

    # ---- objects and arrays --------------------------------------------------------------------

    def _members(self, schema: Any) -> Check:
        named = self._by_name(schema.get("properties", {}))
        patterns = self._by_name(schema.get("patternProperties", {}))
        tests = [(_pattern(pattern), check) for pattern, check in patterns.items()]
        rest = self._read(schema.get("additionalProperties", True))

        def check(value: Any, at: str) -> str | None:
            for key, each in value.items() if isinstance(value, dict) else ():
                checks = [check for fits, check in tests if fits(key)]
                checks += [named[key]] if key in named else []
                if wrong := _each(checks or [rest])(each, _below(at, key)):
                    return wrong
            return None

        return check

    def _names(self, given: Any, _: Any) -> Check:
        check = self._read(given)

        def check_names(value: Any, at: str) -> str | None:
            names = value if isinstance(value, dict) else ()
            found = ((name, check(name, "")) for name in names)
            return _first(f"{_where(at)}: the name {n!r}: {wrong}" for n, wrong in found if wrong)

        return check_names

    def _dependent(self, given: Any, _: Any) -> Check:
        checks = self._by_name(given)

        def check(value: Any, at: str) -> str | None:
            names = [name for name in checks if isinstance(value, dict) and name in value]
            return _each([checks[name] for name in names])(value, at)

        return check

    def _items(self, schema: Any) -> Check:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # as drafts before 2020-12 have it
            first, rest = rest, schema.get("additionalItems", True)
        firsts, others = self._all(first), self._read(rest)

        def check(value: Any, at: str) -> str | None:
            for i, each in enumerate(value if isinstance(value, list) else ()):
                if wrong := (firsts[i] if i < len(firsts) else others)(each, _below(at, i)):
                    return wrong
            return None

        return check

    def _contains(self, given: Any, schema: Any) -> Check:
        check_item = self._read(given)
        least, most = schema.get("minContains", 1), schema.get("maxContains", math.inf)

        def check(value: Any, at: str) -> str | None:
            if not isinstance(value, list):
                return None
            count = sum(check_item(each, at) is None for each in value)
            return None if least <= count <= most else f"{_where(at)} does not fit contains"

        return check


def _first(found: Iterable[str]) -> str | None:
    return next(iter(found), None)


def _each(checks: list[Check]) -> Check:
    def check(value: Any, at: str) -> str | None:
        return _first(wrong for each in checks if (wrong := each(value, at)) is not None)

    return check


def _some(checks: list[Check], is_right: Callable[[int], bool], keyword: str) -> Check:
    def check(value: Any, at: str) -> str | None:
        count = sum(each(value, at) is None for each in checks)
        return None if is_right(count) else f"{_where(at)} does not fit {keyword}"

    return check


# ---- keywords without schemas in them ------------------------------------------------------------


def _pattern(source: Any) -> Callable[[str], bool]:
    if not isinstance(source, str):
        raise GrammarError(f"pattern must be a string, not {source!r}")
    conditions = read_ecma(source)
    wanted, without = (
        [regex(node) for node in nodes] for nodes in (conditions.wanted, conditions.without)
    )
    return lambda text: (
        all(matches(each, text) for each in wanted)
        and not any(matches(each, text) for each in without)
    )


def _plain(
    kind: Callable[[Any], bool],
    holds: Callable[[Any, Any], bool],
    given_is: Callable[[Any], bool],
    keyword: str,
) -> Callable[[Any, Any], Check]:
    """Reads a keyword that says something of values of one kind."""

    def read(given: Any, _: Any) -> Check:
        if not given_is(given):
            raise GrammarError(f"{keyword} must not be {given!r}")

        def check(value: Any, at: str) -> str | None:
            fits = not kind(value) or holds(value, given)
            return None if fits else f"{_where(at)} does not fit {keyword} {given!r}"

        return check

    return read


def _read_pattern(given: Any, _: Any) -> Check:
    fits = _pattern(given)

    def check(value: Any, at: str) -> str | None:
        is_right = not isinstance(value, str) or fits(value)
        return None if is_right else f"{_where(at)} does not fit pattern {given!r}"

    return check


def _is_multiple(value: Any, of: Any) -> bool:
    return (Fraction(str(value)) / Fraction(str(of))).denominator == 1


def _has_dependents(value: Any, given: Any) -> bool:
    return all(name in value for key, names in given.items() if key in value for name in names)


def _all_differ(value: Any, given: Any) -> bool:
    return not given or not any(_equal(a, b) for a, b in combinations(value, 2))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_names(value: Any) -> bool:
    return _is_list(value) and all(isinstance(each, str) for each in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_ANY, _IS_TEXT = (lambda _: True), _TYPES["string"]
_PLAIN: dict[str, Callable[[Any, Any], Check]] = {
    "pattern": _read_pattern,
    **{
        keyword: _plain(kind, holds, given_is, keyword)
        for keyword, kind, holds, given_is in (
            ("const", _ANY, _equal, _ANY),
            ("enum", _ANY, lambda v, all_: any(_equal(v, each) for each in all_), _is_list),
            ("minimum", _is_number, lambda v, low: v >= low, _is_number),
            ("maximum", _is_number, lambda v, high: v <= high, _is_number),
            ("exclusiveMinimum", _is_number, lambda v, low: v > low, _is_number),
            ("exclusiveMaximum", _is_number, lambda v, high: v < high, _is_number),
            ("multipleOf", _is_number, _is_multiple, lambda v: _is_number(v) and v > 0),
            ("minLength", _IS_TEXT, lambda v, low: len(v) >= low, _is_number),
            ("maxLength", _IS_TEXT, lambda v, high: len(v) <= high, _is_number),
            ("minItems", _is_list, lambda v, low: len(v) >= low, _is_number),
            ("maxItems", _is_list, lambda v, high: len(v) <= high, _is_number),
            ("uniqueItems", _is_list, _all_differ, _TYPES["boolean"]),
            ("minProperties", _is_object, lambda v, low: len(v) >= low, _is_number),
            ("maxProperties", _is_object, lambda v, high: len(v) <= high, _is_number),
            ("required", _is_object, lambda v, names: all(n in v for n in names), _is_names),
            ("dependentRequired", _is_object, _has_dependents, _is_object),
        )
    },
}
