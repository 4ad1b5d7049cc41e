"""Print a plan as the JSON Schema that llguidance compiles.

Only a small core of keywords is used, each checked against the public suites: `type`, `enum`,
bounds, `pattern`, `prefixItems`/`items`, `properties` and `patternProperties`, `anyOf`, `$ref`.
Strings, names included, have one JSON spelling only, up to the choice of escape of a control
character: names are otherwise open to being spelled past the condition on them.
"""

import math
from fractions import Fraction
from typing import Any, NamedTuple

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.pattern import Pattern, none_of
from scheduler_proc.grammar.schema.plan import Plan
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    UNIVERSE,
    Arrays,
    Need,
    Numbers,
    Objects,
    Shape,
    Strings,
    Values,
)
from srt.constraint import Whitespace

_SHORT_ESCAPES = 'nrbtf\\"'
_UNIVERSE = frozenset(UNIVERSE)
# Beside `properties` it stands for all other names: llguidance leaves those listed out of it, in
# the spelling of its own, and applies its schema to them too. Their complement as a pattern, which
# is needed where that would not be right, is compiled several times more slowly.
_ANY_NAME = "^[\\s\\S]*$"
# llguidance reads all numbers as doubles, and holds the bounds of integers to 64 bits, of which it
# refuses the very least: the second is the next double.
_EXACT_INTEGERS = 2**53
_LEAST_INTEGER = -(2**63) + 2**10


class BeyondSchemaError(GrammarError):
    """The core of JSON Schema cannot say it; a grammar can."""

    def __init__(self) -> None:
        super().__init__("JSON schema: it takes a grammar, which this back end is not given")


