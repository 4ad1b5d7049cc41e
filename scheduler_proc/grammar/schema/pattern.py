"""String patterns as trees over sets of characters, and their printed forms.

A `Pattern` is always matched against the *whole* string: the parser of ECMA patterns adds the
free text around an unanchored one. It prints as a plain regex, valid in Python's `re` and in the
back end alike, and as a regex over the JSON spelling of the string.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from scheduler_proc.grammar.schema import charset
from scheduler_proc.grammar.schema.charset import CharSet
from scheduler_proc.grammar.schema.oracle import full_match


@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    ranges: CharSet


@dataclass(frozen=True)
class Sequence:
    """One item after the other."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True)
class Choice:
    """One of the items; never, if there is none."""

    items: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repeat:
    """The item `least` to `most` times; `most` None is any number."""

    item: "Node"
    least: int
    most: int | None


Node = Chars | Sequence | Choice | Repeat

ANY_TEXT = Repeat(Chars(charset.ANY), 0, None)
EMPTY = Sequence(())

# Any character in a JSON string: itself, or as an escape if it must be one.
_ANY_JSON = r"""(?:[^"\\\x00-\x1f\x7f]|\\(?:["\\bfnrt]|u00(?:[01][0-9a-fA-F]|7[fF])))"""
_C0_BUT_LINE_FEED: CharSet = ((0x00, 0x09), (0x0B, 0x1F))
_QUOTES = charset.chars('"\\')
_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}


@dataclass(frozen=True)
class Pattern:
    """What a whole string must look like. Two patterns are equal if they print alike."""

    regex: str
    node: Node = field(compare=False)

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` matches; linear in its length."""
        return full_match(self.regex, text)

    def back_end_regex(self) -> str:
        """The plain regex, less what the back end would spell wrongly; see `_spellable`."""
        return _print(self.node, lambda ranges: _class(_spellable(ranges)))

    def json_regex(self, exact: bool = False) -> str:
        """The regex of the JSON spelling, without the quotes, in Python's syntax; like
        `back_end_regex` unless it is to be `exact`."""
        return _print(
            self.node, lambda ranges: _json_class(ranges if exact else _spellable(ranges))
        )


def pattern_of(node: Node) -> Pattern:
    """The pattern of a tree."""
    return Pattern(_print(node, _class), node)


def head(pattern: Pattern) -> str:
    """The spelling of characters that all texts of a pattern begin with, if it is easily found."""
    found = re.match(r"(?:\(\?:)?((?:(?:\w|\\[-./])(?![*?{]))*)", pattern.regex)
    return found[1] if found and "|" not in pattern.regex else ""


def literal(text: str) -> Node:
    """Exactly `text`."""
    return Sequence(tuple(Chars(charset.chars(char)) for char in text))


def one_of(texts: Iterable[str]) -> Pattern:
    """Exactly one of `texts`."""
    return pattern_of(Choice(tuple(literal(text) for text in texts)))


def none_of(texts: Iterable[str]) -> Pattern:
    """Any text but these: the complement of their trie, which is as large as the trie."""
    return pattern_of(_outside(sorted(set(texts))))


def _outside(texts: list[str]) -> Node:
    """What is not in `texts`, which are sorted and distinct."""
    if not texts:
        return ANY_TEXT
    branches: dict[str, list[str]] = {}
    for text in texts:
        if text:
            branches.setdefault(text[0], []).append(text[1:])
    other = charset.complement(charset.chars("".join(branches)))
    items: list[Node] = [Sequence((Chars(other), ANY_TEXT))]
    items += [
        Sequence((Chars(charset.chars(char)), _outside(rests))) for char, rests in branches.items()
    ]
    return Choice(tuple(items) if "" in texts else (EMPTY, *items))


# ---- Printing --------------------------------------------------------------------------------


def _print(node: Node, print_chars: Callable[[CharSet], str]) -> str:
    match node:
        case Chars(ranges):
            return print_chars(ranges)
        case Sequence(items):
            return "".join(_print(item, print_chars) for item in items)
        case Choice(()):
            return print_chars(())
        case Choice(items):
            return "(?:" + "|".join(_print(item, print_chars) for item in items) + ")"
        case Repeat(item, least, most):
            return _atom(_print(item, print_chars), item) + _count(least, most)


def _atom(printed: str, item: Node) -> str:
    return printed if isinstance(item, Chars | Choice) else f"(?:{printed})"


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return short
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


@lru_cache(4096)
def _spellable(ranges: CharSet) -> CharSet:
    """`ranges` without U+0000 if it has the C0 controls (line feed or not) but lacks the quote
    or the backslash.

    llguidance 1.9 lets the escapes of both through for such a set, and for no other: a negated
    class such as `[^"]` would accept a quote. So a pattern never spells NUL by such a set.
    """
    if charset.intersection(ranges, _C0_BUT_LINE_FEED) != _C0_BUT_LINE_FEED:
        return ranges
    if charset.intersection(ranges, _QUOTES) == _QUOTES:
        return ranges
    return charset.difference(ranges, ((0, 0),))


@lru_cache(4096)
def _class(ranges: CharSet) -> str:
    if ranges == charset.ANY:
        return r"[\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    negated = charset.complement(ranges)
    if ranges and negated and len(negated) < len(ranges):
        return f"[^{_ranges(negated)}]"
    return f"[{_ranges(ranges)}]" if ranges else r"[^\s\S]"


def _ranges(ranges: CharSet) -> str:
    return "".join(
        _char(low) if low == high else f"{_char(low)}-{_char(high)}" for low, high in ranges
    )


def _char(point: int) -> str:
    char = chr(point)
    if char.isascii():
        if char.isalnum() or char == "_":
            return char
        return "\\" + char if char in "\\.+*?()|[]{}^$-/&~#" else f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


@lru_cache(4096)
def _json_class(ranges: CharSet) -> str:
    if ranges == charset.ANY:
        return _ANY_JSON
    raw = charset.difference(ranges, charset.union(charset.CONTROL, charset.chars('"\\')))
    options = [_class(raw)] if raw else []
    for low, high in charset.intersection(ranges, charset.chars('"\\')):
        options += [f"\\\\{_char(point)}" for point in range(low, high + 1)]
    control = charset.intersection(ranges, charset.CONTROL)
    options += [_escape(point) for low, high in control for point in range(low, high + 1)]
    if not options:
        return r"[^\s\S]"
    return options[0] if len(options) == 1 and len(raw) > 0 else "(?:" + "|".join(options) + ")"


def _escape(point: int) -> str:
    """The JSON spellings of a control character."""
    digits = "".join(
        f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{point:02x}"
    )
    short = _SHORT_ESCAPES.get(point)
    return rf"\\u00{digits}" + (f"|\\\\{short}" if short else "")
