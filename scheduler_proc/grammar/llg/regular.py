"""Patterns of `re` and grammars without recursion as one kind of tree, which prints as one terminal
of llguidance or as terminals of one character each.

Called for structural tags. llguidance's lexer takes the longest terminal, and so loses what should
come behind one that goes on for longer; terminals of one character lose nothing.
"""

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import regex_terminal
from scheduler_proc.grammar.regex import compile_regex
from scheduler_proc.grammar.regex.rust import without_anchors
from scheduler_proc.grammar.schema import pattern as tree
from srt.patterns import tree as syntax
from srt.patterns.read_re import parse

_MAX_STATES = 2000


def regular_of(pattern: str) -> tree.Node:
    """The tree of a pattern that whole texts must match. Raises GrammarError with the position."""
    return _converted(without_anchors(parse(pattern), at_start=True, at_end=True))


def _converted(node: syntax.Node) -> tree.Node:
    match node:
        case syntax.Literal(text):
            return tree.literal(text)
        case syntax.Chars(ranges):
            return tree.Chars(ranges)
        case syntax.Concat(items):
            return tree.Sequence(tuple(map(_converted, items)))
        case syntax.Choice(items):
            return tree.Choice(tuple(map(_converted, items)))
        case syntax.Repeat(item, low, high):
            return tree.Repeat(_converted(item), low, high)
        case syntax.Anchor(kind):
            raise GrammarError(f"{kind.value} inside a pattern has no equal without assertions")


def terminal(node: tree.Node) -> str:
    """The tree as one terminal of Lark."""
    return regex_terminal(tree.pattern_of(node).regex)


def ends_itself(node: tree.Node) -> bool:
    """Whether no match goes on to be another: one terminal then loses nothing. False also for the
    empty text, which is no terminal, and where it takes too many states to tell."""
    try:
        dfa = compile_regex(tree.pattern_of(node).regex, max_states=_MAX_STATES)
    except GrammarError:
        return False
    return not dfa.accepting[0] and not (dfa.transitions[dfa.accepting] >= 0).any()


def spelled(node: tree.Node) -> str:
    """The tree in Lark, with terminals of one character each."""
    match node:
        case tree.Chars():
            return terminal(node)
        case tree.Sequence(()) | tree.Repeat(_, _, 0):
            return '""'
        case tree.Sequence(items):
            return " ".join(map(spelled, items))
        case tree.Choice(items):
            return f"({' | '.join(map(spelled, items))})"
        case tree.Repeat(item, least, most):
            return f"({spelled(item)}){{{least},{'' if most is None else most}}}"
