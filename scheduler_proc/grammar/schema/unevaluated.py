"""`unevaluatedItems` and `unevaluatedProperties`, applied to shapes that know what was evaluated.

Called by the normaliser when all other keywords of a subschema have been met. Sound because each
shape comes from a known choice of branches: what those evaluated is recorded in it.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.document import Document, refuse, subschemas
from scheduler_proc.grammar.schema.keywords import Keywords
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    Arrays,
    Need,
    Objects,
    Shape,
    Shapes,
    Strings,
    Values,
    both,
    meet_objects,
)

_KEYWORDS = ("unevaluatedItems", "unevaluatedProperties")
_MAX_TOGETHER = 11  # four branches, in every combination
_MAX_NAMES = 4000  # of all branches of an `anyOf` that may have each other's
_IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")


def watched(document: Document) -> frozenset[int]:
    """The subschemas for which it matters what they evaluate: they have an `unevaluated*`, or a
    subschema that applies them to the same value has one."""
    found: set[int] = set()
    todo = [
        number
        for number, place in enumerate(document.places)
        if isinstance(place.schema, dict) and any(keyword in place.schema for keyword in _KEYWORDS)
    ]
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += _applied(document, number)
    return frozenset(found)


def _applied(document: Document, number: int) -> Iterator[int]:
    """The subschemas that a subschema applies to its own value."""
    schema = document.places[number].schema
    if not isinstance(schema, dict):
        return
    for keyword in schema.keys() & {"$ref", "$dynamicRef"}:
        with suppress(GrammarError):  # refused where it is met, if it is
            yield document.resolve(schema[keyword], number, keyword)
    for steps, sub in subschemas(schema):
        if steps[0] in _IN_PLACE and isinstance(sub, dict):
            yield document.number_of(sub, number, *steps)


def restrict_items(shape: Shape, need: Need, keywords: Keywords) -> Shape:
    """Items that nothing spoke about must meet `need`."""
    if isinstance(shape, Values):
        _check_unknown(shape, list, "unevaluatedItems", need, keywords)
    if not isinstance(shape, Arrays):
        return shape
    if shape.evaluated == -1:
        return shape
    spoken = [wanted.atom for wanted in shape.contains if wanted.evaluates]
    if spoken and need:
        places = keywords.document.places
        options = [places[number].schema for number, _ in (*spoken, *need)]
        need = keywords.made({"anyOf": options})
    prefix = tuple(
        part if i < shape.evaluated else both(part, need) for i, part in enumerate(shape.prefix)
    )
    return replace(shape, prefix=prefix, rest=both(shape.rest, need), evaluated=-1)


def restrict_members(shape: Shape, need: Need, keywords: Keywords) -> Shape:
    """Properties that nothing spoke about must meet `need`."""
    if isinstance(shape, Values):
        _check_unknown(shape, dict, "unevaluatedProperties", need, keywords)
    if not isinstance(shape, Objects) or shape.all_evaluated:
        return shape
    return _others_meet(shape, need)


def is_closed(document: Document, default: bool) -> bool:
    """The root's `x-closed`. Raises GrammarError if it is not a boolean."""
    root = document.places[0].schema
    if not isinstance(root, dict):
        return False
    given = root.get("x-closed", default)
    if not isinstance(given, bool):
        raise refuse("#/x-closed", "must be a boolean")
    return given


def closed(shapes: Shapes, false: Need) -> Shapes:
    """With `x-closed`, an object that has a list of properties, even an empty one, may have only
    those and the ones that a schema requires. What needs others, for it must not meet a schema, is
    left out if anything else is there."""
    needing = [shape for shape in shapes if isinstance(shape, Objects) and _needs_others(shape)]
    kept = [shape for shape in shapes if shape not in needing] or shapes
    return tuple(_closed(shape, false) for shape in kept)


def _needs_others(shape: Objects) -> bool:
    if shape.all_evaluated or shape.evaluated is None:
        return False
    others = [name for name in shape.required if name not in shape.evaluated | shape.named]
    patterns = shape.evaluated_patterns
    return not all(any(pattern.matches(name) for pattern in patterns) for name in others)


