"""The keywords that speak of one JSON type: each as a shape, and each one's complement.

Called by the normaliser for one subschema at a time. Values of the wrong type are refused by
name and place; a complement that no shape can say is a shape with a `Refusal`, which only counts
if it survives to the output.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.document import NEWEST, Document, refuse
from scheduler_proc.grammar.schema.formats import format_strings
from scheduler_proc.grammar.schema.pattern import pattern_of
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    BOOLEANS,
    NULL,
    UNIVERSE,
    Arrays,
    Contains,
    Need,
    Numbers,
    Objects,
    Refusal,
    Shape,
    Shapes,
    Strings,
    Values,
    at_most,
    both,
    literal_of,
    unmatched,
)
from srt.patterns.read_ecma import read_ecma

DEPENDENCIES = ("dependentRequired", "dependentSchemas", "dependencies")
_MAX_COUNT = 2**31
# Of the known keywords, those that are refused wherever they stand; the second set is draft 3's.
_UNSUPPORTED = frozenset({"$recursiveRef"})
_UNSUPPORTED_3 = frozenset({"disallow", "divisibleBy", "extends"})


TYPES: dict[str, Shape] = {
    "null": NULL,
    "boolean": BOOLEANS,
    "number": Numbers(),
    "integer": Numbers(integer=True),
    "string": Strings(),
    "array": Arrays(),
    "object": Objects(),
}


class Keywords:
    """The type-specific keywords of one subschema, number `number` of `document`."""

    def __init__(self, document: Document, number: int, schema: dict[str, Any]) -> None:
        self.document = document
        self.number = number
        self.schema = schema
        self.pointer = document.places[number].pointer

    # ---- Reading ----

    def fail(self, keyword: str, reason: str) -> GrammarError:
        return refuse(f"{self.pointer}/{keyword}", f"{keyword} {reason}")

    def check_supported(self, keyword: str) -> None:
        """Raise GrammarError for a keyword that has a meaning here that we do not enforce."""
        is_draft_3 = self.document.places[self.number].draft == 3
        if keyword in _UNSUPPORTED or (is_draft_3 and keyword in _UNSUPPORTED_3):
            raise self.fail(keyword, "is not supported")

    def need(self, schema: Any, *steps: str | int, holds: bool = True) -> Need:
        """What a direct subschema demands, or its opposite."""
        if holds and (schema is True or schema == {}):
            return ()
        return ((self.document.number_of(schema, self.number, *steps), holds),)

    def made(self, schema: Any) -> Need:
        """What a schema that we made demands."""
        return ((self.document.add(schema, self.number), True),)

    def count(self, keyword: str) -> int | None:
        value = self.schema.get(keyword)
        if value is None and keyword not in self.schema:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_COUNT:
            raise self.fail(keyword, "must be an integer, 0 or more")
        return value

    def number_value(self, keyword: str) -> Fraction | None:
        value = self.schema.get(keyword)
        if keyword not in self.schema:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise self.fail(keyword, "must be a finite number")
        return Fraction(json.dumps(value))

    def named(self, keyword: str) -> dict[str, Any]:
        value = self.schema.get(keyword, {})
        if not isinstance(value, dict):
            raise self.fail(keyword, "must be an object")
        self.check_text(keyword, list(value))
        return value

    def names(self, keyword: str, given: Any = None) -> list[str]:
        value = self.schema.get(keyword, []) if given is None else given
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.fail(keyword, "must be an array of strings")
        self.check_text(keyword, value)
        return value

    def check_text(self, keyword: str, value: Any) -> None:
        """Raise GrammarError if a JSON value has half of a surrogate pair somewhere."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise self.fail(keyword, "has half of a surrogate pair, which no text has") from None

    def pattern(self, source: Any, keyword: str) -> Strings:
        if not isinstance(source, str):
            raise self.fail(keyword, "must be a string")
        try:
            wanted, without = read_ecma(source)
        except GrammarError as error:
            raise self.fail(keyword, f"{source[:60]!r}: {error}") from None
        return Strings(
            patterns=tuple(map(pattern_of, wanted)), without=tuple(map(pattern_of, without))
        )

    def dependencies(self) -> Iterator[tuple[Need, Need]]:
        """For each name: the need that it is present, and what must hold then. The first is twice
        negated, since that does not count as a schema that requires the name."""
        for keyword in DEPENDENCIES:
            for name, wanted in self.named(keyword).items():
                present = self.made({"type": "object", "not": {"not": {"required": [name]}}})
                if isinstance(wanted, list):
                    yield present, self.made({"required": self.names(keyword, wanted)})
                else:
                    yield present, self.need(wanted, keyword, name)

    # ---- Types, values and references ----

    def types(self) -> Shapes:
        """The types of its values, one shape for each."""
        given = self.schema.get("type")
        if "type" not in self.schema:
            return UNIVERSE
        names = given if isinstance(given, list) else [given]
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise self.fail("type", f"{name!r} is not a JSON type")
        if "number" in names:
            names = [name for name in names if name != "integer"]
        return tuple(TYPES[name] for name in dict.fromkeys(names))

    def values(self) -> Shapes:
        """What `const` and `enum` allow."""
        schema = self.schema
        values = schema.get("enum")
        if "enum" in schema and not isinstance(values, list):
            raise self.fail("enum", "must be an array")
        for keyword in schema.keys() & {"const", "enum"}:
            self.check_text(keyword, schema[keyword])
        literals = tuple(dict.fromkeys(literal_of(value) for value in values or []))
        if "const" in schema:
            const = literal_of(schema["const"])
            literals = (const,) if "enum" not in schema or const in literals else ()
        return (Values(literals),) if literals else ()

    def target(self) -> int:
        """The number of the schema that `$ref` leads to."""
        return self.document.resolve(self.schema["$ref"], self.number)

    def dynamic_target(self) -> int:
        """`$dynamicRef` is `$ref` where only one schema has the dynamic anchor."""
        ref = self.schema["$dynamicRef"]
        number = self.document.resolve(ref, self.number, "$dynamicRef")
        name = ref.partition("#")[2]
        anchored = self.document.dynamic_anchors(name)
        if number in anchored and len(anchored) > 1:
            raise self.fail("$dynamicRef", f"{ref!r} has several dynamic anchors to choose from")
        return number

    def branches(self, keyword: str) -> list[Need]:
        """The needs of a keyword that lists schemas."""
        branches = self.schema[keyword]
        if not isinstance(branches, list) or not branches:
            raise self.fail(keyword, "must be an array of schemas, not empty")
        return [self.need(sub, keyword, i) for i, sub in enumerate(branches)]

    # ---- Numbers ----

    def numbers(self) -> Numbers:
        low, high = self._bounds()
        multiple = self.number_value("multipleOf")
        if multiple is not None and multiple <= 0:
            raise self.fail("multipleOf", "must be above 0")
        return Numbers(low=low, high=high, multiple=multiple)

    def _bounds(self) -> tuple[tuple[Fraction, bool] | None, tuple[Fraction, bool] | None]:
        found = []
        for keyword, exclusive, sign in (
            ("minimum", "exclusiveMinimum", 1),
            ("maximum", "exclusiveMaximum", -1),
        ):
            value, flag = self.number_value(keyword), self.schema.get(exclusive)
            bounds = [] if value is None else [(sign * value, flag is True)]
            # A boolean beside the bound is draft 4's spelling.
            excluded = None if isinstance(flag, bool) else self.number_value(exclusive)
            bounds += [] if excluded is None else [(sign * excluded, True)]
            found.append(max(bounds, default=None))
        low, mirrored = found
        return low, mirrored and (-mirrored[0], mirrored[1])

    def not_numbers(self) -> Iterator[Shape]:
        shape = self.numbers()
        if shape.low:
            yield Numbers(high=(shape.low[0], not shape.low[1]))
        if shape.high:
            yield Numbers(low=(shape.high[0], not shape.high[1]))
        if shape.multiple:
            yield Numbers(not_multiples=((shape.multiple, self.refusal("multipleOf")),))

    # ---- Strings ----

    def strings(self) -> Strings:
        given = "pattern" in self.schema
        shape = self.pattern(self.schema["pattern"], "pattern") if given else Strings()
        least, most = self.count("minLength") or 0, self.count("maxLength")
        shape = replace(shape, least=least, most=most)
        name = self.schema.get("format")
        if "format" in self.schema and not isinstance(name, str):
            raise self.fail("format", "must be a string")
        known = format_strings(str(name))
        if known is None:  # an annotation, as the specification has it
            return shape
        patterns = (*shape.patterns, *known.patterns)
        return replace(shape, patterns=patterns, most=at_most(known.most, shape.most))

    def refusal(self, keyword: str, reason: str = "it cannot be negated") -> Refusal:
        return Refusal(keyword, f"{self.pointer}/{keyword}", reason)

    # ---- Arrays ----

    def arrays(self) -> Arrays:
        prefix, rest, evaluated = self._items()
        unique = self.schema.get("uniqueItems", False)
        if not isinstance(unique, bool):
            raise self.fail("uniqueItems", "must be a boolean")
        return Arrays(
            prefix,
            rest,
            self.count("minItems") or 0,
            self.count("maxItems"),
            self._contains(),
            f"{self.pointer}/uniqueItems" if unique else None,
            evaluated,
        )

    def _items(self) -> tuple[tuple[Need, ...], Need, int]:
        items = self.schema.get("items", True)
        first, key = self.schema.get("prefixItems", []), "prefixItems"
        rest_key, rest = "items", items
        if isinstance(items, list):
            first, key = items, "items"
            rest_key, rest = "additionalItems", self.schema.get("additionalItems", True)
        if not isinstance(first, list):
            raise self.fail("prefixItems", "must be an array")
        prefix = tuple(self.need(item, key, i) for i, item in enumerate(first))
        evaluated = -1 if rest_key in self.schema else len(prefix)
        return prefix, self.need(rest, rest_key), evaluated

    def _contains(self) -> tuple[Contains, ...]:
        least, most = self.count("minContains"), self.count("maxContains")
        if "contains" not in self.schema:
            return ()
        number = self.document.number_of(self.schema["contains"], self.number, "contains")
        least = 1 if least is None else least
        place = f"{self.pointer}/contains"
        evaluates = self.document.places[self.number].draft >= NEWEST
        return (Contains((number, True), least, most, place, evaluates),)

    def not_arrays(self) -> Iterator[Shape]:
        shape = self.arrays()
        if shape.least:
            yield Arrays(most=shape.least - 1)
        if shape.most is not None:
            yield Arrays(least=shape.most + 1)
        for i, need in enumerate(shape.prefix):
            for number, _ in need:
                yield Arrays((*((),) * i, ((number, False),)), least=i + 1)
        yield from self._not_rest(shape)
        for wanted in shape.contains:
            if wanted.least:
                yield Arrays(contains=(replace(wanted, least=0, most=wanted.least - 1),))
            if wanted.most is not None:
                yield Arrays(contains=(replace(wanted, least=wanted.most + 1, most=None),))
        if shape.unique:
            yield Arrays(refusals=(self.refusal("uniqueItems"),))
        if "unevaluatedItems" in self.schema:
            yield Arrays(refusals=(self.refusal("unevaluatedItems"),))

    def _not_rest(self, shape: Arrays) -> Iterator[Shape]:
        if not shape.rest:
            return
        number = shape.rest[0][0]
        if self.document.places[number].schema is False:
            yield Arrays(least=len(shape.prefix) + 1)
        elif shape.prefix:
            yield Arrays(refusals=(self.refusal("items", "it cannot be negated with prefixItems"),))
        else:
            place = f"{self.pointer}/items"
            yield Arrays(contains=(Contains((number, False), 1, None, place),))

    # ---- Objects ----

    def objects(self) -> Objects:
        listed = self.named("properties")
        patterns: dict[Strings, Need] = {}
        for source, sub in self.named("patternProperties").items():
            names = self.pattern(source, "patternProperties")
            need = self.need(sub, "patternProperties", source)
            patterns[names] = both(patterns.get(names, ANYTHING), need)
        shape = Objects(
            (),
            tuple(patterns.items()),
            self.need(self.schema.get("additionalProperties", True), "additionalProperties"),
            tuple(dict.fromkeys(self.names("required"))),
            self.count("minProperties") or 0,
            self.count("maxProperties"),
            frozenset(listed) if "properties" in self.schema else None,
            frozenset(patterns),
            "additionalProperties" in self.schema,
            limits_at=self.pointer,
            named=frozenset(self.names("required")),
        )
        properties = tuple((name, self._member(shape, name, sub)) for name, sub in listed.items())
        return replace(shape, properties=properties)

    def _member(self, shape: Objects, name: str, schema: Any) -> Need:
        matching = [need for pattern, need in shape.patterns if pattern.matches(name)]
        return both(self.need(schema, "properties", name), *matching)

    def not_objects(self) -> Iterator[Shape]:
        for name in self.names("required"):
            yield Objects(((name, self.made(False)),))
        for name, schema in self.named("properties").items():
            need = self.need(schema, "properties", name, holds=False)
            yield Objects(((name, need),), required=(name,))
        least, most = self.count("minProperties"), self.count("maxProperties")
        if least:
            yield Objects(most=least - 1, limits_at=self.pointer)
        if most is not None:
            yield Objects(least=most + 1, limits_at=self.pointer)
        shape = self.objects()
        listed = tuple(self.named("properties"))
        others = [(replace(part, excluded=listed), need) for part, need in unmatched(shape)]
        for keyword, entries in (
            ("patternProperties", shape.patterns),
            ("additionalProperties", others),
        ):
            place = f"{self.pointer}/{keyword}"
            for names, need in entries:
                if need and self.document.places[need[0][0]].schema is False:
                    yield Objects(some=((names, place),))
                elif need:  # names may come again, with another value
                    yield Objects(refusals=(self.refusal(keyword),))
        if self.schema.get("unevaluatedProperties", True) not in (True, {}):
            yield Objects(refusals=(self.refusal("unevaluatedProperties"),))
