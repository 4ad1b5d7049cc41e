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
    Values,
    both,
    meet_objects,
)

_KEYWORDS = ("unevaluatedItems", "unevaluatedProperties")
_MAX_LISTING = 64
_MAX_TOGETHER = 4  # three branches, in every combination
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


def closed(shape: Shape, false: Need) -> Shape:
    """With `x-closed`, an object that has a list of properties, even an empty one, may have only
    those and the required ones."""
    if not isinstance(shape, Objects) or shape.all_evaluated or shape.evaluated is None:
        return shape
    return _others_meet(replace(shape, evaluated=shape.evaluated.union(shape.required)), false)


def together(branches: Shapes, is_empty: Callable[[Objects], bool]) -> Shapes:
    """For `anyOf` with `x-closed`: the objects that several branches hold for, as far as they list
    more names together than one by one. None where there would be many: they cost more than the
    branches themselves."""
    listing = [
        shape
        for shape in branches
        if isinstance(shape, Objects) and shape.evaluated is not None and not shape.all_evaluated
    ]
    found: list[Objects] = []
    added: list[Objects] = []
    for shape in listing if len(listing) <= _MAX_LISTING else ():
        met = [
            both_of
            for other in found
            if (both_of := meet_objects(other, shape)) is not None
            and _listed(both_of) not in (_listed(other), _listed(shape))
            and not is_empty(both_of)
        ]
        found += [shape, *met]
        added += met
        if len(added) > _MAX_TOGETHER:
            return ()
    return tuple(added)


def _listed(shape: Objects) -> tuple[object, object]:
    return shape.evaluated, shape.evaluated_patterns


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
