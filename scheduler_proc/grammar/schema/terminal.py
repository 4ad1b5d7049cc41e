"""Sets of strings as terminals of llguidance's Lark, which knows "and" and "not" of regexes.

Called by the printer of grammars, and by the normaliser, which asks what no string can meet. A
terminal is over the JSON spelling, quotes included.
"""

from functools import lru_cache
from typing import Any

from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.schema.oracle import byte_tokenizer
from scheduler_proc.grammar.schema.pattern import Pattern, none_of, one_of, pattern_of
from scheduler_proc.grammar.schema.shapes import Strings
from srt.patterns.lark import all_of, one_terminal
from srt.patterns.ranges import ANY
from srt.patterns.tree import Chars, repeat

_END = 1 << 256  # the only token left in a mask where nothing can follow


@lru_cache(4096)
def string_terminal(strings: Strings) -> str:
    """The right side of a rule of Lark for a set of strings."""
    without = [*strings.without, *([one_of(strings.excluded)] if strings.excluded else [])]
    within = list(strings.patterns)
    if strings.least or strings.most is not None or not within:
        within.append(pattern_of(repeat(Chars(ANY), strings.least, strings.most)))
    return all_of(
        (f'"{pattern.json_regex()}"' for pattern in within),
        (f'"{pattern.json_regex(exact=True)}"' for pattern in without),
    )


def is_never_met(strings: Strings) -> bool:
    """Whether certainly no string is in a set that has several conditions."""
    conditions = len(strings.patterns) + len(strings.without) + bool(strings.excluded)
    if conditions + (strings.least > 0 or strings.most is not None) < 2:
        return False
    return _is_empty(string_terminal(strings))


@lru_cache(1024)
def takes_terminal(strings: Strings) -> bool:
    """Whether llguidance takes these strings as a terminal only: its JSON Schema has no negation,
    and looks for a string in the product of several conditions before it compiles, for which it
    gives up early."""
    if strings.without:
        return True
    has_length = strings.least > 0 or strings.most is not None
    if len(strings.patterns) + bool(strings.excluded) + has_length < 2:
        return False
    import llguidance

    text = LLGrammar({"json_schema": strings_schema(strings)}).text()
    return bool(llguidance.LLMatcher(byte_tokenizer(), text, log_level=0).is_error())


def strings_grammar(strings: Strings, are_names: bool) -> LLGrammar:
    """The grammar of these strings alone, as they are printed within a schema, where those of the
    names of members are terminals."""
    if are_names or takes_terminal(strings):
        return LLGrammar.lark(one_terminal(string_terminal(strings)))
    return LLGrammar({"json_schema": strings_schema(strings)})


def strings_schema(strings: Strings) -> dict[str, Any]:
    """The JSON Schema of strings, without `without`."""
    printed: dict[str, Any] = {"type": "string"}
    if strings.least:
        printed["minLength"] = strings.least
    if strings.most is not None:
        printed["maxLength"] = strings.most
    patterns = list(strings.patterns)
    if strings.excluded:
        patterns.append(none_of(strings.excluded))
    conditions: list[dict[str, Any]] = [{"pattern": anchored(p)} for p in patterns]
    if len(conditions) == 1:
        return printed | conditions[0]
    return printed | ({"allOf": conditions} if conditions else {})


def anchored(pattern: Pattern) -> str:
    """The pattern of a whole string in llguidance's JSON Schema."""
    return f"^(?:{pattern.back_end_regex()})$"


@lru_cache(1024)
def _is_empty(printed: str) -> bool:
    import llguidance

    grammar = LLGrammar.lark(one_terminal(printed)).text()
    matcher: Any = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if matcher.is_error():  # beyond the library's limits
        return False
    return int.from_bytes(matcher.compute_bitmask(), "little") == _END
