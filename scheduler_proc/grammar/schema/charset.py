"""Sets of Unicode code points as sorted, disjoint ranges; the alphabet of the string patterns.

Called by the pattern parser and printers. Invariant: surrogates are in no set, because no UTF-8
text has them.
"""

import unicodedata
from functools import cache

CharSet = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


def union(*sets: CharSet) -> CharSet:
    """The points that are in any of `sets`."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(r for ranges in sets for r in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: CharSet) -> CharSet:
    """The points that are not in `ranges`."""
    found, start = [], 0
    for low, high in union(ranges, (_SURROGATES,)):
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        found.append((start, MAX_CODE_POINT))
    return tuple(found)


def difference(ranges: CharSet, other: CharSet) -> CharSet:
    """The points of `ranges` that are not in `other`."""
    return complement(union(complement(ranges), other))


def intersection(ranges: CharSet, other: CharSet) -> CharSet:
    """The points that are in both."""
    return complement(union(complement(ranges), complement(other)))


def chars(text: str) -> CharSet:
    """The set of the characters of `text`."""
    return union(tuple((ord(char), ord(char)) for char in text))


ANY: CharSet = complement(())
DIGIT: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# ECMA-262's WhiteSpace and LineTerminator.
LINE_END: CharSet = chars("\n\r\u2028\u2029")
SPACE: CharSet = union(
    chars("\t\v\f \u00a0\u1680\u202f\u205f\u3000\ufeff"), LINE_END, ((0x2000, 0x200A),)
)
# What a JSON string may hold only as an escape, by the practice of the back end (DEL included).
CONTROL: CharSet = ((0x00, 0x1F), (0x7F, 0x7F))

_CATEGORIES = {
    "Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Number": "N",
    "Decimal_Number": "Nd", "digit": "Nd", "Punctuation": "P", "punct": "P", "Symbol": "S",
    "Separator": "Z", "Space_Separator": "Zs", "Other": "C", "Control": "Cc",
}  # fmt: skip
_KNOWN = frozenset(
    """L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp
    C Cc Cf Co Cn""".split()  # noqa: SIM905 - a list of 38 strings reads worse
)


@cache
def category(name: str) -> CharSet | None:
    """The set of a general category, by its short or long name; None if it is not known."""
    short = _CATEGORIES.get(name, name)
    if short not in _KNOWN:
        return None
    found: list[tuple[int, int]] = []
    for point in range(MAX_CODE_POINT + 1):
        if unicodedata.category(chr(point)).startswith(short):
            if found and found[-1][1] == point - 1:
                found[-1] = (found[-1][0], point)
            else:
                found.append((point, point))
    return difference(tuple(found), (_SURROGATES,))
