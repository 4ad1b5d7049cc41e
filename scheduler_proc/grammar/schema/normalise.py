"""From subschemas to unions of shapes: the applicators `allOf`, `anyOf`, `oneOf`, `not`, `if`,
`$ref` and the dependencies are computed away by intersection, union and complement.

`shapes(need)` is memoised, and parts of arrays and objects are expanded only when asked for, so
recursion is fine as long as something stands between. All work is counted against one budget.
"""

from collections.abc import Callable, Iterator
from itertools import combinations

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema import unevaluated
from scheduler_proc.grammar.schema.complement import Complement, opposite
from scheduler_proc.grammar.schema.document import Document, refuse
from scheduler_proc.grammar.schema.judge import Judge
from scheduler_proc.grammar.schema.keywords import DEPENDENCIES, Keywords
from scheduler_proc.grammar.schema.pattern import one_of
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    BOOLEANS,
    NULL,
    UNIVERSE,
    Arrays,
    Need,
    Numbers,
    Objects,
    Shape,
    Shapes,
    Strings,
    Values,
    both,
    literal_of,
    meet,
    plain,
    texts_of,
)
from scheduler_proc.grammar.schema.terminal import is_never_met

MAX_ALTERNATIVES = 600
MAX_MEETS = 50_000
MAX_REFERENCES = 64
_EMPTINESS_DEPTH = 4
_MAX_ANY_OF_UNEVALUATED = 5

_TYPES: dict[str, Shape] = {
    "null": NULL,
    "boolean": BOOLEANS,
    "number": Numbers(),
    "integer": Numbers(integer=True),
    "string": Strings(),
    "array": Arrays(),
    "object": Objects(),
}


