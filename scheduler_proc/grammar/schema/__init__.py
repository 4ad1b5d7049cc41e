"""JSON Schema: from the user's text to a grammar that accepts exactly the valid instances.

Every keyword is enforced, rewritten into others that are, or refused by name and place; nothing
is silently ignored but annotations. `prepare` is what the compiler calls.
"""

from functools import cached_property, lru_cache
from typing import Any

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.schema.document import Document
from scheduler_proc.grammar.schema.normalise import Normaliser
from scheduler_proc.grammar.schema.plan import SchemaPlan
from scheduler_proc.grammar.schema.printing.emit import BeyondSchemaError, Emitter
from scheduler_proc.grammar.schema.printing.flat import flat_regex
from scheduler_proc.grammar.schema.printing.rules import printed_rules
from srt.wire.constraint import Whitespace


class PreparedSchema:
    """A schema in the core that the back ends print exactly.

    `regex`, in the syntax of Python's `re`, says all of it if the schema is flat; otherwise it is
    None. `schema` and `grammar` raise GrammarError for what they cannot say; if `regex` is None,
    `prepare` has made sure that `grammar` does not. `plan` has the shapes of all its parts.
    """

    def __init__(self, plan: SchemaPlan, whitespace: Whitespace) -> None:
        self.plan, self._whitespace = plan, whitespace
        self.regex = flat_regex(plan, whitespace)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The core as a JSON Schema."""
        return Emitter(self.plan).document()

    @cached_property
    def grammar(self) -> LLGrammar:
        """What the llguidance back end compiles."""
        try:
            options = {"whitespace_flexible": self._whitespace == "free"}
            return LLGrammar({"json_schema": {**self.schema, "x-guidance": options}})
        except BeyondSchemaError:
            return printed_rules(self.plan, self._whitespace)


@lru_cache(maxsize=4)  # asked for twice: to choose the back end, and by the back end
def prepare(source: str, whitespace: Whitespace, closed: bool = False) -> PreparedSchema:
    """Read a JSON Schema. Raises GrammarError naming the keyword and its JSON pointer.

    Instances have their properties in the order of `properties`, others after them; with
    "compact" whitespace there is none between JSON tokens. `closed` is the root's `x-closed` if the
    schema has none.
    """
    normaliser = Normaliser(Document(source), closed)
    try:
        try:
            return _prepared(normaliser, whitespace)
        except GrammarError:
            if not normaliser.has_met:
                raise
        return _prepared(Normaliser(Document(source), closed, exact=False), whitespace)
    except RecursionError:  # the complement of a name of 1000 characters is as deep
        raise GrammarError("the JSON schema is nested too deeply") from None


def _prepared(normaliser: Normaliser, whitespace: Whitespace) -> PreparedSchema:
    prepared = PreparedSchema(SchemaPlan(normaliser, ((0, True),)), whitespace)
    if prepared.regex is None:
        _ = prepared.grammar
    return prepared
