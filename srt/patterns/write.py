"""Regular expressions of trees of patterns, and of natural numbers between two bounds.

They mean the same in Python's `re` and in Rust's regex crate, which llguidance uses: sets are
written as ranges, so nothing depends on the reader. They match whole texts, and trees must be
without assertions (`tree.whole`).
"""

from collections.abc import Callable
from functools import lru_cache

from srt.patterns.ranges import ANY, Ranges, characters, complement, intersection, subtract, union
from srt.patterns.tree import Chars, Choice, Concat, Literal, Node, Repeat

# Any character in a JSON string: itself, or as an escape if it must be one.
_ANY_JSON = r"""(?:[^"\\\x00-\x1f\x7f]|\\(?:["\\bfnrt]|u00(?:[01][0-9a-fA-F]|7[fF])))"""
_C0_BUT_LINE_FEED: Ranges = ((0x00, 0x09), (0x0B, 0x1F))
# What a JSON string may hold only as an escape, as the back end has it (DEL included).
_CONTROL: Ranges = ((0x00, 0x1F), (0x7F, 0x7F))
NO_CHARACTER = r"[^\s\S]"
FREE_TEXT = r"[\s\S]*"
_QUOTES = characters('"\\')
_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r"}


def regex(node: Node) -> str:
    """The regular expression of a tree."""
    return _regex(node, _class)


def spellable_regex(node: Node) -> str:
    """`regex` without what the back end would spell wrongly in JSON; see `_spellable`."""
    return _regex(node, lambda ranges: _class(_spellable(ranges)))


def json_regex(node: Node, exact: bool = False) -> str:
    """The regular expression of the JSON spelling, without the quotes; like `spellable_regex`
    unless it is to be `exact`."""
    return _regex(node, lambda ranges: _json_class(ranges if exact else _spellable(ranges)))


def _regex(node: Node, write_set: Callable[[Ranges], str]) -> str:
    match node:
        case Literal(text):
            return "".join(write_set(((ord(char), ord(char)),)) for char in text) or "(?:)"
        case Chars(ranges):
            return write_set(ranges)
        case Concat(items):
            return "".join(_regex(item, write_set) for item in items)
        case Choice(items):
            return f"(?:{'|'.join(_regex(item, write_set) for item in items)})"
        case Repeat(item, low, high):
            written = _regex(item, write_set)
            is_atom = isinstance(item, Chars | Choice) or (
                isinstance(item, Literal) and len(item.text) == 1
            )
            return (written if is_atom else f"(?:{written})") + _quantifier(low, high)
        case _:
            raise TypeError(f"{node!r} cannot be written")


def _quantifier(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
    if short is not None:
        return short
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


@lru_cache(4096)
def _spellable(ranges: Ranges) -> Ranges:
    """`ranges` without U+0000 if it has the C0 controls (line feed or not) but lacks the quote
    or the backslash.

    llguidance 1.9 lets the escapes of both through for such a set, and for no other: a negated
    class such as `[^"]` would accept a quote. So a pattern never spells NUL by such a set.
    """
    if intersection(ranges, _C0_BUT_LINE_FEED) != _C0_BUT_LINE_FEED:
        return ranges
    if intersection(ranges, _QUOTES) == _QUOTES:
        return ranges
    return subtract(ranges, ((0, 0),))


@lru_cache(4096)
def _class(ranges: Ranges) -> str:
    if ranges == ANY:
        return r"[\s\S]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char(ranges[0][0])
    negated = complement(ranges)
    if ranges and negated and len(negated) < len(ranges):
        return f"[^{_ranges(negated)}]"
    return f"[{_ranges(ranges)}]" if ranges else NO_CHARACTER


def _ranges(ranges: Ranges) -> str:
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
def _json_class(ranges: Ranges) -> str:
    if ranges == ANY:
        return _ANY_JSON
    raw = subtract(ranges, union(_CONTROL + _QUOTES))
    options = [_class(raw)] if raw else []
    for low, high in intersection(ranges, _QUOTES):
        options += [f"\\\\{_char(point)}" for point in range(low, high + 1)]
    control = intersection(ranges, _CONTROL)
    options += [_escape(point) for low, high in control for point in range(low, high + 1)]
    if not options:
        return NO_CHARACTER
    return options[0] if len(options) == 1 and len(raw) > 0 else "(?:" + "|".join(options) + ")"


def _escape(point: int) -> str:
    """The JSON spellings of a control character."""
    digits = "".join(
        f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{point:02x}"
    )
    short = _SHORT_ESCAPES.get(point)
    return rf"\\u00{digits}" + (f"|\\\\{short}" if short else "")


# ---- Numbers ---------------------------------------------------------------------------------


def naturals(low: int, high: int | None) -> list[str]:
    """Alternatives for the numbers from `low` to `high`, None being no limit, without leading
    zeros: one for each number of digits, and one for all lengths of which every number is between
    them."""
    if high is None:
        digits = len(str(low))
        if low == 10 ** (digits - 1):
            return [f"[1-9][0-9]{{{digits - 1},}}"]
        return [*naturals(low, 10**digits - 1), f"[1-9][0-9]{{{digits},}}"]
    found = []
    while low <= high:
        most = len(str(high + 1)) - 1  # digits that all numbers in the range may have
        if low == 10 ** (len(str(low)) - 1) and len(str(low)) < most:
            found.append(f"[1-9][0-9]{{{len(str(low)) - 1},{most - 1}}}")
            low = 10**most
            continue
        last = min(high, 10 ** len(str(low)) - 1)
        found.append(_same_length(str(low), str(last)))
        low = last + 1
    return found


def digit(low: int, high: int) -> str:
    """One digit between two."""
    return str(low) if low == high else f"[{low}-{high}]"


def _same_length(low: str, high: str) -> str:
    """The digits from `low` to `high`, which are equally long."""
    rest = len(low) - 1
    if low == high:
        return low
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):  # the first digit's numbers are not all in the range
        parts.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    end = None
    if high[1:].strip("9"):
        end = high[0] + _same_length("0" * rest, high[1:])
        last -= 1
    if first <= last:
        parts.append(digit(first, last) + {0: "", 1: "[0-9]"}.get(rest, f"[0-9]{{{rest}}}"))
    parts += [] if end is None else [end]
    return parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"