def _closed(shape: Shape, false: Need) -> Shape:
    if not isinstance(shape, Objects) or shape.all_evaluated or shape.evaluated is None:
        return shape
    names = shape.evaluated.union(shape.named, shape.required)
    return _others_meet(replace(shape, evaluated=names), false)


def together(branches: Shapes, tags: Callable[[Need], frozenset[str] | None]) -> Shapes | None:
    """For `anyOf` with `x-closed`: the branches and the objects that several of them hold for, as
    far as they list more names together than one by one. None where there would be many. `tags`
    are the only values that a need allows, if it names them."""
    listing = [shape for shape in branches if isinstance(shape, Objects) and _lists(shape)]
    found: dict[Objects, None] = {}
    apart = _Apart(tags)
    for shape in listing:
        if shape in found:
            continue
        met = [
            both_of
            for other in found
            if not apart(other, shape)
            and (both_of := meet_objects(other, shape)) is not None
            and _listed(both_of) not in (_listed(other), _listed(shape))
        ]
        found |= dict.fromkeys([shape, *met])
        if len(found) - len(listing) > _MAX_TOGETHER:
            return None
    return tuple(dict.fromkeys([*branches, *found]))


def widened(branches: Shapes, tags: Callable[[Need], frozenset[str] | None]) -> Shapes:
    """The branches of an `anyOf` with `x-closed` where there are too many to meet each other: each
    may have the names too, with any values, of all others that may hold with it. Where these would
    be many, the branches are open."""
    listing = [shape for shape in branches if isinstance(shape, Objects) and _lists(shape)]
    apart = _Apart(tags)
    wide: dict[Shape, Shape] = {}
    count = 0
    for shape in listing:
        others = [other for other in listing if not apart(shape, other)]
        named = shape.named.union(*(other.named | (other.evaluated or set()) for other in others))
        patterns = shape.evaluated_patterns.union(*(x.evaluated_patterns for x in others))
        wide[shape] = replace(shape, named=named, evaluated_patterns=patterns)
        count += len(named) + len(patterns)
        if count > _MAX_NAMES:
            break
    if count > _MAX_NAMES:
        wide = {shape: replace(shape, all_evaluated=True) for shape in listing}
    return tuple(dict.fromkeys(wide.get(shape, shape) for shape in branches))


class _Apart:
    """Whether two objects are certainly different: by what a required property of both is."""

    def __init__(self, tags: Callable[[Need], frozenset[str] | None]) -> None:
        self._tags_of = tags
        self._known: dict[Objects, dict[str, frozenset[str]]] = {}

    def __call__(self, a: Objects, b: Objects) -> bool:
        left, right = self._tags(a), self._tags(b)
        return any(left[name].isdisjoint(right[name]) for name in left.keys() & right.keys())

    def _tags(self, shape: Objects) -> dict[str, frozenset[str]]:
        found = self._known.get(shape)
        if found is None:
            tags = {name: self._tags_of(shape.member(name)) for name in shape.required}
            found = {name: values for name, values in tags.items() if values is not None}
            self._known[shape] = found
        return found


def _lists(shape: Objects) -> bool:
    return not shape.all_evaluated and (shape.evaluated is not None or bool(shape.named))


def _listed(shape: Objects) -> tuple[frozenset[str], frozenset[Strings]]:
    return shape.named.union(shape.evaluated or ()), shape.evaluated_patterns


def _others_meet(shape: Objects, need: Need) -> Shape:
    spoken = Objects(
        tuple((name, ANYTHING) for name in sorted(shape.evaluated or ())),
        tuple((names, ANYTHING) for names in sorted(shape.evaluated_patterns, key=repr)),
        need,
    )
    return replace(meet_objects(shape, spoken) or shape, all_evaluated=True)


def _check_unknown(shape: Values, kind: type, keyword: str, need: Need, keywords: Keywords) -> None:
    """Refuse values of a subschema's `const` or `enum`: they have no record of their parts."""
    values = (literal.value for literal in shape.literals)
    if need and any(isinstance(value, kind) and value for value in values):
        raise keywords.fail(keyword, "is not supported with the values of a subschema")