class Emitter:
    """Prints the needs of one plan, those with parts as definitions. Its methods raise
    BeyondSchemaError."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names: dict[Need, str] = {}
        self._definitions: dict[str, Any] = {}
        self._pending: list[Need] = []
        self.plain_names = False

    def document(self) -> dict[str, Any]:
        """The whole schema."""
        root = self.schema(self._plan.root)
        while self._pending:
            need = self._pending.pop()
            self._definitions[self._names[need]] = self._union(self._plan.shapes[need])
        if not isinstance(root, dict):
            root = {}
        return {**root, "$defs": self._definitions} if self._definitions else root

    def schema(self, need: Need) -> dict[str, Any] | bool:
        """A schema of one need: a reference where it has parts of its own."""
        if need == ANYTHING or not self._plan.is_possible(need):
            return {} if need == ANYTHING else False
        shapes = self._plan.shapes[need]
        if set(shapes) >= _UNIVERSE:
            return {}
        if all(isinstance(shape, Values | Numbers | Strings) for shape in shapes):
            return self._union(shapes)
        if need not in self._names:
            self._names[need] = f"n{len(self._names)}"
            self._pending.append(need)
        return {"$ref": f"#/$defs/{self._names[need]}"}

    def _union(self, shapes: list[Shape]) -> dict[str, Any]:
        if set(shapes) >= _UNIVERSE:
            return {}
        printed = [self._shape(shape) for shape in shapes]
        return printed[0] if len(printed) == 1 else {"anyOf": printed}

    def _shape(self, shape: Shape) -> dict[str, Any]:
        match shape:
            case Arrays():
                return self._arrays(shape)
            case Objects():
                return self._objects(shape)
            case _:
                return scalar_schema(shape)

    def _arrays(self, shape: Arrays) -> dict[str, Any]:
        printed: dict[str, Any] = {"type": "array"}
        if shape.prefix:
            printed["prefixItems"] = [self.schema(need) for need in shape.prefix]
        printed["items"] = self.schema(shape.rest)
        if shape.most is not None and shape.most <= len(shape.prefix):
            printed["items"] = False
        if shape.least:
            printed["minItems"] = shape.least
        if shape.most is not None:
            printed["maxItems"] = shape.most
        return printed

    def _objects(self, shape: Objects) -> dict[str, Any]:
        printed: dict[str, Any] = {"type": "object", "additionalProperties": False}
        names = [name for name, _ in shape.properties]
        if (shape.least or shape.most is not None) and self._has_optional(shape):
            raise BeyondSchemaError
        if shape.some or any(
            part != Strings(patterns=part.patterns[:1]) for part, _ in shape.patterns
        ):
            raise BeyondSchemaError
        properties = {name: self.schema(need) for name, need in shape.properties}
        patterns = {_anchored(p.patterns[0]): self.schema(need) for p, need in shape.patterns}
        rest = self.schema(shape.rest)
        if rest == {} and not patterns and names and _have_one_spelling(names):
            patterns = {_ANY_NAME: rest}
        elif rest is not False and not patterns and names:
            patterns = {_anchored(none_of(names)): rest}
            properties = {name: sub for name, sub in properties.items() if sub is not False}
        elif rest is not False:
            printed["additionalProperties"] = rest
            self.plain_names |= bool(patterns)
        if rest is False:
            patterns = {name: sub for name, sub in patterns.items() if sub is not False}
        self._check_listed(shape, patterns, properties)
        if not patterns:
            properties = {name: sub for name, sub in properties.items() if sub is not False}
        printed |= {"properties": properties} if properties else {}
        printed |= {"patternProperties": patterns} if patterns else {}
        printed |= {"required": list(shape.required)} if shape.required else {}
        printed |= {"minProperties": shape.least} if shape.least else {}
        return printed | ({} if shape.most is None else {"maxProperties": shape.most})

    def _check_listed(
        self, shape: Objects, patterns: dict[str, Any], properties: dict[str, Any]
    ) -> None:
        """llguidance holds listed names to the patterns that they match as well."""
        printed = [(p, need) for p, need in shape.patterns if _anchored(p.patterns[0]) in patterns]
        for pattern, need in printed:
            for name, listed in shape.properties:
                is_open = properties.get(name, False) is not False and not set(need) <= set(listed)
                if is_open and pattern.matches(name):
                    raise BeyondSchemaError

    def _has_optional(self, shape: Objects) -> bool:
        return any(
            name not in shape.required and self._plan.is_possible(need)
            for name, need in shape.properties
        )


def scalar_schema(shape: Shape) -> dict[str, Any]:
    """A shape that has no parts. Raises BeyondSchemaError for what takes a grammar."""
    match shape:
        case Values(literals):
            return {"enum": [_exact(literal.value) for literal in literals]}
        case Numbers(fractional=None):
            return _numbers(shape)
        case Strings(without=()):
            return _strings(shape)
        case _:
            raise BeyondSchemaError


def _anchored(pattern: Pattern) -> str:
    return f"^(?:{pattern.back_end_regex()})$"


def _have_one_spelling(names: list[str]) -> bool:
    return all(char >= " " and char != "\x7f" for name in names for char in name)


def _strings(shape: Strings) -> dict[str, Any]:
    printed: dict[str, Any] = {"type": "string"}
    if shape.least:
        printed["minLength"] = shape.least
    if shape.most is not None:
        printed["maxLength"] = shape.most
    patterns = list(shape.patterns)
    if shape.excluded:
        patterns.append(none_of(shape.excluded))
    conditions: list[dict[str, Any]] = [{"pattern": _anchored(p)} for p in patterns]
    if len(conditions) == 1:
        return printed | conditions[0]
    return printed | ({"allOf": conditions} if conditions else {})


def _exact(value: Any) -> Any:
    """A value of `enum`. Raises GrammarError for what llguidance, with its doubles, would round."""
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _exact(part)
    elif isinstance(value, int) and abs(value) > _EXACT_INTEGERS:
        number = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."
        raise GrammarError(
            f"JSON schema: {number} in const or enum is beyond 2^53, where numbers are rounded"
        )
    return value


def _numbers(shape: Numbers) -> dict[str, Any]:
    printed: dict[str, Any] = {"type": "integer" if shape.integer else "number"}
    low, high = shape.low, shape.high
    if low:
        least = max(low[0], Fraction(_LEAST_INTEGER)) if shape.integer else low[0]
        printed["exclusiveMinimum" if low[1] else "minimum"] = _rounded(least, math.inf)
    if high:
        printed["exclusiveMaximum" if high[1] else "maximum"] = _rounded(high[0], -math.inf)
    if shape.multiple and not (shape.integer and (1 / shape.multiple).denominator == 1):
        printed["multipleOf"] = _plain(shape.multiple)
    return printed


def _rounded(bound: Fraction, inwards: float) -> int | float:
    """A bound; an integer that is no double becomes the next one towards `inwards`."""
    plain = _plain(bound)
    if isinstance(plain, float) or abs(plain) > -_LEAST_INTEGER:  # not rounded beyond any bound
        return plain
    near = float(plain)
    is_outside = near < plain if inwards > 0 else near > plain
    return int(math.nextafter(near, inwards) if is_outside else near)


def _plain(value: Fraction) -> int | float:
    """A number as it is written in JSON: exact for what JSON text gave."""
    return value.numerator if value.denominator == 1 else float(value)


class Printed(NamedTuple):
    """A schema and the options that it must be compiled with."""

    schema: dict[str, Any]
    options: dict[str, Any]


def printed_schema(plan: Plan, whitespace: Whitespace) -> Printed:
    """The schema of a plan, for llguidance. Raises BeyondSchemaError.

    Where `additionalProperties` stands beside `patternProperties`, llguidance lets names be
    spelled with escapes past the patterns; there, characters that have no short escape are left
    out of all strings.
    """
    emitter = Emitter(plan)
    schema = emitter.document()
    options: dict[str, Any] = {"whitespace_flexible": whitespace == "free"}
    if emitter.plain_names:
        options["json_allowed_escapes"] = _SHORT_ESCAPES
    return Printed(schema, options)
