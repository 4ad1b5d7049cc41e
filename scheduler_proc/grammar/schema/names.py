"""`propertyNames` as an object shape: listed names, or a pattern that names must match, and nothing
beside them.

Called by the normaliser with the shapes of the keyword's schema.
"""

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.keywords import Keywords
from scheduler_proc.grammar.schema.pattern import (
    Choice,
    Pattern,
    length_pattern,
    none_of,
    one_of,
    pattern_of,
)
from scheduler_proc.grammar.schema.shapes import (
    ANYTHING,
    Need,
    Objects,
    Shape,
    Strings,
    Values,
)


def names_shape(shapes: tuple[Shape, ...], false: Need, keywords: Keywords) -> Objects:
    """The objects whose names lie in `shapes`; `false` is the need that nothing meets."""
    if Strings() in shapes:
        return Objects()
    patterns = [_pattern(shape, keywords) for shape in shapes if isinstance(shape, Strings)]
    texts = [
        literal.value for shape in shapes if isinstance(shape, Values) for literal in shape.literals
    ]
    names = tuple(dict.fromkeys(text for text in texts if isinstance(text, str)))
    if not patterns:
        listed = tuple((name, ANYTHING) for name in names)
        return Objects(listed, rest=false, limits_at=keywords.pointer)
    if names:
        patterns.append(one_of(names))
    pattern = pattern_of(Choice(tuple(pattern.node for pattern in patterns)))
    return Objects(patterns=((pattern, ()),), rest=false, limits_at=keywords.pointer)


def _pattern(shape: Strings, keywords: Keywords) -> Pattern:
    options = [*shape.patterns]
    if shape.least or shape.most is not None:
        options.append(length_pattern(shape.least, shape.most))
    if shape.excluded:
        options.append(none_of(shape.excluded))
    if len(options) == 1 and not (shape.without or shape.formats or shape.refusals):
        return options[0]
    raise unsupported_names(keywords)


def unsupported_names(keywords: Keywords) -> GrammarError:
    """The error for names with more than one condition."""
    return keywords.fail("propertyNames", "combines conditions that are not supported together")
