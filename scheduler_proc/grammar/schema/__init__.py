"""JSON Schema: from the user's text to a grammar that accepts exactly the valid instances.

Every keyword is enforced, rewritten into others that are, or refused by name and place; nothing
is silently ignored but annotations. `prepare` is what the compiler calls.
"""

from functools import lru_cache
from typing import Any, NamedTuple

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.schema.document import Document
from scheduler_proc.grammar.schema.emit import printed_schema
from scheduler_proc.grammar.schema.flat import flat_regex
from scheduler_proc.grammar.schema.normalise import Normaliser
from scheduler_proc.grammar.schema.plan import Plan
from srt.constraint import Whitespace


class PreparedSchema(NamedTuple):
    """A schema in the core that the back ends print exactly.

    `schema` is that core as a JSON Schema; `grammar` is what the llguidance back end compiles;
    `regex`, in the syntax of Python's `re`, says the same where the schema is flat.
    """

    schema: dict[str, Any]
    grammar: LLGrammar
    regex: str | None


@lru_cache(maxsize=4)  # who chooses the back end asks first, and the back end again
def prepare(source: str, whitespace: Whitespace) -> PreparedSchema:
    """Read a JSON Schema. Raises GrammarError naming the keyword and its JSON pointer.

    Instances have their properties in the order of `properties`, others behind them; with
    "compact" whitespace there is none between JSON tokens.
    """
    try:
        plan = Plan(Normaliser(Document(source)), ((0, True),))
        schema, options = printed_schema(plan, whitespace)
        regex = flat_regex(plan, whitespace)
    except RecursionError:  # such as a name of a thousand characters, whose complement is as deep
        raise GrammarError("the JSON schema is nested too deeply") from None
    return PreparedSchema(schema, LLGrammar.schema({**schema, "x-guidance": options}), regex)
