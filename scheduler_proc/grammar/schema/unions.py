"""Unions of shapes: what needs stand for, and their intersections, memoised and counted.

The normaliser says what one subschema stands for; parts of arrays and objects are expanded only
when asked for, so recursion is fine as long as an array or object stands in between. All work
is counted against one budget.
"""

from abc import ABC, abstractmethod
from itertools import combinations

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema import unevaluated
from scheduler_proc.grammar.schema.document import Document, refuse
from scheduler_proc.grammar.schema.judge import Judge
from scheduler_proc.grammar.schema.shapes import (
    UNIVERSE,
    Arrays,
    Need,
    Objects,
    Shape,
    Shapes,
    Strings,
    Values,
    meet,
    plain,
)
from scheduler_proc.grammar.schema.terminal import is_never_met

MAX_ALTERNATIVES = 600
MAX_MEETS = 50_000
MAX_REFERENCES = 64
_EMPTINESS_DEPTH = 4


class Unions(ABC):
    """The unions of shapes of one document's needs."""

    def __init__(self, document: Document, closed: bool = False) -> None:
        """`closed` is the root's `x-closed` if it has none."""
        self.document = document
        self.judge = Judge(self.open_shapes)
        self._shapes: dict[Need, tuple[Shapes, Shapes]] = {}
        self._atoms: dict[tuple[int, bool], Shapes] = {}
        self._open: set[tuple[int, bool]] = set()
        self._meets = 0
        self.is_closed = unevaluated.is_closed(document, closed)
        self.has_closed = False  # some object, so far
        self._false: Need | None = ((document.add(False, 0), True),) if self.is_closed else None

    # ---- Needs ----

    def shapes(self, need: Need) -> Shapes:
        """The union of shapes that a need stands for; empty if nothing can meet it."""
        return self._open_and_closed(need)[1]

    def open_shapes(self, need: Need) -> Shapes:
        """As `shapes`, but objects are not closed: of a need that others may still be met with."""
        return self._open_and_closed(need)[0]

    def _open_and_closed(self, need: Need) -> tuple[Shapes, Shapes]:
        found = self._shapes.get(need)
        if found is None:
            shapes: Shapes = UNIVERSE
            for atom in need:
                shapes = self.product(shapes, self.atom(atom), atom[0])
            opened = closed = tuple(dict.fromkeys(plain(shape) for shape in shapes))
            if self._false is not None:
                kept = unevaluated.closed(shapes, self._false)
                closed = tuple(dict.fromkeys(map(plain, kept)))
                self.has_closed = self.has_closed or closed != opened
            found = self._shapes[need] = opened, closed
        return found

    def is_empty(self, need: Need, depth: int = _EMPTINESS_DEPTH) -> bool:
        """Whether it is certain that nothing meets a need. False also where it is not known."""
        if not need:
            return False
        if any(a[0] == b[0] and a[1] != b[1] for a, b in combinations(need, 2)):
            return True
        if any(atom in self._open for atom in need):
            return False
        try:
            shapes = self.open_shapes(need)
        except GrammarError:
            return False
        return all(self._is_empty_shape(shape, depth) for shape in shapes)

    def _is_empty_shape(self, shape: Shape, depth: int) -> bool:
        match shape:
            case Values(literals):
                return not literals
            case Strings():
                return is_never_met(shape)
            case Arrays() if depth > 0:
                least = min(shape.least, len(shape.prefix) + 1)
                return any(self.is_empty(shape.item(i), depth - 1) for i in range(least))
            case Objects() if depth > 0:
                return any(self.is_empty(shape.member(n), depth - 1) for n in shape.required)
            case _:
                return False

    def product(self, left: Shapes, right: Shapes, number: int) -> Shapes:
        """The intersection of two unions."""
        if left == UNIVERSE:
            return right
        found: dict[Shape, None] = {}
        for a in left:
            for b in right:
                self._count(number)
                shape = self._meet(a, b)
                if shape is not None:
                    found[shape] = None
        return self.capped(tuple(found), number)

    def _meet(self, a: Shape, b: Shape) -> Shape | None:
        if isinstance(b, Values) and not isinstance(a, Values):
            a, b = b, a
        if isinstance(a, Values):
            kept = tuple(x for x in a.literals if self.judge.accepts_shape(b, x))
            return Values(kept) if kept else None
        return meet(a, b)

    def _count(self, number: int) -> None:
        self._meets += 1
        if self._meets > MAX_MEETS:
            place = self.document.places[number].pointer
            raise refuse(place, "the schema is too complex: its parts combine in too many ways")

    def capped(self, shapes: Shapes, number: int) -> Shapes:
        if len(shapes) > MAX_ALTERNATIVES:
            place = self.document.places[number].pointer
            raise refuse(place, f"combines into more than {MAX_ALTERNATIVES} alternatives")
        return shapes

    def atom(self, atom: tuple[int, bool]) -> Shapes:
        """The shapes of one subschema, or of its complement."""
        found = self._atoms.get(atom)
        if found is None:
            place = self.document.places[atom[0]].pointer
            if atom in self._open:
                raise refuse(place, "refers to itself without an array or object in between")
            if len(self._open) >= MAX_REFERENCES:
                reason = f"more than {MAX_REFERENCES} references lead through each other"
                raise refuse(place, reason)
            self._open.add(atom)
            try:
                found = self._expanded(*atom)
            finally:
                self._open.discard(atom)
            self._atoms[atom] = found
        return found

    @abstractmethod
    def _expanded(self, number: int, holds: bool) -> Shapes:
        """What one subschema stands for, or its complement."""

    def conjunction(self, need: Need, number: int) -> Shapes:
        """As `shapes`, but keeping the record of what was evaluated."""
        found: Shapes = UNIVERSE
        for atom in need:
            found = self.product(found, self.atom(atom), number)
        return found

    def union(self, needs: list[Need], number: int) -> Shapes:
        found = dict.fromkeys(shape for need in needs for shape in self.conjunction(need, number))
        return self.capped(tuple(found), number)
