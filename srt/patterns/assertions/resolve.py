r"""Assertions (`^`, `$`, `\b` and their kin) resolved: a tree without them for the same texts.

An assertion looks at the place where it stands: at the characters before and after it. A place is
a pair of classes of characters, one for each side, so fine that every assertion of the pattern
holds at a place or does not; there are at most six classes. A part of the pattern becomes a
matrix: for each two places, the tree of the texts that lead from one to the other. The matrices of
parts in a row are multiplied, those of alternatives added, and of the whole pattern's matrix the
places at the text's two ends are what is asked for.

Source: D. Kozen, "A completeness theorem for Kleene algebras and the algebra of regular events",
1994: matrices over a Kleene algebra are one.
"""

from itertools import product

from srt.patterns.assertions.split import (
    MAX_SIZE,
    Work,
    has_assertion,
    in_a_row,
    matches_empty,
    one_of,
    optional,
    part_of,
    size_of,
    too_complex,
)
from srt.patterns.classes import category
from srt.patterns.ranges import ANY, Ranges, complement, intersection
from srt.patterns.tree import (
    EMPTY,
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Node,
    Repeat,
    choice,
    concat,
    repeat,
    trimmed,
)
from srt.wire.constraint import GrammarError

_EDGE = -1  # in the place of a class: the text begins or ends here
_NEWLINE = ord("\n")
_LINES = {AnchorKind.LINE_START, AnchorKind.LINE_END}
_WORDS = {
    AnchorKind.BOUNDARY: False,
    AnchorKind.NO_BOUNDARY: False,
    AnchorKind.UNICODE_BOUNDARY: True,
    AnchorKind.NO_UNICODE_BOUNDARY: True,
}
_DIFFERS = (AnchorKind.BOUNDARY, AnchorKind.UNICODE_BOUNDARY)

_Place = tuple[int, int]  # the classes before and after it
_Matrix = dict[tuple[_Place, _Place], Node]


def whole(node: Node) -> Node:
    """A tree without assertions for the texts that `node` matches from end to end.

    Raises GrammarError if that would be too large.
    """
    node = trimmed(node)
    return _Resolver(node).whole(node) if has_assertion(node) else node


def looks_at_words(node: Node) -> bool:
    r"""Whether a `\b` or `\B` is somewhere in the tree."""
    return not _kinds(node).isdisjoint(_WORDS)


def _kinds(node: Node) -> set[AnchorKind]:
    match node:
        case Anchor(kind):
            return {kind}
        case Concat(items) | Choice(items):
            return set().union(*map(_kinds, items))
        case Repeat(item):
            return _kinds(item)
        case _:
            return set()


