"""Flat schemas as one regex, so that our own automaton with its forced bytes can serve them.

Called by `prepare` with the same plan as the other emitter; the language is exactly the same. A
schema is flat if no part of it refers to itself and objects are closed
(`additionalProperties: false`); others, and those that need a large regex, give None.
"""

import json
import re
from typing import Any

from scheduler_proc.grammar.schema.numbers import choice, integer_regex, takes_regex
from scheduler_proc.grammar.schema.pattern import Pattern, none_of, one_of, pattern_of
from scheduler_proc.grammar.schema.plan import SchemaPlan
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    Arrays,
    Need,
    Numbers,
    Objects,
    Shape,
    Strings,
    Values,
)
from srt.patterns.ranges import ANY
from srt.patterns.tree import Chars, repeat

MAX_REGEX_CHARS = 24_000
MAX_STRING_CHARS = 200  # a longer counted string makes too many states
MAX_ITEMS = 32
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?"
_BLANKS = {"compact": "", "free": r"[ \t\n\r]*"}


class _NotFlatError(Exception):
    """The schema cannot be, or should not be, one regex."""


def flat_regex(plan: SchemaPlan, whitespace: str) -> str | None:
    """The regex, in the syntax of Python's `re`, of the plan's JSON texts; None if not flat."""
    try:
        return _Printer(plan, _BLANKS[whitespace]).need(plan.root)
    except _NotFlatError:
        return None


class _Printer:
    def __init__(self, plan: SchemaPlan, blanks: str) -> None:
        self._plan = plan
        self._blanks = blanks
        self._open: set[Need] = set()

    def need(self, need: Need) -> str:
        if need == ANYTHING or need in self._open:
            raise _NotFlatError
        self._open.add(need)
        printed = choice([self._shape(shape) for shape in self._plan.shapes[need]])
        self._open.discard(need)
        return _checked(printed)

    def _shape(self, shape: Shape) -> str:
        match shape:
            case Values(literals):
                return choice([self._value(literal.value) for literal in literals])
            case Numbers():
                return _numbers(shape)
            case Strings():
                return _quoted(_strings(shape))
            case Arrays():
                return self._arrays(shape)
            case Objects():
                return self._objects(shape)
            case _:
                raise _NotFlatError

    def _value(self, value: Any) -> str:
        blanks = self._blanks
        if isinstance(value, str):
            return _quoted(one_of([value]))
        if isinstance(value, list):
            return self._bracketed("[]", f"{blanks},{blanks}".join(map(self._value, value)))
        if isinstance(value, dict):
            members = (self._member(name, self._value(item)) for name, item in value.items())
            return self._bracketed("{}", f"{blanks},{blanks}".join(members))
        return _scalar(value)

    def _bracketed(self, brackets: str, inner: str) -> str:
        blanks = self._blanks if inner else ""
        return f"\\{brackets[0]}{self._blanks}{inner}{blanks}\\{brackets[1]}"

    def _member(self, name: str, value: str) -> str:
        if any(ord(char) < 0x20 or char == "\x7f" for char in name):
            raise _NotFlatError
        key = one_of([name]).json_regex()
        return f'"{key}"{self._blanks}:{self._blanks}{value}'

    # ---- Arrays ----

    def _arrays(self, shape: Arrays) -> str:
        comma = f"{self._blanks},{self._blanks}"
        prefix = [self.need(part) for part in shape.prefix]
        tail = self._repeated(shape, comma)
        for i in range(len(prefix) - 1, -1, -1):
            item = (comma if i else "") + prefix[i] + tail
            tail = item if i < shape.least else f"(?:{item})?"
            _checked(tail)
        return self._bracketed("[]", tail)

    def _repeated(self, shape: Arrays, comma: str) -> str:
        """The items after a prefix that is complete."""
        known = len(shape.prefix)
        least = max(0, shape.least - known)
        most = None if shape.most is None else shape.most - known
        if most is not None and most <= 0:
            return ""
        if max(least, most or 0) > MAX_ITEMS:
            raise _NotFlatError
        item = self.need(shape.rest)
        if known:
            return f"(?:{comma}{item}){_count(least, most)}"
        others = _count(max(0, least - 1), None if most is None else most - 1)
        items = f"{item}(?:{comma}{item}){others}"
        return items if least else f"(?:{items})?"

    # ---- Objects ----

    def _objects(self, shape: Objects) -> str:
        if shape.patterns or self._plan.is_possible(shape.rest):
            raise _NotFlatError
        if shape.least or shape.most is not None:
            raise _NotFlatError
        members = [
            (self._member(name, self.need(need)), name in shape.required)
            for name, need in shape.properties
            if self._plan.is_possible(need)
        ]
        comma = f"{self._blanks},{self._blanks}"
        if any(required for _, required in members):
            return self._bracketed("{}", _around_required(members, comma))
        options, rest, size = [], "", 0
        for text, _ in reversed(members):
            options.append(text + rest)
            rest = f"(?:{comma}{text})?{rest}"
            size += len(options[-1])
            if size > MAX_REGEX_CHARS:  # it grows with the square of the members
                raise _NotFlatError
        return self._bracketed("{}", f"(?:{'|'.join(options[::-1])})?" if options else "")


def _around_required(members: list[tuple[str, bool]], comma: str) -> str:
    """Members, at least one of them required: the commas go with the others."""
    first = next(i for i, (_, required) in enumerate(members) if required)
    before = "".join(f"(?:{text}{comma})?" for text, _ in members[:first])
    after = "".join(
        f"{comma}{text}" if required else f"(?:{comma}{text})?"
        for text, required in members[first + 1 :]
    )
    return before + members[first][0] + after


def _numbers(shape: Numbers) -> str:
    has_bounds = shape.low is not None or shape.high is not None
    is_regular = shape.integer or not has_bounds
    if shape.multiple not in (None, 1) or takes_regex(shape) or not is_regular:
        raise _NotFlatError
    if has_bounds:
        return integer_regex(shape.low, shape.high)
    return r"-?(?:0|[1-9][0-9]*)" if shape.integer else _NUMBER


def _strings(shape: Strings) -> Pattern:
    patterns = [*shape.patterns]
    if shape.excluded:
        patterns.append(none_of(shape.excluded))
    if shape.least or shape.most is not None or not patterns:
        if max(shape.least, shape.most or 0) > MAX_STRING_CHARS:
            raise _NotFlatError
        patterns.append(pattern_of(repeat(Chars(ANY), shape.least, shape.most)))
    if len(patterns) > 1 or shape.without:
        raise _NotFlatError
    return patterns[0]


def _quoted(pattern: Pattern) -> str:
    return f'"{pattern.json_regex()}"'


def _scalar(value: Any) -> str:
    text = json.dumps(value)
    if "e" in text and isinstance(value, float):
        raise _NotFlatError
    return re.escape(text)


def _count(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def _checked(printed: str) -> str:
    if len(printed) > MAX_REGEX_CHARS:
        raise _NotFlatError
    return printed
