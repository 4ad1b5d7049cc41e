"""Which part of a constraint is too much for llguidance: the error names it.

Called by the compile worker's children. Where a whole constraint is refused by the library, or is
too slow to follow, its parts are tried one by one: the schemas, patterns and grammars of a
structural tag, and the strings of a schema. Strings whose conditions may be too much together are
always tried: a walk along the whole constraint may not come to them.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from scheduler_proc.grammar.base import BackEndError, GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.llg.structural_tags import TagPart, tag_parts
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.schema.shapes import Objects, Strings
from scheduler_proc.grammar.schema.terminal import string_terminal, takes_terminal
from srt.patterns.lark import one_terminal
from srt.wire.constraint import Constraint

TryOut = Callable[[LLGrammar, bool], None]
"""Raises GrammarError if a grammar cannot be used by itself; it is told whether the grammar is the
user's own Lark."""

_MAX_TRIED = 16  # strings of a schema; each may take 0.1 s


class _Strings(NamedTuple):
    """Strings of a schema, and the JSON pointer and the keywords they come from."""

    strings: Strings
    where: str
    are_hard: bool


def blamed(constraint: Constraint, error: BackEndError, try_out: TryOut) -> GrammarError:
    """`error`, or one that names the first part of the constraint that fails by itself."""
    for part in _parts(constraint):
        found = _tried(part.grammar, try_out, part.is_lark) if part.place else None
        if found is not None or not part.place:
            inner = _failing_strings(part, constraint, try_out, only_hard=False)
            if inner is not None or found is not None:
                return inner or GrammarError(str(found), part.place)
    return error


def check_strings(constraint: Constraint, try_out: TryOut) -> None:
    """Try the strings of schemas with conditions that may be too much together. Raises GrammarError
    that names those that fail."""
    if '"pattern' not in constraint.source:
        return
    for part in _parts(constraint):
        found = _failing_strings(part, constraint, try_out, only_hard=True)
        if found is not None:
            raise found


def _parts(constraint: Constraint) -> list[TagPart]:
    """The parts of a constraint; a schema is its own only part, at no place."""
    source, rule = constraint.source, (constraint.whitespace, constraint.closed)
    if constraint.kind == "json_schema":
        return [TagPart("", prepare(source, *rule).grammar, source)]
    return tag_parts(source, *rule) if constraint.kind == "structural_tag" else []


def _tried(grammar: LLGrammar, try_out: TryOut, is_lark: bool = False) -> GrammarError | None:
    try:
        try_out(grammar, is_lark)
    except GrammarError as error:
        return error
    return None


def _failing_strings(
    part: TagPart, constraint: Constraint, try_out: TryOut, only_hard: bool
) -> GrammarError | None:
    """The error about the first strings in a part that fail by themselves."""
    if not part.schema:
        return None
    seen: set[Strings] = set()
    for each in _strings(part.schema, constraint):
        if each.strings in seen or (only_hard and not each.are_hard) or len(seen) == _MAX_TRIED:
            continue
        seen.add(each.strings)
        grammar = LLGrammar.lark(one_terminal(string_terminal(each.strings)))
        found = _tried(grammar, try_out)
        if found is not None:
            return GrammarError(f"JSON schema at {each.where}: {found}", part.place)
    return None


def _strings(source: str, constraint: Constraint) -> Iterator[_Strings]:
    """The sets of strings of a schema of a constraint, those of names of members among them."""
    plan = prepare(source, constraint.whitespace, constraint.closed).plan
    for need, shapes in plan.shapes.items():
        for shape in shapes:
            if isinstance(shape, Strings):
                yield _with_place(shape, plan.pointer(need), "")
            elif isinstance(shape, Objects):
                for names, _ in shape.patterns:
                    yield _with_place(names, plan.pointer(need), "patternProperties")


def _with_place(strings: Strings, pointer: str, keyword: str) -> _Strings:
    given = {
        "pattern": strings.patterns or strings.without,
        "minLength": strings.least,
        "maxLength": strings.most is not None,
    }
    keywords = keyword or " with ".join(name for name, value in given.items() if value)
    are_hard = takes_terminal(strings) or len(strings.patterns) > 1
    return _Strings(strings, f"{pointer or '#'}, {keywords}", are_hard)
