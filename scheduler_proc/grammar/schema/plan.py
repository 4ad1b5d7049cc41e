"""All needs that an output can reach, each as printable shapes, without those that cannot be met.

Both emitters read it. Invariant: every shape left here has at least one finite value, but for
string conditions that only the back end can compare.
"""

from collections.abc import Collection
from dataclasses import replace

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.document import refuse
from scheduler_proc.grammar.schema.normalise import Normaliser
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    Arrays,
    ItemPaths,
    Need,
    Objects,
    Shape,
)
from scheduler_proc.grammar.schema.simplify import Simplifier

MAX_NEEDS = 10_000
MAX_SHAPES = 50_000


class SchemaPlan:
    """`root` and `shapes`: for each reachable need but ANYTHING, its printable shapes."""

    def __init__(self, normaliser: Normaliser, root: Need) -> None:
        """Raises GrammarError if something in it is not supported, or no value meets `root`."""
        self._normaliser = normaliser
        self.root = root
        self.shapes: dict[Need, list[Shape]] = {}
        self._collect()
        self._possible = self._least_fixpoint()
        if not self.is_possible(root):
            reason = "no value can be valid"
            if normaliser.has_closed:
                reason += ", where objects have only the properties that the schema lists for them"
                reason += ' ("x-closed": false at its root allows others)'
            raise GrammarError(f"JSON schema: {reason}")
        self.shapes = {need: self._pruned(shapes) for need, shapes in self.shapes.items()}

    def is_possible(self, need: Need) -> bool:
        """Whether some value meets a need."""
        return need == ANYTHING or need in self._possible

    def pointer(self, need: Need) -> str:
        """The JSON pointer of the first schema that speaks of a need."""
        return self._normaliser.document.places[need[0][0]].pointer

    def keywords(self, need: Need) -> Collection[str]:
        """The keywords of the schema at `pointer`."""
        schema = self._normaliser.document.places[need[0][0]].schema
        return schema if isinstance(schema, dict) else ()

    def _collect(self) -> None:
        simplifier = Simplifier(self._normaliser)
        pending, total = [self.root], 0
        while pending:
            need = pending.pop()
            if need == ANYTHING or need in self.shapes:
                continue
            shapes = self._normaliser.shapes(need)
            found = [part for shape in shapes for part in simplifier.printable(shape)]
            self.shapes[need] = found
            total += len(found)
            if len(self.shapes) > MAX_NEEDS or total > MAX_SHAPES:
                raise refuse("#", "the schema is too complex: it combines into too many parts")
            for shape in found:
                pending += parts_of(shape)

    def _least_fixpoint(self) -> set[Need]:
        possible: set[Need] = set()
        changed = True
        while changed:
            changed = False
            for need, shapes in self.shapes.items():
                if need not in possible and any(self._has_value(s, possible) for s in shapes):
                    possible.add(need)
                    changed = True
        return possible

    def _has_value(self, shape: Shape, possible: set[Need]) -> bool:
        if isinstance(shape, ItemPaths):
            return bool(shape.cut(lambda n: n == ANYTHING or n in possible).accepting)
        return all(need == ANYTHING or need in possible for need in _needed(shape))

    def _pruned(self, shapes: list[Shape]) -> list[Shape]:
        found = [self._cut(s) for s in shapes if self._has_value(s, self._possible)]
        return list(dict.fromkeys(found))

    def _cut(self, shape: Shape) -> Shape:
        """An array ends where no item is possible."""
        if isinstance(shape, ItemPaths):
            return shape.cut(self.is_possible)
        if not isinstance(shape, Arrays):
            return shape
        for i, need in enumerate((*shape.prefix, shape.rest)):
            if not self.is_possible(need) and (shape.most is None or i <= shape.most):
                return replace(shape, prefix=shape.prefix[:i], most=i)
        return shape


def parts_of(shape: Shape) -> list[Need]:
    """The needs that a shape refers to."""
    match shape:
        case ItemPaths():
            return [need for _, need, _ in shape.arcs]
        case Arrays():
            if shape.most is None or shape.most > len(shape.prefix):
                return [*shape.prefix, shape.rest]
            return [*shape.prefix[: shape.most]]
        case Objects():
            members = [need for _, need in (*shape.properties, *shape.patterns)]
            return [*members, shape.rest]
        case _:
            return []


def _needed(shape: Shape) -> list[Need]:
    """The parts without which the shape has no value."""
    match shape:
        case Arrays():
            count = min(shape.least, len(shape.prefix) + 1)
            return [shape.item(i) for i in range(count)]
        case Objects():
            members = dict(shape.properties)
            return [members[name] for name in shape.required]
        case _:
            return []
