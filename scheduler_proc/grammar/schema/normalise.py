"""From subschemas to unions of shapes: the applicators `allOf`, `anyOf`, `oneOf`, `not`, `if`,
`$ref` and the dependencies are computed away by intersection, union and complement.
"""

from collections.abc import Callable, Iterator
from itertools import combinations

from scheduler_proc.grammar.schema import unevaluated
from scheduler_proc.grammar.schema.complement import Complement, opposite
from scheduler_proc.grammar.schema.document import Document
from scheduler_proc.grammar.schema.keywords import DEPENDENCIES, TYPES, Keywords
from scheduler_proc.grammar.schema.pattern import one_of
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    UNIVERSE,
    Arrays,
    Need,
    Numbers,
    Objects,
    Shape,
    Shapes,
    Strings,
    both,
    literal_of,
    meet,
    plain,
    texts_of,
)
from scheduler_proc.grammar.schema.unions import Unions

_MAX_ANY_OF_UNEVALUATED = 5


class Normaliser(Unions):
    """The unions of shapes of one document's needs."""

    def __init__(self, document: Document, closed: bool = False, exact: bool = True) -> None:
        """Without `exact`, branches that may hold together are not met with each other to close
        their objects, which are a little open instead. `has_met` says whether some were."""
        super().__init__(document, closed)
        self.is_exact, self.has_met = exact, False
        self._watched = unevaluated.watched(document)

    def _expanded(self, number: int, holds: bool) -> Shapes:
        place = self.document.places[number]
        schema = place.schema
        if isinstance(schema, bool):
            return UNIVERSE if schema == holds else ()
        if place.draft <= 7 and "$ref" in schema:  # keywords beside it are ignored in these drafts
            return self.atom((self.document.resolve(schema["$ref"], number), holds))
        keywords = Keywords(self.document, number, schema)
        return self._holds(keywords) if holds else self._fails(keywords)

    def _holds(self, keywords: Keywords) -> Shapes:
        shapes: Shapes = UNIVERSE
        for part in self._parts(keywords):
            shapes = self.product(shapes, part, keywords.number)
        shapes = self._unevaluated(keywords, shapes)
        if {"const", "enum"} & keywords.schema.keys():  # last: values have no record of what was
            shapes = self.product(shapes, keywords.values(), keywords.number)
        return shapes

    def _parts(self, keywords: Keywords) -> Iterator[Shapes]:
        """The conjuncts of a subschema except its values. Its own properties come first, because
        that decides the order of properties in outputs."""
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
            "$ref": lambda k: self.atom((k.target(), True)),
            "$dynamicRef": lambda k: self.atom((k.dynamic_target(), True)),
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
        types = keywords.types()
        met = (
            meet(shape, given[type(shape)]()) if type(shape) in given else shape for shape in types
        )
        return tuple(shape for shape in met if shape is not None)

    # ---- Applicators ----

    def _all_of(self, keywords: Keywords) -> Shapes:
        return self.conjunction(both(*keywords.branches("allOf")), keywords.number)

    def _any_of(self, keywords: Keywords) -> Shapes:
        branches = keywords.branches("anyOf")
        if keywords.number not in self._watched:
            shapes = self.union(branches, keywords.number)
            if self.is_closed:
                shapes = self._with_all_names(shapes)
            return self.capped(shapes, keywords.number)
        # What every valid branch evaluates counts, so that branches must also be met together.
        if len(branches) > _MAX_ANY_OF_UNEVALUATED:
            raise keywords.fail("anyOf", "has too many branches beside an unevaluated* keyword")
        sets = [
            both(*chosen)
            for size in range(1, len(branches) + 1)
            for chosen in combinations(branches, size)
        ]
        return self.union(sets, keywords.number)

    def _with_all_names(self, branches: Shapes) -> Shapes:
        exact = unevaluated.together(branches, self._tags) if self.is_exact else None
        if exact is None:
            return unevaluated.widened(branches, self._tags)
        self.has_met = self.has_met or exact != branches
        return exact

    def _tags(self, need: Need) -> frozenset[str] | None:
        """The only values that a need allows, as keys of literals, if its schemas name them."""
        found: frozenset[str] | None = None
        for number, holds in need:
            schema = self.document.places[number].schema
            if holds and isinstance(schema, dict) and schema.keys() & {"const", "enum"}:
                given = schema["enum"] if "enum" in schema else [schema["const"]]
                values = given if isinstance(given, list) else []
                keys = frozenset(literal_of(value).key for value in values)
                found = keys if found is None else found & keys
        return found

    def _one_of(self, keywords: Keywords) -> Shapes:
        """Of branches that overlap, each holds only where the others do not."""
        branches = keywords.branches("oneOf")
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
        for name in (name for name in TYPES if name != "integer"):
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
            return self.union([condition, ()], keywords.number) if self.is_closed else UNIVERSE
        needs = [both(condition, then)]
        if condition:
            needs.append(both(opposite(condition), other))
        return self.union(needs, keywords.number)

    def _dependencies(self, keywords: Keywords) -> Shapes:
        """A property is absent, or what depends on it holds. In a value that is not an object
        nothing depends on it, so nothing counts as evaluated."""
        shapes: Shapes = UNIVERSE
        for present, need in keywords.dependencies():
            options = self.union([opposite(present), both(present, need)], keywords.number)
            shapes = self.product(shapes, options, keywords.number)
        return shapes

    def _property_names(self, keywords: Keywords) -> Shapes:
        """Single names become listed properties, sets of names become patterns."""
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
