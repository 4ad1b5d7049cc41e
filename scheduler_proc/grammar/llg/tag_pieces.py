"""Pieces of the grammar of a structural tag, and how they are combined.

A piece that is regular is kept as a tree of a pattern for as long as possible: pieces that all have
one combine to one regular expression.
"""

from typing import NamedTuple

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex import compile_regex
from srt.patterns.lark import body_of, terminal, times
from srt.patterns.tree import Chars, Literal, Node, choice, concat, repeat
from srt.patterns.write import regex

_MAX_STATES = 2000  # to find out whether a tag's content ends itself


class Piece(NamedTuple):
    """A format as a piece of Lark. A regular one has a tree, and has Lark only if that is better
    than the tree written character by character. With `ends` it includes the string after it."""

    lark: str = ""
    ends: bool = False
    tree: Node | None = None

    def spelled(self) -> str:
        """It as Lark."""
        return self.lark if self.tree is None or self.lark else spelled(self.tree)


def in_a_row(parts: list[Piece]) -> Piece:
    """The pieces, one after the other."""
    found = [part.tree for part in parts if part.tree is not None]
    tree = concat(found) if len(found) == len(parts) else None
    return Piece(_lark(" ", parts), parts[-1].ends, tree)


def one_of_pieces(parts: list[Piece]) -> Piece:
    """One of the pieces."""
    found = [part.tree for part in parts if part.tree is not None]
    tree = choice(found) if len(found) == len(parts) else None
    lark = _lark(" | ", parts)
    return Piece(f"({lark})" if lark else "", tree=tree)


def repeated(part: Piece, least: int, most: int | None) -> Piece:
    """The piece, `least` to `most` times; any number of times from `least` on if `most` is None."""
    if most == 0:
        return Piece(tree=Literal(""))
    tree = None if part.tree is None else repeat(part.tree, least, most)
    return Piece(times(part.lark, least, most) if part.lark else "", tree=tree)


def _lark(separator: str, parts: list[Piece]) -> str:
    """The parts as Lark, if some have any."""
    return separator.join(part.spelled() for part in parts) if any(p.lark for p in parts) else ""


def spelled(node: Node) -> str:
    """The tree in Lark, with terminals of one character each."""
    return body_of(node, lambda ranges: terminal(regex(Chars(ranges))))


def ends_itself(node: Node) -> bool:
    """Whether no match is the beginning of another: one terminal then loses nothing. False also if
    the empty text matches, which cannot be a terminal, or if finding out takes too many states."""
    try:
        dfa = compile_regex(regex(node), max_states=_MAX_STATES)
    except GrammarError:
        return False
    return not dfa.accepting[0] and not (dfa.transitions[dfa.accepting] >= 0).any()


def one_of_texts(texts: list[str]) -> Node:
    """A pattern of the texts."""
    return choice(map(Literal, texts))


def pattern_of_texts(texts: list[str]) -> str:
    """The same as a regular expression, which is empty without texts."""
    return regex(one_of_texts(texts)) if texts else ""
