r"""Lark grammars of one terminal as automata: `start: TEXT`, and `TEXT: /a*/ & ~/[\s\S]*aa/`.

Programs write these for `where`. llguidance takes them too, but intersections with counted
repetitions soon need more than it may spend on a step. What is read is the part of the syntax in
which all means the same as there; anything else is no concern of this module.
"""

import json
import re

import numpy as np

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.alphabet import Alphabet
from scheduler_proc.grammar.regex.compile import MAX_STATES, compile_regex
from scheduler_proc.grammar.regex.dfa import DEAD, ByteDFA, finish
from scheduler_proc.grammar.regex.prefix import byte_masks, put_after, put_before
from scheduler_proc.grammar.regex.product import (
    Both,
    Complement,
    Either,
    Expression,
    Leaf,
    product,
    product_masks,
)
from scheduler_proc.grammar.regex.substring import substring_dfa
from srt.patterns.errors import StateLimitError
from srt.patterns.write import FREE_TEXT

MAX_DEPTH = MAX_LEAVES = 100
_FORM = re.compile(r"start: ([A-Z]+)\n\1: ([^\n]+)\n?")
_WORD = re.compile(r"\s*(?:([()&|~])|/((?:[^/\\\n]|\\.)+)/|(%regex)\s*)")
# Patterns that mean the same in Python and in Rust: no classes by name, no flags, no assertions.
_ESCAPE = r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[^\w\s])"
_PLAIN = re.compile(
    rf"(?:\[\^?\\s\\S\]|\[\^?(?:{_ESCAPE}|\w|-)+\]|{_ESCAPE}|\w|\(\?:|[)|*+?]"
    r"|\{[0-9]+(?:,[0-9]*)?\})*",
    re.ASCII,
)
_EMPTY = ByteDFA(np.full((1, 1), DEAD, np.int32), np.zeros(256, np.uint8), np.zeros(1, np.bool_))


class Terminal:
    """An expression of patterns and parts of texts; see `read_terminal`."""

    def __init__(self, expression: Expression, leaves: list[tuple[bool, str]]) -> None:
        self._expression = expression
        self._leaves = leaves

    def compile(
        self,
        *,
        before: bytes = b"",
        after: bytes = b"",
        opener: bytes = b"",
        absent_bytes: bytes = b"",
        max_states: int = MAX_STATES,
    ) -> ByteDFA:
        """Its automaton; the keywords are those of `compile_regex`."""
        # Whole characters, which a complement alone would not ask for.
        leaves = [*self._leaves, (False, FREE_TEXT)]
        expression = Both(self._expression, Leaf(len(leaves) - 1))
        dfas = [_dfa(is_part, source, max_states) for is_part, source in leaves]
        masks = {*product_masks(dfas), *byte_masks(before + opener + after)}
        alphabet = Alphabet(masks, absent_bytes)
        graph = product(expression, dfas, alphabet, max_states)
        graph = put_after(after, graph, alphabet, opener, max_states)
        return finish(put_before(before, graph, alphabet), alphabet.byte_class)


def _dfa(is_part: bool, source: str, max_states: int) -> ByteDFA:
    if is_part:
        return substring_dfa(source, max_states)
    try:
        return compile_regex(source, max_states=max_states)
    except StateLimitError:
        raise
    except GrammarError:  # nothing matches it
        return _EMPTY


def read_terminal(source: str) -> Terminal | None:
    """The terminal of a Lark text that is nothing else; None for all others."""
    form = _FORM.fullmatch(source)
    if form is None:
        return None
    reader = _Reader(form[2])
    try:
        expression = reader.expression(0)
    except _OtherForm:
        return None
    return None if reader.rest.strip() else Terminal(expression, reader.leaves)


class _OtherForm(Exception):
    """This is left to llguidance, valid or not."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.leaves: list[tuple[bool, str]] = []

    @property
    def rest(self) -> str:
        """What is not read yet."""
        return self._text[self._at :]

    def _next(self, *, peek: bool = False) -> re.Match[str] | None:
        found = _WORD.match(self._text, self._at)
        if found is not None and not peek:
            self._at = found.end()
        return found

    def expression(self, depth: int) -> Expression:
        """Operands with operators of one kind between them."""
        made, kind = self._operand(depth), ""
        while (word := self._next(peek=True)) is not None and word[1] in ("&", "|"):
            if kind not in ("", word[1]):
                raise _OtherForm
            kind = word[1]
            self._next()
            operand = self._operand(depth)
            made = Both(made, operand) if kind == "&" else Either(made, operand)
        return made

    def _operand(self, depth: int) -> Expression:
        word = self._next()
        if word is None or depth > MAX_DEPTH:
            raise _OtherForm
        if word[1] == "~":
            return Complement(self._operand(depth + 1))
        if word[1] == "(":
            made = self.expression(depth + 1)
            end = self._next()
            if end is None or end[1] != ")":
                raise _OtherForm
            return made
        if word[2] is not None and _PLAIN.fullmatch(word[2]):
            return self._leaf(False, word[2])
        if word[3] is not None:
            return self._leaf(True, self._part())
        raise _OtherForm

    def _leaf(self, is_part: bool, source: str) -> Expression:
        if len(self.leaves) == MAX_LEAVES:
            raise _OtherForm
        self.leaves.append((is_part, source))
        return Leaf(len(self.leaves) - 1)

    def _part(self) -> str:
        """What `%regex` has: a text, the parts of which are meant."""
        try:
            given, length = json.JSONDecoder().raw_decode(self.rest)
        except ValueError:
            raise _OtherForm from None
        self._at += length
        if not isinstance(given, dict) or list(given) != ["substring_chars"]:
            raise _OtherForm
        text = given["substring_chars"]
        if not isinstance(text, str):
            raise _OtherForm
        return text
