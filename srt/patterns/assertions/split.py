"""The texts of a tree by their first and last character: trees that are without assertions.

Used where assertions are resolved. A language without texts is None here, so that trees stay free
of sets without characters.
"""

from collections.abc import Iterable

from srt.patterns.ranges import Ranges, intersection
from srt.patterns.tree import (
    EMPTY,
    MAX_DEPTH,
    Anchor,
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Repeat,
    character,
    choice,
    concat,
    repeat,
)
from srt.wire.constraint import GrammarError

MAX_SIZE = 10_000  # nodes of the trees that one step makes
MAX_WORK = 200_000  # nodes that all steps make: some 0.5 s


class Work:
    """Counts the nodes that are made for one pattern. `add` raises GrammarError for too many."""

    def __init__(self) -> None:
        self._done = 0

    def add(self, nodes: int) -> None:
        self._done += nodes
        if self._done >= MAX_WORK:
            raise too_complex()


def too_complex() -> GrammarError:
    return GrammarError(
        "the pattern is too complex: its '^', '$' or word boundaries, with its repetitions and "
        "alternatives, take too many cases: use fewer of them, or leave the word boundaries out"
    )


def size_of(node: Node, depth: int = 0) -> int:
    """The nodes of a tree; as many as are too many if it is too deep."""
    if depth > MAX_DEPTH:
        return MAX_SIZE
    match node:
        case Concat(items) | Choice(items):
            return 1 + sum(size_of(item, depth + 1) for item in items)
        case Repeat(item):
            return 1 + size_of(item, depth + 1)
        case _:
            return 1


def has_assertion(node: Node) -> bool:
    """Whether an assertion is somewhere in the tree."""
    match node:
        case Anchor():
            return True
        case Concat(items) | Choice(items):
            return any(map(has_assertion, items))
        case Repeat(item):
            return has_assertion(item)
        case _:
            return False


def matches_empty(node: Node) -> bool:
    """Whether the empty text is one of the tree's."""
    match node:
        case Literal(text):
            return text == ""
        case Concat(items):
            return all(map(matches_empty, items))
        case Choice(items):
            return any(map(matches_empty, items))
        case Repeat(item, low):
            return low == 0 or matches_empty(item)
        case _:
            return False


def one_of(nodes: Iterable[Node | None]) -> Node | None:
    """The texts of any of the trees."""
    found = tuple(dict.fromkeys(node for node in nodes if node is not None))
    return choice(found) if found else None


def in_a_row(nodes: Iterable[Node | None]) -> Node | None:
    """The texts of the trees, one after the other."""
    found: list[Node] = []
    for node in nodes:
        if node is None:
            return None
        found += node.items if isinstance(node, Concat) else (node,)
    return concat(found)


def part_of(node: Node, outer: Ranges, at_start: bool, work: Work) -> Node | None:
    """The texts, not empty, that begin with a character of `outer`, or else end with one. Raises
    GrammarError if that is too much `work`."""
    found = _part_of(node, outer, at_start, work)
    work.add(0 if found is None else size_of(found))
    return found


def _part_of(node: Node, outer: Ranges, at_start: bool, work: Work) -> Node | None:
    match node:
        case Literal(""):
            return None
        case Literal(text):
            point = ord(text[0 if at_start else -1])
            return node if intersection(((point, point),), outer) else None
        case Chars(ranges):
            common = intersection(ranges, outer)
            return character(common) if common else None
        case Choice(items):
            return one_of(part_of(item, outer, at_start, work) for item in items)
        case Concat(items):
            options: list[Node | None] = []
            for number in range(len(items)) if at_start else range(len(items) - 1, -1, -1):
                work.add(len(items))
                part = part_of(items[number], outer, at_start, work)
                sides = (None, items[number + 1 :]) if at_start else (items[:number], None)
                options.append(in_a_row([*(sides[0] or ()), part, *(sides[1] or ())]))
                if not matches_empty(items[number]):
                    break
            return one_of(options)
        case Repeat(item, low, high):
            part = part_of(item, outer, at_start, work)
            rest = repeat(item, max(0, low - 1), None if high is None else high - 1)
            return in_a_row([part, rest] if at_start else [rest, part])
        case _:
            raise TypeError(f"{node!r} is an assertion")


def optional(node: Node | None) -> Node:
    """The tree's texts and the empty one."""
    return EMPTY if node is None else repeat(node, 0, 1)
