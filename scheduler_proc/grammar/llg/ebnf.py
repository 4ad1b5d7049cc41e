"""Context-free grammars of users: GBNF (`root ::= ...`) converted by us, Lark passed on.

Called by the llguidance back end. Exactness decides the form: a grammar without recursion becomes
one regex; any other is written with single characters as its terminals, because llguidance's
lexer takes the longest terminal and would lose parses if terminals overlapped.
"""

import re

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar
from srt.answers.captures.lark import capture_grammar
from srt.patterns.lark import LarkWriter, body_of
from srt.patterns.read_gbnf import Rules, error_at, inlined, is_gbnf, read_gbnf
from srt.patterns.tree import Node
from srt.patterns.write import regex

MAX_SOURCE_CHARS = 512 * 1024

# Texts, patterns and comments of Lark, and what else may look like these words.
_LARK_WORDS = re.compile(
    r"""
      "(?:\\.|[^"\\\n])*" | /(?!/)(?:\\.|[^/\\\n])+/ | //.* | \#.*
    | (?P<token> <[^<>\s]+> ) | (?P<temperature> \btemperature(?=\s*=) )
    """,
    re.VERBOSE,
)


def lark_of(source: str) -> LLGrammar:
    """The grammar of a GBNF or Lark text. Raises GrammarError with line and column."""
    if len(source) > MAX_SOURCE_CHARS:
        raise GrammarError(f"the grammar is longer than {MAX_SOURCE_CHARS} characters")
    if is_gbnf(source):
        rules = read_gbnf(source)
        node = inlined(rules, source)
        return _character_lark(rules) if node is None else LLGrammar.regex(regex(node))
    if not re.search(r"^\s*\??start\s*[\[.:]", source, re.MULTILINE):
        raise GrammarError(
            "the grammar has neither a GBNF rule 'root ::=' nor a Lark rule 'start:'"
        )
    _check_lark(source)
    return LLGrammar.lark(capture_grammar(source).plain)  # captures are found in the answer


def regular_grammar(source: str) -> Node | None:
    """A GBNF text as one tree; None if it is none, or no GBNF. Raises as `lark_of` does."""
    if len(source) > MAX_SOURCE_CHARS or not is_gbnf(source):
        return None
    return inlined(read_gbnf(source), source)


def _character_lark(rules: Rules) -> LLGrammar:
    """The rules in Lark, with terminals of one character."""
    writer = LarkWriter()
    names = {name: f"rule_{i}" for i, name in enumerate(rules)}
    for name, body in rules.items():
        writer.rules[names[name]] = body_of(body, writer.character, names)
    return LLGrammar.lark(writer.text(names["root"]))


def _check_lark(source: str) -> None:
    """Refuse what llguidance takes: outputs hold no special tokens, and have one temperature."""
    for found in _LARK_WORDS.finditer(source):
        if found["token"]:
            what = f"tokens cannot be named, only text: {found['token']!r}"
            raise error_at(source, found.start(), what)
        if found["temperature"]:
            raise error_at(source, found.start(), "a rule has no temperature of its own")