class Normaliser:
    """The unions of shapes of one document's needs."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.judge = Judge(self)
        self._shapes: dict[Need, Shapes] = {}
        self._atoms: dict[tuple[int, bool], Shapes] = {}
        self._open: set[tuple[int, bool]] = set()
        self._meets = 0
        self._watched = unevaluated.watched(document)
        root = document.places[0].schema
        is_closed = isinstance(root, dict) and root.get("x-closed") is True
        self._false: Need | None = ((document.add(False, 0), True),) if is_closed else None

    # ---- Needs ----

    def shapes(self, need: Need) -> Shapes:
        """The union of shapes that a need stands for; empty if nothing can meet it."""
        found = self._shapes.get(need)
        if found is None:
            found = UNIVERSE
            for atom in need:
                found = self._product(found, self.atom(atom), atom[0])
            if self._false is not None:
                found = tuple(unevaluated.closed(shape, self._false) for shape in found)
            found = tuple(dict.fromkeys(plain(shape) for shape in found))
            self._shapes[need] = found
        return found

    def is_empty(self, need: Need, depth: int = _EMPTINESS_DEPTH) -> bool:
        """Whether certainly nothing meets a need. False also where it is not known."""
        if not need:
            return False
        if any(a[0] == b[0] and a[1] != b[1] for a, b in combinations(need, 2)):
            return True
        if any(atom in self._open for atom in need):
            return False
        try:
            shapes = self.shapes(need)
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

    def _product(self, left: Shapes, right: Shapes, number: int) -> Shapes:
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

    # ---- One subschema ----

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

    def _expanded(self, number: int, holds: bool) -> Shapes:
        place = self.document.places[number]
        schema = place.schema
        if isinstance(schema, bool):
            return UNIVERSE if schema == holds else ()
        if place.draft <= 7 and "$ref" in schema:  # what stands beside it is ignored there
            return self.atom((self.document.resolve(schema["$ref"], number), holds))
        keywords = Keywords(self.document, number, schema)
        return self._holds(keywords) if holds else self._fails(keywords)

    def _holds(self, keywords: Keywords) -> Shapes:
        shapes: Shapes = UNIVERSE
        for part in self._parts(keywords):
            shapes = self._product(shapes, part, keywords.number)
        shapes = self._unevaluated(keywords, shapes)
        if {"const", "enum"} & keywords.schema.keys():  # last: values have no record of what was
            shapes = self._product(shapes, self.values(keywords), keywords.number)
        return shapes

    def _parts(self, keywords: Keywords) -> Iterator[Shapes]:
        """The conjuncts of a subschema but for its values, its own properties first: that is
        their order."""
        schema = keywords.schema
        if schema.keys() & _OWN:
            yield self._own(keywords)
        applicators = self._applicators()
        for keyword in schema:
            keywords.check_supported(keyword)
            applicator = applicators.get(keyword)
            if applicator is not None:
                yield applicator(keywords)

    def _applicators(self) -> dict[str, Callable[[Keywords], Shapes]]:
        return {
            "$ref": lambda k: self.atom((self.target(k), True)),
            "$dynamicRef": lambda k: self.atom((self.dynamic_target(k), True)),
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "not": lambda k: self.atom(k.need(k.schema["not"], "not", holds=False)[0]),
            "if": self._conditional,
            **dict.fromkeys(DEPENDENCIES, self._dependencies),
            "propertyNames": self._property_names,
        }

    def _own(self, keywords: Keywords) -> Shapes:
        """What the keywords for single types allow, one shape for each type."""
        given: dict[type, Callable[[], Shape]] = {
            Numbers: keywords.numbers,
            Strings: keywords.strings,
            Arrays: keywords.arrays,
            Objects: keywords.objects,
        }
        types = self.types(keywords)
        met = (
            meet(shape, given[type(shape)]()) if type(shape) in given else shape for shape in types
        )
        return tuple(shape for shape in met if shape is not None)

    def types(self, keywords: Keywords) -> Shapes:
        given = keywords.schema.get("type")
        if "type" not in keywords.schema:
            return UNIVERSE
        names = given if isinstance(given, list) else [given]
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                raise keywords.fail("type", f"{name!r} is not a JSON type")
        if "number" in names:
            names = [name for name in names if name != "integer"]
        return tuple(_TYPES[name] for name in dict.fromkeys(names))

    def values(self, keywords: Keywords) -> Shapes:
        schema = keywords.schema
        values = schema.get("enum")
        if "enum" in schema and not isinstance(values, list):
            raise keywords.fail("enum", "must be an array")
        for keyword in schema.keys() & {"const", "enum"}:
            keywords.check_text(keyword, schema[keyword])
        literals = tuple(dict.fromkeys(literal_of(value) for value in values or []))
        if "const" in schema:
            const = literal_of(schema["const"])
            literals = (const,) if "enum" not in schema or const in literals else ()
        return (Values(literals),) if literals else ()

    # ---- Applicators ----

    def target(self, keywords: Keywords) -> int:
        return self.document.resolve(keywords.schema["$ref"], keywords.number)

    def dynamic_target(self, keywords: Keywords) -> int:
        """`$dynamicRef` is `$ref` where only one schema has the dynamic anchor."""
        ref = keywords.schema["$dynamicRef"]
        number = self.document.resolve(ref, keywords.number, "$dynamicRef")
        name = ref.partition("#")[2]
        anchored = self.document.dynamic_anchors(name)
        if number in anchored and len(anchored) > 1:
            raise keywords.fail(
                "$dynamicRef", f"{ref!r} has several dynamic anchors to choose from"
            )
        return number

    def branches(self, keywords: Keywords, keyword: str) -> list[Need]:
        branches = keywords.schema[keyword]
        if not isinstance(branches, list) or not branches:
            raise keywords.fail(keyword, "must be an array of schemas, not empty")
        return [keywords.need(sub, keyword, i) for i, sub in enumerate(branches)]

    def conjunction(self, need: Need, number: int) -> Shapes:
        """As `shapes`, but keeping the record of what was evaluated."""
        found: Shapes = UNIVERSE
        for atom in need:
            found = self._product(found, self.atom(atom), number)
        return found

    def union(self, needs: list[Need], number: int) -> Shapes:
        found = dict.fromkeys(shape for need in needs for shape in self.conjunction(need, number))
        return self.capped(tuple(found), number)

    def _all_of(self, keywords: Keywords) -> Shapes:
        return self.conjunction(both(*self.branches(keywords, "allOf")), keywords.number)

    def _any_of(self, keywords: Keywords) -> Shapes:
        branches = self.branches(keywords, "anyOf")
        if keywords.number not in self._watched:
            return self.union(branches, keywords.number)
        # What every valid branch evaluates counts, so that branches must also be met together.
        if len(branches) > _MAX_ANY_OF_UNEVALUATED:
            raise keywords.fail("anyOf", "has too many branches beside an unevaluated* keyword")
        sets = [
            both(*chosen)
            for size in range(1, len(branches) + 1)
            for chosen in combinations(branches, size)
        ]
        return self.union(sets, keywords.number)

    def _one_of(self, keywords: Keywords) -> Shapes:
        """Of branches that overlap, each holds only where the others do not."""
        branches = self.branches(keywords, "oneOf")
        others = {key: value for key, value in keywords.schema.items() if key in _OWN}
        context = keywords.made(others) if others else ()
        needs: list[Need] = []
        for i, branch in enumerate(branches):
            rivals = [*branches[:i], *branches[i + 1 :]]
            rivals = [rival for rival in rivals if not self._disjoint(branch, rival, context)]
            needs += self._alone(branch, rivals, keywords) if rivals else [branch]
        return self.union(needs, keywords.number)

    def _alone(self, branch: Need, others: list[Need], keywords: Keywords) -> Iterator[Need]:
        """Where a branch holds and no other does: by type, since most overlap in some only."""
        for name in (name for name in _TYPES if name != "integer"):
            within = both(keywords.made({"type": name}), branch)
            if not self.is_empty(within):
                met = [other for other in others if not self.is_empty(both(within, other))]
                yield both(within, *(opposite(other) or keywords.made(False) for other in met))

    def _disjoint(self, a: Need, b: Need, context: Need) -> bool:
        return self.is_empty(both(a, b)) or (context != () and self.is_empty(both(context, a, b)))

    def _conditional(self, keywords: Keywords) -> Shapes:
        schema = keywords.schema
        condition = keywords.need(schema["if"], "if")
        then = keywords.need(schema.get("then", True), "then")
        other = keywords.need(schema.get("else", True), "else")
        if not then and not other and keywords.number not in self._watched:
            return UNIVERSE
        needs = [both(condition, then)]
        if condition:
            needs.append(both(opposite(condition), other))
        return self.union(needs, keywords.number)

    def _dependencies(self, keywords: Keywords) -> Shapes:
        """A property is absent, or what depends on it holds; nothing does for what is no object,
        and so nothing is evaluated by it there."""
        shapes: Shapes = UNIVERSE
        for name, present, need in keywords.dependencies():
            absent = keywords.made({"properties": {name: False}})
            options = self.union([absent, both(present, need)], keywords.number)
            shapes = self._product(shapes, options, keywords.number)
        return shapes

    def _property_names(self, keywords: Keywords) -> Shapes:
        """Few names are listed; of sets of them there may be any."""
        shapes = self.shapes(keywords.need(keywords.schema["propertyNames"], "propertyNames"))
        if Strings() in shapes:
            return UNIVERSE
        texts, sets = texts_of(shapes)
        listed = tuple((name, ANYTHING) for name in texts if not sets)
        sets += [Strings(patterns=(one_of(texts),))] if texts and sets else []
        entries = tuple((names, ANYTHING) for names in dict.fromkeys(sets))
        objects = Objects(listed, entries, keywords.made(False), limits_at=keywords.pointer)
        return (*(shape for shape in UNIVERSE if not isinstance(shape, Objects)), objects)

    def _unevaluated(self, keywords: Keywords, shapes: Shapes) -> Shapes:
        for keyword, restrict in (
            ("unevaluatedItems", unevaluated.restrict_items),
            ("unevaluatedProperties", unevaluated.restrict_members),
        ):
            if keyword in keywords.schema:
                need = keywords.need(keywords.schema[keyword], keyword)
                restricted = (restrict(shape, need, keywords) for shape in shapes)
                shapes = tuple(dict.fromkeys(restricted))
        return shapes

    def _fails(self, keywords: Keywords) -> Shapes:
        found = dict.fromkeys(plain(shape) for shape in Complement(self, keywords).failures())
        return self.capped(tuple(found), keywords.number)


_OWN = frozenset(
    """type minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern
    format prefixItems items additionalItems minItems maxItems uniqueItems contains minContains
    maxContains properties patternProperties additionalProperties required minProperties
    maxProperties""".split()  # noqa: SIM905 - a list of 24 strings reads worse
)
