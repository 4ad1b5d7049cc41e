"""Sets of characters as sorted, disjoint, non-adjacent ranges of code points.

The parser computes with them; every set of an AST is in this form, without surrogates, which no
UTF-8 text can contain.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

Range = tuple[int, int]  # first and last code point, both inclusive
Ranges = tuple[Range, ...]

MAX_CODE_POINT = 0x10FFFF
FIRST_SURROGATE = 0xD800
LAST_SURROGATE = 0xDFFF

ANY: Ranges = ((0, FIRST_SURROGATE - 1), (LAST_SURROGATE + 1, MAX_CODE_POINT))


def contains(ranges: Ranges, point: int) -> bool:
    """Whether a character is in the set."""
    index = bisect_right(ranges, point, key=itemgetter(0)) - 1
    return index >= 0 and point <= ranges[index][1]


def union(ranges: Iterable[Range]) -> Ranges:
    """The set of all characters in `ranges`, which may overlap and come in any order."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            if high > merged[-1][1]:
                merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """The characters that are not in the set; surrogates are in neither."""
    gaps: list[Range] = []
    start = 0
    for low, high in union((*ranges, (FIRST_SURROGATE, LAST_SURROGATE))):
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return tuple(gaps)


def subtract(ranges: Ranges, removed: Ranges) -> Ranges:
    """The characters of `ranges` that are not in `removed`."""
    return complement(complement(ranges) + removed)


def intersection(ranges: Ranges, other: Ranges) -> Ranges:
    """The characters that are in both."""
    return complement(complement(ranges) + complement(other))


def characters(text: str) -> Ranges:
    """The set of the characters of `text`."""
    return union((ord(char), ord(char)) for char in text)


def without_surrogates(ranges: Ranges) -> Ranges:
    """The characters of the set that UTF-8 can encode."""
    if not ranges or ranges[-1][1] < FIRST_SURROGATE:
        return ranges
    return complement(complement(ranges))
