"""The abstract syntax of patterns, after flags, escapes and names are resolved.

The parser builds it, the NFA builder and the Rust printer read it. Groups leave no trace and lazy
quantifiers equal greedy ones, since only the language matters; but who asks the parser for `groups`
finds where those with a name begin and end, and what is lazy. The constructors
`concat`, `choice` and `repeat` keep trees small; trees are at most MAX_DEPTH groups deep, so that
functions over them may recurse.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from srt.patterns.ranges import Ranges

MAX_DEPTH = 200  # groups within groups; each costs up to three levels of recursion


class Literal(NamedTuple):
    """Just this text. The empty text is the empty pattern."""

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
    BOUNDARY = "\\b"  # of a word's character and what is none
    UNICODE_BOUNDARY = "(?u)\\b"
    NO_BOUNDARY = "\\B"
    NO_UNICODE_BOUNDARY = "(?u)\\B"
    GROUP_START = "(?P<"  # holds everywhere
    GROUP_END = ")"  # likewise


class Anchor(NamedTuple):
    """The empty text, in the right place. `group` is the name of the group that has an end here."""

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
    """One of the items, of which there is at least one."""
    alternatives = tuple(items)
    return alternatives[0] if len(alternatives) == 1 else Choice(alternatives)


def repeat(item: Node, low: int, high: int | None, lazy: bool = False) -> Node:
    """The item `low` to `high` times; what is certainly one time or empty is not repeated."""
    if item == EMPTY or high == 0:
        return EMPTY
    if (low, high) == (1, 1):
        return item
    return Repeat(item, low, high, lazy)
