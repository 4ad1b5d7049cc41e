"""What a JSON Schema says, as a union of shapes: sets of values of one JSON type each.

The normaliser intersects shapes and the emitters print them. A `Need` is an unexpanded
conjunction of (subschema number, holds or must not hold): shapes of arrays and objects refer to
their parts by needs, so recursion is no obstacle and the number of needs is finite.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from math import ceil, floor
from typing import Any

from scheduler_proc.grammar.schema.pattern import Pattern, one_of

Need = tuple[tuple[int, bool], ...]
ANYTHING: Need = ()


def both(*needs: Need) -> Need:
    """The need that all of `needs` hold, in order and without repetition."""
    return tuple(dict.fromkeys(atom for need in needs for atom in need))


@dataclass(frozen=True)
class JsonLiteral:
    """A JSON value, compared as JSON Schema does: 1 equals 1.0, objects have no order."""

    key: str
    text: str = field(compare=False)

    @property
    def value(self) -> Any:
        return json.loads(self.text)


def literal_of(value: Any) -> JsonLiteral:
    """The literal of a parsed value. Numbers without a fraction are written as integers."""
    plain = _integral(value)
    dump = {"separators": (",", ":"), "ensure_ascii": False}
    return JsonLiteral(json.dumps(plain, sort_keys=True, **dump), json.dumps(plain, **dump))  # type: ignore[arg-type]


def _integral(value: Any) -> Any:
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else value
    if isinstance(value, list):
        return [_integral(item) for item in value]
    if isinstance(value, dict):
        return {name: _integral(item) for name, item in value.items()}
    return value


@dataclass(frozen=True)
class Values:
    """Finitely many values, of any type. null and booleans are always given in this form."""

    literals: tuple[JsonLiteral, ...]


@dataclass(frozen=True)
class Refusal:
    """A condition that we carry along but cannot print: the keyword, its place, and why."""

    keyword: str
    pointer: str
    reason: str


@dataclass(frozen=True)
class Numbers:
    """Numbers between bounds, each None or a number with whether it is excluded itself.
    `integer` leaves the integers, `fractional` all others; `not_multiples` can be judged only. Of
    multiples, as integers are, the bounds are such themselves."""

    integer: bool = False
    low: tuple[Fraction, bool] | None = None
    high: tuple[Fraction, bool] | None = None
    multiple: Fraction | None = None
    not_multiples: tuple[tuple[Fraction, Refusal], ...] = ()
    fractional: str | None = None  # where `type` says so


@dataclass(frozen=True)
class Strings:
    """Strings of `least` to `most` characters that match all of `patterns`, and none of
    `without`."""

    least: int = 0
    most: int | None = None
    patterns: tuple[Pattern, ...] = ()
    without: tuple[Pattern, ...] = ()
    excluded: tuple[str, ...] = ()

    def matches(self, text: str) -> bool:
        """Whether `text` is one of them; linear in its length."""
        is_long = len(text) >= self.least and (self.most is None or len(text) <= self.most)
        if not is_long or text in self.excluded:
            return False
        return all(pattern.matches(text) for pattern in self.patterns) and not any(
            pattern.matches(text) for pattern in self.without
        )

    def others(self) -> "list[Strings]":
        """All other strings, as a union."""
        found = [Strings(without=(pattern,)) for pattern in self.patterns]
        found += [Strings(patterns=(pattern,)) for pattern in self.without]
        found += [Strings(patterns=(one_of(self.excluded),))] if self.excluded else []
        found += [Strings(most=self.least - 1)] if self.least else []
        return found + ([] if self.most is None else [Strings(least=self.most + 1)])


@dataclass(frozen=True)
class Contains:
    """`least` to `most` items must meet a need. `evaluates` if `unevaluatedItems` is to leave
    alone those that do."""

    atom: tuple[int, bool]
    least: int
    most: int | None
    pointer: str
    evaluates: bool = False


@dataclass(frozen=True)
class Arrays:
    """`prefix` is what the first items are, `rest` what the others are. `evaluated` counts items
    that a keyword has spoken about, -1 for all."""

    prefix: tuple[Need, ...] = ()
    rest: Need = ANYTHING
    least: int = 0
    most: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: str | None = None
    evaluated: int = 0
    refusals: tuple[Refusal, ...] = ()

    def item(self, index: int) -> Need:
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True)
class Objects:
    """`properties` in the order of the output; other names by all `patterns` that they match, and
    `rest` for those that match none. Listed names are not subject to the patterns. Each of `some`
    is a set of names of which one must be there, and the place that says so. `evaluated` is None if
    nothing lists properties, not even none. `named` are names that closed objects may have too:
    those that a schema requires, unlike those in `required` that come from complements."""

    properties: tuple[tuple[str, Need], ...] = ()
    patterns: tuple[tuple[Strings, Need], ...] = ()
    rest: Need = ANYTHING
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    evaluated: frozenset[str] | None = None
    evaluated_patterns: frozenset[Strings] = frozenset()
    all_evaluated: bool = False
    some: tuple[tuple[Strings, str], ...] = ()
    refusals: tuple[Refusal, ...] = ()
    limits_at: str = "#"
    named: frozenset[str] = frozenset()

    def member(self, name: str) -> Need:
        """What the value of the property `name` must be."""
        for listed, need in self.properties:
            if listed == name:
                return need
        return self.unlisted(name)

    def unlisted(self, name: str) -> Need:
        matching = [need for pattern, need in self.patterns if pattern.matches(name)]
        return both(*matching) if matching else self.rest


@dataclass(frozen=True)
class ItemPaths:
    """Arrays whose items lead through an automaton, from its state 0 to one of `accepting`; each
    of `arcs` is from where, what the item is, and to where. Made for printing."""

    arcs: tuple[tuple[int, Need, int], ...]
    accepting: frozenset[int]

    def cut(self, is_possible: Callable[[Need], bool]) -> "ItemPaths":
        """Without the states that no array of possible items reaches."""
        arcs = [arc for arc in self.arcs if is_possible(arc[1])]
        reached, grown = {0}, True
        while grown:
            more = {after for before, _, after in arcs if before in reached} - reached
            reached |= more
            grown = bool(more)
        return ItemPaths(tuple(a for a in arcs if a[0] in reached), self.accepting & reached)


@dataclass(frozen=True)
class Distinct:
    """Arrays of `least` to `most` different ones of `literals`: at each index those whose numbers
    are in `slots`, after them in `rest`. Of the first `counted` there must be as many as in
    `share`. Made for printing."""

    literals: tuple[JsonLiteral, ...]
    slots: tuple[tuple[int, ...], ...]
    rest: tuple[int, ...]
    least: int
    most: int
    counted: int = 0
    share: tuple[int, int] = (0, 0)


Shape = Values | Numbers | Strings | Arrays | Objects | ItemPaths | Distinct
Shapes = tuple[Shape, ...]

NULL = Values((literal_of(None),))
BOOLEANS = Values((literal_of(False), literal_of(True)))
UNIVERSE: tuple[Shape, ...] = (NULL, BOOLEANS, Numbers(), Strings(), Arrays(), Objects())


def texts_of(shapes: Shapes) -> tuple[list[str], list[Strings]]:
    """The strings in shapes: single ones, and sets."""
    values = [x.value for shape in shapes if isinstance(shape, Values) for x in shape.literals]
    texts = list(dict.fromkeys(value for value in values if isinstance(value, str)))
    return texts, [shape for shape in shapes if isinstance(shape, Strings)]


def plain(shape: Shape) -> Shape:
    """The shape without its record of evaluated parts, which only `unevaluated*` reads."""
    match shape:
        case Arrays():
            contains = tuple(replace(wanted, evaluates=False) for wanted in shape.contains)
            return replace(shape, evaluated=0, contains=contains)
        case Objects():
            return replace(
                shape,
                evaluated=None,
                evaluated_patterns=frozenset(),
                all_evaluated=False,
                named=frozenset(),
            )
        case _:
            return shape


# ---- Intersection ----------------------------------------------------------------------------


def meet(a: Shape, b: Shape) -> Shape | None:
    """The values in both, or None where that is certainly none. `Values` are not met here."""
    match a, b:
        case Numbers(), Numbers():
            return meet_numbers(a, b)
        case Strings(), Strings():
            return meet_strings(a, b)
        case Arrays(), Arrays():
            return meet_arrays(a, b)
        case Objects(), Objects():
            return meet_objects(a, b)
        case _:
            return None


def meet_numbers(a: Numbers, b: Numbers) -> Numbers | None:
    fractional = a.fractional or b.fractional
    steps = [step for step in (a.multiple, b.multiple) if step]
    steps += [Fraction(1)] if a.integer or b.integer else []
    multiple = reduce(least_common, steps) if steps else None
    integer = multiple is not None and multiple.denominator == 1
    low = max((x.low for x in (a, b) if x.low), default=None)
    # Of equal upper bounds the excluded one is the tighter, as it is for lower bounds.
    high = min(
        (x.high for x in (a, b) if x.high), key=lambda bound: (bound[0], not bound[1]), default=None
    )
    if multiple:
        low = low and (_next_multiple(*low, multiple), False)
        high = high and (-_next_multiple(-high[0], high[1], multiple), False)
    is_empty = low and high and (low[0] > high[0] or (low[0] == high[0] and (low[1] or high[1])))
    if is_empty or (integer and fractional):
        return None
    return Numbers(
        integer,
        low,
        high,
        multiple,
        _joined(a.not_multiples, b.not_multiples),
        fractional,
    )


def _next_multiple(bound: Fraction, excluded: bool, step: Fraction) -> Fraction:
    return step * (floor(bound / step) + 1 if excluded else ceil(bound / step))


def least_common(a: Fraction, b: Fraction) -> Fraction:
    """The smallest number above 0 that is a multiple of both."""
    scale = math.lcm(a.denominator, b.denominator)
    return Fraction(math.lcm(int(a * scale), int(b * scale)), scale)


def meet_strings(a: Strings, b: Strings) -> Strings | None:
    least, most = max(a.least, b.least), at_most(a.most, b.most)
    if most is not None and least > most:
        return None
    return Strings(
        least,
        most,
        _joined(a.patterns, b.patterns),
        _joined(a.without, b.without),
        _joined(a.excluded, b.excluded),
    )


def meet_arrays(a: Arrays, b: Arrays) -> Arrays | None:
    least, most = max(a.least, b.least), at_most(a.most, b.most)
    if most is not None and least > most:
        return None
    count = max(len(a.prefix), len(b.prefix))
    return Arrays(
        tuple(both(a.item(i), b.item(i)) for i in range(count)),
        both(a.rest, b.rest),
        least,
        most,
        _joined(a.contains, b.contains),
        a.unique or b.unique,
        -1 if -1 in (a.evaluated, b.evaluated) else max(a.evaluated, b.evaluated),
        _joined(a.refusals, b.refusals),
    )


def meet_objects(a: Objects, b: Objects) -> Objects | None:
    least, most = max(a.least, b.least), at_most(a.most, b.most)
    required = _joined(a.required, b.required)
    if most is not None and max(least, len(required)) > most:
        return None
    names = dict.fromkeys([name for name, _ in (*a.properties, *b.properties)])
    patterns, rest = _meet_patterns(a, b)
    return Objects(
        tuple((name, both(a.member(name), b.member(name))) for name in names),
        patterns,
        rest,
        required,
        least,
        most,
        b.evaluated if a.evaluated is None else a.evaluated | (b.evaluated or frozenset()),
        a.evaluated_patterns | b.evaluated_patterns,
        a.all_evaluated or b.all_evaluated,
        _joined(a.some, b.some),
        _joined(a.refusals, b.refusals),
        a.limits_at if a.least or a.most is not None else b.limits_at,
        a.named | b.named,
    )


def _meet_patterns(a: Objects, b: Objects) -> tuple[tuple[tuple[Strings, Need], ...], Need]:
    rest = both(a.rest, b.rest)
    theirs = dict(b.patterns)
    if not a.patterns or not b.patterns:
        other = b if a.patterns else a
        return tuple((p, both(need, other.rest)) for p, need in (*a.patterns, *b.patterns)), rest
    if {pattern for pattern, _ in a.patterns} == set(theirs):
        return tuple((p, both(need, theirs[p])) for p, need in a.patterns), rest
    # Names that match patterns of both must meet both; if of one only, the rest of the other.
    merged: dict[Strings, Need] = {}
    for shape in (a, b):
        for pattern, need in (*shape.patterns, *unmatched(shape)):
            merged[pattern] = both(merged.get(pattern, ANYTHING), need)
    return tuple(merged.items()), rest


def unmatched(shape: Objects) -> list[tuple[Strings, Need]]:
    """The names that no pattern of a shape matches, in parts, and what holds for them."""
    parts: list[Strings] = [Strings()] if shape.rest != ANYTHING else []
    for pattern, _ in shape.patterns:
        met = [meet_strings(part, other) for part in parts for other in pattern.others()]
        parts = [part for part in met if part is not None]
    return [(part, shape.rest) for part in parts]


def at_most(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _joined(*parts: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))