class _Resolver:
    """Resolves the assertions of one tree."""

    def __init__(self, node: Node) -> None:
        self._work = Work()
        kinds = _kinds(node)
        if AnchorKind.FINAL_END in kinds:
            raise GrammarError("'$' inside a pattern is not supported here; write '\\Z'")
        classes: list[Ranges] = [ANY]
        for is_unicode in {_WORDS[kind] for kind in kinds & _WORDS.keys()}:
            classes = _split_by(classes, category("w", is_unicode))
        if kinds & _LINES:
            classes = _split_by(classes, ((_NEWLINE, _NEWLINE),))
        self._classes = classes
        sides = range(_EDGE, len(classes))
        self._places: list[_Place] = [(before, after) for before in sides for after in sides]
        self._identity: _Matrix = {(place, place): EMPTY for place in self._places}

    def whole(self, node: Node) -> Node:
        """The texts from a place at the text's beginning to one at its end."""
        found = self._matrix(node)
        ends = [
            found.get((first, last))
            for first, last in product(self._places, self._places)
            if first[0] == _EDGE and last[1] == _EDGE
        ]
        return one_of(ends) or Chars(())

    def _matrix(self, node: Node) -> _Matrix:
        if isinstance(node, Anchor):
            return {(p, p): EMPTY for p in self._places if self._holds(node.kind, p)}
        if not has_assertion(node):
            return self._plain(node)
        match node:
            case Choice(items):
                plain = [item for item in items if not has_assertion(item)]
                parts = [self._plain(choice(plain))] if plain else []
                return self._sum([*parts, *(self._matrix(i) for i in items if has_assertion(i))])
            case Concat(items):
                return self._in_a_row(items)
            case Repeat(item, low, high):
                return self._repeated(self._matrix(item), low, high)
        raise TypeError(f"{node!r} has no assertion")

    def _plain(self, node: Node) -> _Matrix:
        found: _Matrix = dict(self._identity) if matches_empty(node) else {}
        by_ends = {}
        for first, outer in enumerate(self._classes):
            beginning = part_of(node, outer, True, self._work)
            for last, inner in enumerate(self._classes):
                part = None if beginning is None else part_of(beginning, inner, False, self._work)
                if part is not None:
                    by_ends[first, last] = part
        for (first, last), part in by_ends.items():
            for before, after in product(self._places, self._places):
                if before[1] == first and after[0] == last:
                    known = found.get((before, after))
                    found[before, after] = part if known is None else optional(part)
        return found

    def _in_a_row(self, items: tuple[Node, ...]) -> _Matrix:
        found = self._identity
        plain: list[Node] = []
        for item in items:
            if has_assertion(item):
                found = self._product(found, self._plain(concat(plain)))
                found = self._product(found, self._matrix(item))
                plain = []
            else:
                plain.append(item)
        return self._product(found, self._plain(concat(plain)))

    def _repeated(self, matrix: _Matrix, low: int, high: int | None) -> _Matrix:
        found = self._identity
        for _ in range(low):
            found = self._product(found, matrix)
        if high is None:
            return self._product(found, self._star(matrix))
        rest = self._identity
        for _ in range(high - low):
            rest = self._sum([self._identity, self._product(matrix, rest)])
        return self._product(found, rest)

    def _star(self, matrix: _Matrix) -> _Matrix:
        """Any number of times, by elimination of one place after the other."""
        for via in self._places:
            loop = matrix.get((via, via), EMPTY)
            loops = EMPTY if loop == EMPTY else repeat(loop, 0, None)
            left = [(key[0], part) for key, part in matrix.items() if key[1] == via != key[0]]
            right = [(key[1], part) for key, part in matrix.items() if key[0] == via != key[1]]
            more: _Matrix = {}
            for (first, before), (last, after) in product(left, right):
                part = in_a_row([before, loops, after])
                if part is not None:
                    more[first, last] = part
            # A way that begins or ends here may go round it first, or last.
            for first, before in left:
                more[first, via] = concat([before, loops])
            for last, after in right:
                more[via, last] = concat([loops, after])
            more[via, via] = loops
            kept = {key: part for key, part in matrix.items() if via not in key}
            matrix = self._sum([kept, more])
        return self._sum([self._identity, matrix])

    def _product(self, left: _Matrix, right: _Matrix) -> _Matrix:
        by_first: dict[_Place, list[tuple[_Place, Node]]] = {}
        for (first, last), part in right.items():
            by_first.setdefault(first, []).append((last, part))
        terms: dict[tuple[_Place, _Place], list[Node | None]] = {}
        for (first, via), before in left.items():
            for last, after in by_first.get(via, ()):
                terms.setdefault((first, last), []).append(in_a_row([before, after]))
        return self._checked(terms)

    def _sum(self, matrices: list[_Matrix]) -> _Matrix:
        terms: dict[tuple[_Place, _Place], list[Node | None]] = {}
        for matrix in matrices:
            for key, part in matrix.items():
                terms.setdefault(key, []).append(part)
        return self._checked(terms)

    def _checked(self, terms: dict[tuple[_Place, _Place], list[Node | None]]) -> _Matrix:
        found: _Matrix = {}
        size = 0
        for key, parts in terms.items():
            joined = one_of(parts)
            if joined is not None:
                found[key] = joined
                nodes = size_of(joined)
                size += nodes
                self._work.add(nodes)
                if size >= MAX_SIZE:
                    raise too_complex()
        return found

    # ---- Places --------------------------------------------------------------------------------

    def _holds(self, kind: AnchorKind, place: _Place) -> bool:
        before, after = place
        match kind:
            case AnchorKind.START:
                return before == _EDGE
            case AnchorKind.END:
                return after == _EDGE
            case AnchorKind.LINE_START:
                return before == _EDGE or self._has(before, ((_NEWLINE, _NEWLINE),))
            case AnchorKind.LINE_END:
                return after == _EDGE or self._has(after, ((_NEWLINE, _NEWLINE),))
        if kind not in _WORDS:
            return True
        words = category("w", _WORDS[kind])
        return (self._has(before, words) != self._has(after, words)) is (kind in _DIFFERS)

    def _has(self, side: int, ranges: Ranges) -> bool:
        return side != _EDGE and bool(intersection(self._classes[side], ranges))


def _split_by(classes: list[Ranges], ranges: Ranges) -> list[Ranges]:
    parts = [intersection(each, side) for each in classes for side in (ranges, complement(ranges))]
    return [part for part in parts if part]
