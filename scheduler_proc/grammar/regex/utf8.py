"""Sets of characters as small automata over the bytes of their UTF-8 form.

The NFA builder copies one automaton per occurrence of a set. Each is deterministic and minimal:
a set of n-byte tails is one node, however many lead bytes come to it.
"""

from collections.abc import Iterator
from functools import lru_cache

from srt.patterns.ranges import Range, Ranges

EXIT = -1  # as a target: the character is complete

Edge = tuple[int, int]  # the bytes (bit b for byte b), the target
# The edges of each node; the entry is the last one and edges lead to earlier ones.
ByteForm = tuple[tuple[Edge, ...], ...]


# For characters of 1 to 4 bytes: first and last code point, the lead byte of value 0.
_LENGTHS = (
    (0x00, 0x7F, 0x00),
    (0x80, 0x7FF, 0xC0),
    (0x800, 0xFFFF, 0xE0),
    (0x10000, 0x10FFFF, 0xF0),
)


def byte_mask(low: int, high: int) -> int:
    """The set of the bytes from `low` to `high`, as bits."""
    return (1 << high + 1) - (1 << low)


@lru_cache(maxsize=256)
def byte_form(ranges: Ranges) -> ByteForm:
    """The automaton of the characters in `ranges`, which are free of surrogates."""
    builder = _FormBuilder()
    edges: dict[int, int] = {}
    for tail, (first, last, lead) in enumerate(_LENGTHS):
        part = tuple(_within(ranges, first, last))
        if part:
            builder.split(part, tail, lead, edges)
    builder.nodes.append(tuple((mask, target) for target, mask in edges.items()))
    return tuple(builder.nodes)


class _FormBuilder:
    def __init__(self) -> None:
        self.nodes: list[tuple[Edge, ...]] = []
        self._tails: dict[tuple[Ranges, int], int] = {}

    def split(self, ranges: Ranges, tail: int, lead: int, edges: dict[int, int]) -> None:
        """Add to `edges` the first bytes of `ranges`, which `tail` more bytes follow.

        `lead` is the byte that stands for a first digit of 0, in base 64.
        """
        for low, high, rest in _by_digit(ranges, 6 * tail):
            target = self._tail(rest, tail)
            edges[target] = edges.get(target, 0) | byte_mask(lead + low, lead + high)

    def _tail(self, ranges: Ranges, length: int) -> int:
        """The node that reads the last `length` bytes of a character."""
        if length == 0:
            return EXIT
        key = (ranges, length)
        if key not in self._tails:
            edges: dict[int, int] = {}
            self.split(ranges, length - 1, 0x80, edges)
            self.nodes.append(tuple((mask, target) for target, mask in edges.items()))
            self._tails[key] = len(self.nodes) - 1
        return self._tails[key]


def _within(ranges: Ranges, first: int, last: int) -> Iterator[Range]:
    for low, high in ranges:
        if low <= last and high >= first:
            yield max(low, first), min(high, last)


def _by_digit(ranges: Ranges, bits: int) -> Iterator[tuple[int, int, Ranges]]:
    """Split by the digit above the lowest `bits`: first digit, last digit, what may follow them."""
    full = (1 << bits) - 1
    partial: dict[int, list[Range]] = {}
    for low, high in ranges:
        first, last = low >> bits, high >> bits
        if first == last:
            partial.setdefault(first, []).append((low & full, high & full))
            continue
        if low & full:
            partial.setdefault(first, []).append((low & full, full))
            first += 1
        if high & full != full:
            partial.setdefault(last, []).append((0, high & full))
            last -= 1
        if first <= last:
            yield first, last, ((0, full),)
    for digit, rest in partial.items():
        yield digit, digit, tuple(rest)
