"""Character sets in brackets, such as `[a-z]`.

The parser calls `parse_set` after reading the opening bracket. Negated sets and classes contain
every other character, non-ASCII ones too.
"""

from srt.patterns.classes import category, fold
from srt.patterns.errors import PatternError
from srt.patterns.ranges import (
    Range,
    Ranges,
    complement,
    union,
    without_surrogates,
)
from srt.patterns.source import OCTAL_DIGITS, PatternSource

_BACKSPACE = 8
_CATEGORIES = "dDsSwW"

_Member = int | Ranges  # a character, or a class such as \d


def parse_set(source: PatternSource, *, unicode: bool, ignore_case: bool) -> Ranges:
    """The characters of the set whose `[` has just been read; reads up to its `]`."""
    opened = source.pos - 1
    negated = source.skip("^")
    first = source.pos
    chars: list[Range] = []
    classes: list[Range] = []
    while source.pos == first or source.peek() != "]":
        start = source.pos
        low = _member(source, opened, unicode)
        if not isinstance(low, int):
            _no_range_from_class(source, start)
            classes += low
        else:
            chars.append((low, _range_end(source, opened, low, start, unicode)))
    source.take()
    folded = fold(union(chars), unicode) if ignore_case else tuple(chars)
    ranges = union((*folded, *classes))
    return complement(ranges) if negated else without_surrogates(ranges)


def _range_end(source: PatternSource, opened: int, low: int, start: int, unicode: bool) -> int:
    """The last character of the range that starts with `low`, or `low` if it is none."""
    if not source.text.startswith("-", source.pos) or source.text.startswith("-]", source.pos):
        return low
    source.take()
    high = _member(source, opened, unicode)
    if not isinstance(high, int) or high < low:
        raise PatternError(f"bad character range {source.text[start : source.pos]}", start)
    return high


def _no_range_from_class(source: PatternSource, start: int) -> None:
    if source.peek() == "-" and not source.text.startswith("-]", source.pos):
        # To the end of what would be the range, for the message.
        end = source.pos + (3 if source.text.startswith("-\\", source.pos) else 2)
        raise PatternError(f"bad character range {source.text[start:end]}", start)


def _member(source: PatternSource, opened: int, unicode: bool) -> _Member:
    start = source.pos
    char = source.take()
    if char == "":
        raise PatternError("unterminated character set", opened)
    if char != "\\":
        return ord(char)
    letter = source.take()
    if letter and letter in _CATEGORIES:
        return category(letter, unicode)
    if letter == "b":
        return _BACKSPACE
    if letter and letter in OCTAL_DIGITS:
        return source.octal(letter + source.take_while(OCTAL_DIGITS, 2), start)
    point = source.escaped_character(letter, start)
    if point is None:
        raise source.bad_escape(start)
    return point
