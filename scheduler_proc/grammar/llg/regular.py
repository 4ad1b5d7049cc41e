"""Trees of patterns as one terminal of llguidance, or as terminals of one character each.

Called for structural tags. llguidance's lexer takes the longest terminal, and so loses what should
come after one that goes on for longer; terminals of one character lose nothing.
"""

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import regex_terminal
from scheduler_proc.grammar.regex import compile_regex
from srt.patterns.tree import Chars, Node
from srt.patterns.write import lark, regex

_MAX_STATES = 2000


def terminal(node: Node) -> str:
    """The tree as one terminal of Lark."""
    return regex_terminal(regex(node))


def ends_itself(node: Node) -> bool:
    """Whether no match is the beginning of another: one terminal then loses nothing. False also if
    the empty text matches, which cannot be a terminal, or if finding out takes too many states."""
    try:
        dfa = compile_regex(regex(node), max_states=_MAX_STATES)
    except GrammarError:
        return False
    return not dfa.accepting[0] and not (dfa.transitions[dfa.accepting] >= 0).any()


def spelled(node: Node) -> str:
    """The tree in Lark, with terminals of one character each."""
    return lark(node, lambda ranges: terminal(Chars(ranges)))
