r"""The classes `\d \s \w` and case folding, as Python's `re` knows them.

Used by the parser. The ASCII tables are constants; the Unicode ones are derived from the running
Python once per process, so that they match its Unicode version.

Case is folded by one rule in and outside sets. `re` departs from its own rule in sets that mix a
capital letter beyond U+FFFF with other characters (it forgets the letter), and under re.ASCII in
ranges that reach beyond U+FFFF (it folds them as Unicode); we do not follow it there.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from functools import cache, lru_cache

from srt.patterns.ranges import (
    MAX_CODE_POINT,
    Range,
    Ranges,
    complement,
    union,
    without_surrogates,
)

_ASCII: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "s": ((0x09, 0x0D), (0x20, 0x20)),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
}
_GENERAL_CATEGORIES = frozenset(
    """L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp
    C Cc Cf Co Cn""".split()  # noqa: SIM905 - a list of 38 strings reads worse
)
_BLOCK = 256


def category(letter: str, unicode: bool) -> Ranges:
    r"""The characters of the class escape `\letter`: one of d, D, s, S, w, W."""
    lower = letter.lower()
    ranges = _unicode_category(lower) if unicode else _ASCII[lower]
    return ranges if letter == lower else complement(ranges)


@cache
def general_category(name: str) -> Ranges | None:
    """The characters of a Unicode category, such as L or Lu; None if there is no such category."""
    if name not in _GENERAL_CATEGORIES:
        return None
    points = range(MAX_CODE_POINT + 1)
    found = (p for p in points if unicodedata.category(chr(p)).startswith(name))
    return without_surrogates(union((point, point) for point in found))


def load_tables() -> None:
    """Derive the Unicode tables now: the first pattern that needs them would wait some 0.2 s."""
    for letter in _ASCII:
        _unicode_category(letter)
    _cased_in_order()


@lru_cache(maxsize=1024)
def fold(ranges: Ranges, unicode: bool) -> Ranges:
    """`ranges` and all characters that `re` takes for one of them when it ignores case."""
    return _fold_unicode(ranges) if unicode else _fold_ascii(ranges)


@cache
def _unicode_category(letter: str) -> Ranges:
    matches = re.finditer(rf"\{letter}+", _all_characters())
    return tuple((match.start(), match.end() - 1) for match in matches)


def _all_characters() -> str:
    import numpy as np  # here, so that importing `lang` stays light

    points = np.arange(MAX_CODE_POINT + 1, dtype="<u4")
    return points.tobytes().decode("utf-32-le", "surrogatepass")


def _fold_ascii(ranges: Ranges) -> Ranges:
    folded = list(ranges)
    for low, high in ranges:
        if low > 0x7A:
            break
        folded += _shifted(low, high, ord("A"), ord("Z"), +32)
        folded += _shifted(low, high, ord("a"), ord("z"), -32)
    return union(folded)


def _shifted(low: int, high: int, first: int, last: int, by: int) -> list[Range]:
    """The part of low-high that lies within first-last, shifted."""
    low, high = max(low, first), min(high, last)
    return [(low + by, high + by)] if low <= high else []


def _fold_unicode(ranges: Ranges) -> Ranges:
    variants, cased = _case_variants(), _cased_in_order()
    folded = list(ranges)
    for low, high in ranges:
        for point in cased[bisect_left(cased, low) : bisect_right(cased, high)]:
            folded += [(other, other) for other in variants[point]]
    return union(folded)


@cache
def _cased_in_order() -> list[int]:
    return sorted(_case_variants())


@cache
def _case_variants() -> dict[int, list[int]]:
    """For each character that has case: all that equal it when case is ignored.

    Two characters are equal if their simple lower-case mappings are, or if those have the same
    upper-case mapping (so s and the long s): the rule of `re`.
    """
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for point in _cased_characters():
        groups[chr(_simple_lower(point)).upper()].append(point)
    return {point: group for group in groups.values() if len(group) > 1 for point in group}


def _simple_lower(point: int) -> int:
    lower = chr(point).lower()
    return ord(lower[0])  # only U+0130 has more: i, its simple mapping, and a dot


def _cased_characters() -> Iterable[int]:
    """The characters that differ from their lower or upper case."""
    text = _all_characters()
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        if block.lower() != block or block.upper() != block:
            for char in block:
                if char.lower() != char or char.upper() != char:
                    yield ord(char)
