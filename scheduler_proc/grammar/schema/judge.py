"""Whether one given value meets a need or lies in a shape, exactly.

Called to filter the values of `const` and `enum` by all keywords beside them; what
cannot be printed as a grammar, such as a negated pattern, can still be judged here.
"""

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

from scheduler_proc.grammar.schema.document import refuse
from scheduler_proc.grammar.schema.shapes import (
    Arrays,
    JsonLiteral,
    Need,
    Numbers,
    Objects,
    Refusal,
    Shape,
    Shapes,
    Strings,
    Values,
    literal_of,
)


class Judge:
    """Judges values; `shapes` are those that a need stands for."""

    def __init__(self, shapes: Callable[[Need], Shapes]) -> None:
        self._shapes = shapes

    def accepts(self, need: Need, literal: JsonLiteral) -> bool:
        """Whether a value meets a need."""
        return not need or any(self.accepts_shape(shape, literal) for shape in self._shapes(need))

    def accepts_shape(self, shape: Shape, literal: JsonLiteral) -> bool:
        """Whether a value lies in a shape."""
        value = literal.value
        match shape:
            case Values(literals):
                return literal in literals
            case Numbers():
                return is_number(value) and _in_numbers(shape, Fraction(literal.text))
            case Strings():
                return isinstance(value, str) and shape.matches(value)
            case Arrays():
                return isinstance(value, list) and self._in_arrays(shape, value)
            case Objects():
                return isinstance(value, dict) and self._in_objects(shape, value)
            case _:
                raise TypeError(f"{type(shape).__name__} is made for printing only")

    def _in_arrays(self, shape: Arrays, value: list[Any]) -> bool:
        items = [literal_of(item) for item in value]
        if not _in_range(len(items), shape.least, shape.most):
            return False
        if not all(self.accepts(shape.item(i), item) for i, item in enumerate(items)):
            return False
        if shape.unique and any(a == b for a, b in combinations(items, 2)):
            return False
        for wanted in shape.contains:
            number = sum(self.accepts((wanted.atom,), item) for item in items)
            if not _in_range(number, wanted.least, wanted.most):
                return False
        check_refusals(shape.refusals)
        return True

    def _in_objects(self, shape: Objects, value: dict[str, Any]) -> bool:
        if not _in_range(len(value), shape.least, shape.most):
            return False
        if any(name not in value for name in shape.required):
            return False
        if not all(any(map(names.matches, value)) for names, _ in shape.some):
            return False
        members = ((shape.member(name), literal_of(item)) for name, item in value.items())
        if not all(self.accepts(need, item) for need, item in members):
            return False
        check_refusals(shape.refusals)
        return True


def _in_numbers(shape: Numbers, value: Fraction) -> bool:
    if shape.integer and value.denominator != 1:
        return False
    if shape.low and (value < shape.low[0] or (value == shape.low[0] and shape.low[1])):
        return False
    if shape.high and (value > shape.high[0] or (value == shape.high[0] and shape.high[1])):
        return False
    if shape.multiple and (value / shape.multiple).denominator != 1:
        return False
    if any((value / multiple).denominator == 1 for multiple, _ in shape.not_multiples):
        return False
    return not shape.fractional or value.denominator != 1


def _in_range(number: int, least: int, most: int | None) -> bool:
    return number >= least and (most is None or number <= most)


def is_number(value: Any) -> bool:
    """Whether a parsed value is a JSON number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_refusals(refusals: tuple[Refusal, ...]) -> None:
    """Raise GrammarError for the first."""
    for refusal in refusals:
        raise refuse(refusal.pointer, f"{refusal.keyword}: {refusal.reason}")
