"""The abstract syntax of patterns, after flags, escapes and names are resolved.

The readers build it; the builders of automata and the writers read it. Groups leave no trace and
lazy quantifiers equal greedy ones, since only the language matters; with `groups`, the reader of
`re` also records where named groups begin and end, and what is lazy. The constructors `concat`,
`choice` and `repeat` keep trees small; trees of `re` are at most MAX_DEPTH groups deep, so that
functions over them may recurse.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from srt.patterns.ranges import ANY, Ranges

MAX_DEPTH = 200  # groups within groups; each costs up to three levels of recursion


class Literal(NamedTuple):
    """Exactly this text. The empty text is the empty pattern."""

    text: str


class Chars(NamedTuple):
    """One character out of `ranges`; no character at all if there are none."""

    ranges: Ranges


class AnchorKind(Enum):
    """Assertions about a place in the text."""

    START = "\\A"  # nothing precedes
    LINE_START = "(?m)^"  # nothing or a newline precedes
    END = "\\Z"  # nothing follows
    FINAL_END = "$"  # nothing follows, or only a newline
    LINE_END = "(?m)$"  # nothing or a newline follows
    BOUNDARY = "\\b"  # between a word's character and one that is not
    UNICODE_BOUNDARY = "(?u)\\b"
    NO_BOUNDARY = "\\B"
    NO_UNICODE_BOUNDARY = "(?u)\\B"
    GROUP_START = "(?P<"  # holds everywhere
    GROUP_END = ")"  # holds everywhere, too


class Anchor(NamedTuple):
    """The empty text, at certain places. `group` names the group that begins or ends here."""

    kind: AnchorKind
    group: str = ""


class Concat(NamedTuple):
    """The items, one after the other; at least two."""

    items: tuple["Node", ...]


class Choice(NamedTuple):
    """One of the items; at least two."""

    items: tuple["Node", ...]


class Repeat(NamedTuple):
    """The item, `low` to `high` times; without `high`, as often as it likes. A `lazy` one prefers
    fewer times."""

    item: "Node"
    low: int
    high: int | None
    lazy: bool = False


Node = Literal | Chars | Anchor | Concat | Choice | Repeat

EMPTY = Literal("")
ANY_TEXT = Repeat(Chars(ANY), 0, None)
_STARTS = (AnchorKind.START, AnchorKind.LINE_START)
_ENDS = (AnchorKind.END, AnchorKind.FINAL_END, AnchorKind.LINE_END)


class Reference(NamedTuple):
    """A use of a grammar's rule, and where it is in the source. Rules are trees that may have
    these as leaves; patterns have none."""

    name: str
    position: int


def character(ranges: Ranges) -> Node:
    """One character out of `ranges`."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return Literal(chr(ranges[0][0]))
    return Chars(ranges)


def concat(items: Iterable[Node]) -> Node:
    """The items in a row; neighbouring literals become one."""
    flat: list[Node] = []
    text: list[str] = []
    for item in items:
        if isinstance(item, Literal):
            text.append(item.text)
            continue
        _flush(text, flat)
        flat.append(item)
    _flush(text, flat)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def _flush(text: list[str], into: list[Node]) -> None:
    joined = "".join(text)
    if joined:
        into.append(Literal(joined))
    text.clear()


def choice(items: Iterable[Node]) -> Node:
    """One of the items; a set without characters, which nothing matches, if there are none."""
    alternatives = tuple(items) or (Chars(()),)
    return alternatives[0] if len(alternatives) == 1 else Choice(alternatives)


def repeat(item: Node, low: int, high: int | None, lazy: bool = False) -> Node:
    """The item `low` to `high` times; what is certainly one time or empty is not repeated."""
    if item == EMPTY or high == 0:
        return EMPTY
    if (low, high) == (1, 1):
        return item
    return Repeat(item, low, high, lazy)


def trimmed(node: Node) -> Node:
    """`node` without the assertions that always hold where the whole text must match: those at an
    end of the pattern, or of one of its alternatives."""
    return _trimmed(node, at_start=True, at_end=True)


def _trimmed(node: Node, *, at_start: bool, at_end: bool) -> Node:
    match node:
        case Anchor(kind) if (at_start and kind in _STARTS) or (at_end and kind in _ENDS):
            return EMPTY
        case Choice(items):
            return choice(_trimmed(i, at_start=at_start, at_end=at_end) for i in items)
        case Concat(items):
            return _trim_items(list(items), at_start=at_start, at_end=at_end)
        case _:
            return node


def _trim_items(items: list[Node], *, at_start: bool, at_end: bool) -> Node:
    """The same for a sequence: after an empty item at an end, its neighbour is the end."""
    first = 0
    while first < len(items):
        is_last = first == len(items) - 1
        items[first] = _trimmed(items[first], at_start=at_start, at_end=at_end and is_last)
        if items[first] != EMPTY or is_last:
            break
        first += 1
    while first < len(items) - 1 and at_end:
        items[-1] = _trimmed(items[-1], at_start=False, at_end=True)
        if items[-1] != EMPTY:
            break
        items.pop()
        if first == len(items) - 1:  # now also at the end
            items[first] = _trimmed(items[first], at_start=at_start, at_end=True)
    return concat(items[first:])
