"""Which part of a constraint is too much for llguidance: the error names it.

Called by the compile worker's children. Where a whole constraint is refused by the library, or is
too slow to follow, its parts are tried one by one: the schemas, patterns and grammars of a
structural tag, and the strings of a schema. Strings whose conditions may be too much together are
always tried: a walk along the whole constraint may not come to them. What is tried ends after
`MAX_TRIAL_S` of CPU time: the constraint is then refused without a place, or passes.
"""

from collections.abc import Callable, Iterator
from time import thread_time
from typing import NamedTuple

from scheduler_proc.grammar.base import BackEndError, GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.llg.structural_tags import TagPart, tag_parts
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.schema.plan import SchemaPlan
from scheduler_proc.grammar.schema.shapes import Need, Objects, Strings
from scheduler_proc.grammar.schema.terminal import strings_grammar, takes_terminal
from srt.wire.constraint import Constraint

TryOut = Callable[[LLGrammar, bool], None]
"""Raises GrammarError if a grammar cannot be used by itself; it is told whether the grammar is the
user's own Lark."""

MAX_TRIAL_S = 1.0  # of CPU time; strings may take 0.1 s
_OF_STRINGS = ("pattern", "format", "not", "allOf", "anyOf", "oneOf", "minLength", "maxLength")
_OF_NAMES = ("patternProperties", "propertyNames")


class _Strings(NamedTuple):
    """Strings of a schema, and the JSON pointer and the keywords they come from."""

    strings: Strings
    where: str
    are_hard: bool
    are_names: bool


def blamed(constraint: Constraint, error: BackEndError, try_out: TryOut) -> GrammarError:
    """`error`, or one that names the first part of the constraint that fails by itself."""
    trials = _Trials(try_out)
    for part in _parts(constraint):
        found = trials.failure(part.grammar, part.is_lark) if part.place else None
        if found is not None or not part.place:
            inner = trials.failure_of_strings(part, only_hard=False)
            if inner is not None or found is not None:
                return inner or GrammarError(str(found), part.place)
    return error


def check_strings(constraint: Constraint, try_out: TryOut) -> None:
    """Try the strings of schemas with conditions that may be too much together. Raises GrammarError
    that names those that fail."""
    if '"pattern' not in constraint.source and '"format' not in constraint.source:
        return
    trials = _Trials(try_out)
    for part in _parts(constraint):
        found = trials.failure_of_strings(part, only_hard=True)
        if found is not None:
            raise found


def _parts(constraint: Constraint) -> list[TagPart]:
    """The parts of a constraint; a schema is its own only part, at no place."""
    source, rule = constraint.source, (constraint.whitespace, constraint.closed)
    if constraint.kind == "json_schema":
        prepared = prepare(source, *rule)
        return [TagPart("", prepared.grammar, prepared.plan)]
    if constraint.kind == "structural_tag":
        return tag_parts(source, *rule, constraint.after, constraint.opener)
    return []


class _Trials:
    """Tries grammars out, equal strings once, as long as there is time."""

    def __init__(self, try_out: TryOut) -> None:
        self._try_out = try_out
        self._seen: set[Strings] = set()
        self._end = thread_time() + MAX_TRIAL_S

    def failure(self, grammar: LLGrammar, is_lark: bool = False) -> GrammarError | None:
        """The error about a grammar; None if it has none, or there is no time left."""
        if thread_time() > self._end:
            return None
        try:
            self._try_out(grammar, is_lark)
        except GrammarError as error:
            return error
        return None

    def failure_of_strings(self, part: TagPart, only_hard: bool) -> GrammarError | None:
        """The error about the first strings in a part that fail by themselves."""
        for each in _strings(part.plan) if part.plan else ():
            if each.strings in self._seen or (only_hard and not each.are_hard):
                continue
            self._seen.add(each.strings)
            found = self.failure(strings_grammar(each.strings, each.are_names))
            if found is not None:
                return GrammarError(f"JSON schema at {each.where}: {found}", part.place)
        return None


def _strings(plan: SchemaPlan) -> Iterator[_Strings]:
    """The sets of strings of a schema, those of names of members among them."""
    for need, shapes in plan.shapes.items():
        for shape in shapes:
            if isinstance(shape, Strings):
                yield _with_place(plan, need, shape, _OF_STRINGS)
            elif isinstance(shape, Objects):
                for names, _ in shape.patterns:
                    yield _with_place(plan, need, names, _OF_NAMES)


def _with_place(
    plan: SchemaPlan, need: Need, strings: Strings, keywords: tuple[str, ...]
) -> _Strings:
    """`keywords` are those that may have given the strings: of these, the schema's are named."""
    found = plan.keywords(need)
    named = " with ".join(keyword for keyword in keywords if keyword in found)
    where = f"{plan.pointer(need) or '#'}{', ' if named else ''}{named}"
    are_hard = takes_terminal(strings) or len(strings.patterns) > 1
    return _Strings(strings, where, are_hard, are_names=keywords is _OF_NAMES)
