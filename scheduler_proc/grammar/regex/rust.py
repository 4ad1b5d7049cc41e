r"""Patterns in the syntax of Rust's regex crate, for a back end that reads that.

The compiler uses it beyond the state limit. Classes are printed as explicit ranges, so the
meaning of `\w` or of a dropped case does not depend on who reads them.
"""

from scheduler_proc.grammar.base import GrammarError
from srt.patterns.ranges import Ranges
from srt.patterns.tree import (
    EMPTY,
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Repeat,
    choice,
    concat,
)

_STARTS = (AnchorKind.START, AnchorKind.LINE_START)
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _,:;'\"")


def to_rust(node: Node) -> str:
    """`node` for a reader that matches whole texts.

    Raises GrammarError for what cannot be said: an assertion anywhere but at an end of the
    pattern or of one of its alternatives, and a set without characters.
    """
    return _print(without_anchors(node, at_start=True, at_end=True))


def without_anchors(node: Node, *, at_start: bool, at_end: bool) -> Node:
    """`node` without the assertions that hold anyway where the whole text must match."""
    match node:
        case Anchor(kind) if at_start if kind in _STARTS else at_end:
            return EMPTY
        case Choice(items):
            return choice(without_anchors(i, at_start=at_start, at_end=at_end) for i in items)
        case Concat(items):
            return _trim(list(items), at_start=at_start, at_end=at_end)
        case _:
            return node


def _trim(items: list[Node], *, at_start: bool, at_end: bool) -> Node:
    """The same for a sequence: what is empty at an end makes its neighbour the end."""
    first = 0
    while first < len(items):
        is_last = first == len(items) - 1
        items[first] = without_anchors(items[first], at_start=at_start, at_end=at_end and is_last)
        if items[first] != EMPTY or is_last:
            break
        first += 1
    while first < len(items) - 1 and at_end:
        items[-1] = without_anchors(items[-1], at_start=False, at_end=True)
        if items[-1] != EMPTY:
            break
        items.pop()
        if first == len(items) - 1:  # now also at the end
            items[first] = without_anchors(items[first], at_start=at_start, at_end=True)
    return concat(items[first:])


def _print(node: Node) -> str:
    match node:
        case Literal(text):
            return "".join(map(_character, text)) or "(?:)"
        case Chars(ranges):
            return _set(ranges)
        case Concat(items):
            return "".join(_group(i) if isinstance(i, Choice) else _print(i) for i in items)
        case Choice(items):
            return "|".join(map(_print, items))
        case Repeat(item, low, high):
            return _group(item) + _quantifier(low, high)
        case Anchor(kind):
            raise GrammarError(f"{kind.value} inside a pattern has no equal without assertions")


def _group(node: Node) -> str:
    is_atom = isinstance(node, Chars) or (isinstance(node, Literal) and len(node.text) == 1)
    return _print(node) if is_atom else f"(?:{_print(node)})"


def _quantifier(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _set(ranges: Ranges) -> str:
    if not ranges:
        raise GrammarError("a set without characters cannot be passed on")
    return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges) + "]"


def _character(char: str) -> str:
    return char if char in _PLAIN else f"\\x{{{ord(char):x}}}"
