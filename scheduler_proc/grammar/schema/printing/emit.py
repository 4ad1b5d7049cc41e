"""Print a plan as the JSON Schema that llguidance compiles.

Only a small core of keywords is used, each checked against the public suites: `type`, `enum`,
bounds, `pattern`, `prefixItems`/`items`, `properties`, `anyOf`, `$ref`.
Strings, names included, have one JSON spelling only, up to the choice of escape of a control
character: names are otherwise open to being spelled past the condition on them.
"""

from fractions import Fraction
from typing import Any

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.numbers import EXACT, takes_regex
from scheduler_proc.grammar.schema.pattern import none_of
from scheduler_proc.grammar.schema.plan import SchemaPlan
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
    least_common,
)
from scheduler_proc.grammar.schema.terminal import anchored, strings_schema, takes_terminal

_UNIVERSE = frozenset(UNIVERSE)
# Beside `properties` this stands for all other names: llguidance excludes the listed ones itself,
# in its own spelling, but applies the schema here to them too. Where that would be wrong, their
# complement is written as a pattern, which is compiled several times more slowly.
_ANY_NAME = "^[\\s\\S]*$"
_MOST_REMAINDERS = 2**20  # of a multiple, each a state of its automaton


class BeyondSchemaError(GrammarError):
    """The core of JSON Schema cannot say it; a grammar can."""

    def __init__(self) -> None:
        super().__init__("JSON schema: it needs a grammar, which this back end does not take")


class Emitter:
    """Prints the needs of one plan, those with parts as definitions. Its methods raise
    BeyondSchemaError."""

    def __init__(self, plan: SchemaPlan) -> None:
        self._plan = plan
        self._names: dict[Need, str] = {}
        self._definitions: dict[str, Any] = {}
        self._pending: list[Need] = []

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
        possible = {name for name, need in shape.properties if self._plan.is_possible(need)}
        is_counted = shape.least > 0 or shape.most is not None
        if shape.some or shape.patterns or (is_counted and possible - {*shape.required}):
            raise BeyondSchemaError
        properties = {name: self.schema(need) for name, need in shape.properties}
        rest = self.schema(shape.rest)
        if rest == {} and names and _have_one_spelling(names):
            printed["patternProperties"] = {_ANY_NAME: rest}
        else:
            properties = {name: sub for name, sub in properties.items() if sub is not False}
            if rest is not False and names:
                printed["patternProperties"] = {anchored(none_of(names)): rest}
            else:
                printed["additionalProperties"] = rest
        printed |= {"properties": properties} if properties else {}
        printed |= {"required": list(shape.required)} if shape.required else {}
        printed |= {"minProperties": shape.least} if shape.least else {}
        return printed | ({} if shape.most is None else {"maxProperties": shape.most})


def scalar_schema(shape: Shape) -> dict[str, Any]:
    """A shape that has no parts. Raises BeyondSchemaError for what takes a grammar."""
    match shape:
        case Values(literals):
            return {"enum": [_exact(literal.value) for literal in literals]}
        case Numbers():
            return _numbers(shape)
        case Strings() if not takes_terminal(shape):
            return strings_schema(shape)
        case _:
            raise BeyondSchemaError


def _have_one_spelling(names: list[str]) -> bool:
    return all(char >= " " and char != "\x7f" for name in names for char in name)


def _exact(value: Any) -> Any:
    """A value of `enum`. Raises GrammarError for what llguidance, with its doubles, would round."""
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _exact(part)
    elif isinstance(value, int) and abs(value) > EXACT:
        number = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."
        raise GrammarError(
            f"JSON schema: {number} in const or enum is beyond 2^53, where numbers are rounded"
        )
    return value


def _numbers(shape: Numbers) -> dict[str, Any]:
    if takes_regex(shape):
        raise BeyondSchemaError
    printed: dict[str, Any] = {"type": "integer" if shape.integer else "number"}
    if shape.low:
        printed["exclusiveMinimum" if shape.low[1] else "minimum"] = _plain(shape.low[0])
    if shape.high:
        printed["exclusiveMaximum" if shape.high[1] else "maximum"] = _plain(shape.high[0])
    if shape.multiple in (None, 1):
        return printed
    if int(str(shape.multiple.numerator).rstrip("0")) > _MOST_REMAINDERS:
        what = f"multipleOf {float(shape.multiple):g}"
        raise GrammarError(f"JSON schema: {what} needs an automaton that is too large")
    # Numbers with fewer decimal places are judged by the multiples that have this many.
    steps, unit = [least_common(shape.multiple, Fraction(1))], Fraction(1)
    while steps[-1] != shape.multiple:
        unit /= 10
        steps.append(least_common(shape.multiple, unit))
    options = [{**printed, "multipleOf": _plain(step)} for step in dict.fromkeys(steps)]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _plain(value: Fraction) -> int | float:
    """A number as JSON writes it: exact for what JSON text gave."""
    return value.numerator if value.denominator == 1 else float(value)
