"""Gens whose text a type, a predicate or a grammar constrains, and gens of a function's result."""

from collections.abc import Callable, Mapping
from typing import Any

from lang.backends.sampling import is_neutral
from lang.generation.choices import ChoicesSamplingMethod, token_length_normalized
from lang.generation.gens import Gen, Reader
from lang.generation.selects import Select
from lang.run.ir import Slots, Writer
from lang.run.program import Program
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.values.grammar import Grammar
from lang.values.lark import compiled
from lang.values.predicates import Predicate, constraint_of
from lang.values.structured import named_groups_of
from lang.values.types import Form, form_of
from lang.values.where import Written, predicate_of

RETURN = "return"
_USED_BY_CHOICES = {"temperature", "timeout_s", "seed"}


def chosen(
    name: str | None,
    choices: Any,
    method: ChoicesSamplingMethod | None,
    given: Mapping[str, Any],
    *,
    values: Mapping[str, Any] | None = None,
    asked: str = "choices",
) -> Select:
    """A gen that is a select. Arguments that it cannot use are refused, unless they change
    nothing."""
    unused = given.keys() - _USED_BY_CHOICES
    refused = sorted(key for key in unused if not is_neutral(key, given[key]))
    if refused:
        raise ValueError(f"{asked} and {', '.join(refused)} exclude each other")
    kept = {"temperature": 0.0} | {key: given[key] for key in given.keys() - unused}
    return Select(name, choices, kept, method or token_length_normalized, values)


def of_type(
    name: str | None,
    given: Mapping[str, Any],
    kind: Any,
    where: Callable[[Any], Any] | None = None,
    *,
    asked: str = "type",
) -> Writer:
    """A gen of a value of `kind`; of a text, `where` may hold too. `asked` is what errors say."""
    form = form_of(kind)
    if where is not None and not form.is_text:
        raise ValueError(f"where and {asked} exclude each other, except for str: {kind!r}")
    if form.choices is not None:
        return chosen(
            name, [*form.choices], None, given, values=form.choices, asked=f"{asked} {kind!r}"
        )
    return _of_form(name, given, form, where, asked)


def _of_form(
    name: str | None,
    given: Mapping[str, Any],
    form: Form,
    where: Callable[[Any], Any] | None,
    asked: str,
) -> Gen:
    predicate = form.predicate
    if where is not None:
        own = predicate_of(where)
        predicate = own if predicate is None else predicate & own
    constraint = dict(form.given)
    if predicate is not None:
        field, source = constraint_of(predicate)
        constraint[field] = source
    return Gen(
        name,
        {**given, **constraint},
        Reader(convert=form.convert, predicate=predicate),
        asked=asked if constraint else None,
        has_value=True,
        ends_before=form.stop_regex,
    )


def of_predicate(name: str | None, given: Mapping[str, Any], where: Callable[[Any], Any]) -> Gen:
    """A gen of a text for which `where` holds, besides the regex of `given`."""
    predicate: Predicate = predicate_of(where)
    groups = None
    if "regex" in given:
        groups = named_groups_of(given["regex"])
        predicate = Written().matches(given["regex"]) & predicate
    field, source = constraint_of(predicate)
    rest = {key: value for key, value in given.items() if key != "regex"}
    reader = Reader(named_groups=groups, predicate=predicate)
    return Gen(name, {**rest, field: source}, reader, asked="where")


def of_grammar(name: str | None, given: Mapping[str, Any], grammar: Any) -> Gen:
    """A gen of a text of a grammar, with what its captures matched."""
    if not isinstance(grammar, Grammar):
        raise TypeError(f"grammar must be made of sgl.g, not {grammar!r}")
    made = compiled(grammar)
    if made.field == "regex":
        reader = Reader(named_groups=named_groups_of(made.source))
    else:
        reader = Reader(captures=made.captures, grammar=made.source)
    return Gen(name, {**given, made.field: made.source}, reader, asked="grammar")


class ReturnGen(Gen):
    """A gen named `return` without a constraint of its own: of the type that the function which it
    runs in says it returns, if it says that."""

    def in_program(self, program: Program) -> Writer:
        """What to perform. Raises TypeError for a return type whose values cannot be written."""
        kind = None if program.returns is None else program.returns()
        if kind is None:
            return Gen(self.name, self.given)
        return of_type(self.name, self.given, kind, asked="the return type")

    async def perform(self, stream: Stream, slots: Slots) -> None:
        rest = self.in_program(stream.program).perform(stream, slots)
        if rest is not None:
            await rest

    async def write(self, stream: Stream, slot: Slot, quiet: bool) -> None:
        if stream.program.returns is not None:
            raise ValueError("separate_reasoning cannot hold the gen 'return', which has a type")
        await super().write(stream, slot, quiet)
