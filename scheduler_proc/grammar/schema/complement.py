"""The complement of a subschema: `not`, and whatever else needs to know where a schema fails.

Made by the unions. What fails a schema fails one of its keywords, so a complement is a union
over them. It is total: what no shape can say is a shape with a `Refusal`.
"""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any

from scheduler_proc.grammar.schema.judge import is_number
from scheduler_proc.grammar.schema.keywords import DEPENDENCIES, Keywords
from scheduler_proc.grammar.schema.pattern import one_of
from scheduler_proc.grammar.schema.shapes import (
    BOOLEANS,
    NULL,
    UNIVERSE,
    Arrays,
    Need,
    Numbers,
    Objects,
    Shape,
    Shapes,
    Strings,
    Values,
    both,
    texts_of,
)
from scheduler_proc.grammar.schema.unions import Unions


class Complement:
    """The shapes that fail one subschema."""

    def __init__(self, unions: Unions, keywords: Keywords) -> None:
        self._unions = unions
        self._keywords = keywords

    def failures(self) -> Iterator[Shape]:
        """Shapes that each fail one of the keywords; together, all that fail any."""
        keywords, schema = self._keywords, self._keywords.schema
        yield from self._not_types()
        types = keywords.types()
        for kind, failures in (
            (Numbers, keywords.not_numbers),
            (Strings, lambda: keywords.strings().others()),
            (Arrays, keywords.not_arrays),
            (Objects, keywords.not_objects),
        ):
            if any(isinstance(shape, kind) for shape in types):
                yield from failures()
        if "const" in schema or "enum" in schema:
            yield from self._not_values()
        opposites = self._opposites()
        for keyword in schema:
            keywords.check_supported(keyword)
            negated = opposites.get(keyword)
            if negated is not None:
                yield from negated()

    def _not_values(self) -> Iterator[Shape]:
        """All values except those of a `const` or `enum`."""
        shapes = self._keywords.values()
        literals = [x for shape in shapes if isinstance(shape, Values) for x in shape.literals]
        values = [literal.value for literal in literals]
        for shape in (NULL, BOOLEANS):
            kept = tuple(x for x in shape.literals if x not in literals)
            if kept:
                yield Values(kept)
        yield from _not_numbers(sorted(v for v in values if is_number(v)))
        yield Strings(excluded=tuple(v for v in values if isinstance(v, str)))
        for kind, name, python in ((Arrays, "array", list), (Objects, "object", dict)):
            given = [self._keywords.made(_as_schema(v)) for v in values if isinstance(v, python)]
            if given:
                only = self._keywords.made({"type": name})
                others = both(only, *map(opposite, given))
                yield from self._unions.conjunction(others, self._keywords.number)
            else:
                yield kind()

    def _not_types(self) -> Iterator[Shape]:
        keywords = self._keywords
        types = keywords.types()
        for shape in UNIVERSE:
            if isinstance(shape, Numbers) and Numbers(integer=True) in types:
                yield Numbers(fractional=f"{keywords.pointer}/type")
            elif shape not in types:
                yield shape

    def _opposites(self) -> dict[str, Callable[[], Shapes]]:
        unions, keywords = self._unions, self._keywords
        return {
            "$ref": lambda: unions.atom((keywords.target(), False)),
            "$dynamicRef": lambda: unions.atom((keywords.dynamic_target(), False)),
            "allOf": self._not_all_of,
            "anyOf": self._not_any_of,
            "oneOf": self._not_one_of,
            "not": lambda: unions.conjunction(
                keywords.need(keywords.schema["not"], "not"), keywords.number
            ),
            "if": self._not_conditional,
            **dict.fromkeys(DEPENDENCIES, self._not_dependencies),
            "propertyNames": self._not_names,
        }

    def _not_names(self) -> Shapes:
        keywords = self._keywords
        number = keywords.need(keywords.schema["propertyNames"], "propertyNames", holds=False)
        texts, sets = texts_of(self._unions.shapes(number))
        sets += [Strings(patterns=(one_of(texts),))] if texts else []
        return tuple(
            Objects(some=((names, f"{keywords.pointer}/propertyNames"),)) for names in sets
        )

    def _not_all_of(self) -> Shapes:
        branches = self._keywords.branches("allOf")
        opposites = [opposite(need) for need in branches if need]
        return self._unions.union(opposites, self._keywords.number)

    def _not_any_of(self) -> Shapes:
        keywords = self._keywords
        branches = keywords.branches("anyOf")
        if not all(branches):  # one of them is always met
            return ()
        return self._unions.conjunction(both(*map(opposite, branches)), keywords.number)

    def _not_one_of(self) -> Shapes:
        keywords = self._keywords
        branches = keywords.branches("oneOf")
        pairs = [both(a, b) for a, b in combinations(branches, 2)]
        none = both(*map(opposite, branches)) if all(branches) else keywords.made(False)
        return self._unions.union([none, *pairs], keywords.number)

    def _not_conditional(self) -> Shapes:
        keywords, schema = self._keywords, self._keywords.schema
        condition = keywords.need(schema["if"], "if")
        then = keywords.need(schema.get("then", True), "then")
        other = keywords.need(schema.get("else", True), "else")
        needs = [both(condition, opposite(then))] if then else []
        needs += [both(opposite(condition), opposite(other))] if condition and other else []
        return self._unions.union(needs, keywords.number)

    def _not_dependencies(self) -> Shapes:
        found = self._keywords.dependencies()
        needs = [both(present, opposite(need)) for present, need in found if need]
        return self._unions.union(needs, self._keywords.number)


def opposite(need: Need) -> Need:
    """The complement of a need of one atom; an empty need, which everything meets, has none."""
    return tuple((number, not holds) for number, holds in need)


def _as_schema(value: list[Any] | dict[str, Any]) -> dict[str, Any]:
    """The schema that only an array or object has, part by part."""
    if isinstance(value, list):
        parts = [{"const": part} for part in value]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(value)}
    own = {name: {"const": part} for name, part in value.items()}
    return {"type": "object", "properties": own, "required": [*own], "additionalProperties": False}


def _not_numbers(values: list[Any]) -> Iterator[Shape]:
    bounds = [Fraction(json.dumps(value)) for value in values]
    for low, high in zip([None, *bounds], [*bounds, None], strict=True):
        yield Numbers(
            low=None if low is None else (low, True), high=None if high is None else (high, True)
        )
