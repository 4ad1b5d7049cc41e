"""`unevaluatedItems` and `unevaluatedProperties`, applied to shapes that know what was evaluated.

Called by the normaliser when all other keywords of a subschema have been met. Sound because each
shape comes from a known choice of branches: what those evaluated is recorded in it.
"""

from dataclasses import replace

from scheduler_proc.grammar.schema.keywords import Keywords
from scheduler_proc.grammar.schema.shapes import Arrays, Need, Objects, Shape, both


def restrict_items(shape: Shape, need: Need, keywords: Keywords) -> Shape:
    """Items that nothing spoke about must meet `need`."""
    if not isinstance(shape, Arrays):
        return shape
    if shape.contains:
        raise keywords.fail("unevaluatedItems", "is not supported beside contains")
    if shape.evaluated == -1:
        return shape
    prefix = tuple(
        part if i < shape.evaluated else both(part, need) for i, part in enumerate(shape.prefix)
    )
    return replace(shape, prefix=prefix, rest=both(shape.rest, need), evaluated=-1)


def restrict_members(shape: Shape, need: Need, keywords: Keywords) -> Shape:
    """Properties that nothing spoke about must meet `need`."""
    if not isinstance(shape, Objects) or shape.all_evaluated:
        return shape
    if any(pattern not in shape.evaluated_patterns for pattern, _ in shape.patterns):
        raise keywords.fail("unevaluatedProperties", "is not supported beside propertyNames")
    spoken = shape.evaluated_patterns
    properties = tuple(
        (name, part)
        if name in shape.evaluated or any(pattern.matches(name) for pattern in spoken)
        else (name, both(part, need))
        for name, part in shape.properties
    )
    return replace(shape, properties=properties, rest=both(shape.rest, need), all_evaluated=True)
