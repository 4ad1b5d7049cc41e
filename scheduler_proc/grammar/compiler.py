"""From a constraint to a compiled grammar: which back end, and what if it is too large for it.

Runs in the compile worker's children. What is regular goes to our own automaton (`fsm`), which is
fastest at run time and knows its forced bytes; everything else, and what takes too many states,
goes to llguidance.
"""

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypedDict

import msgspec
from msgspec.structs import replace

from scheduler_proc.grammar.base import BackEndError, CompiledGrammar, GrammarError
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.llg.tokens import tokens_of
from scheduler_proc.grammar.regex import (
    ByteDFA,
    StateLimitError,
    compile_choices,
    compile_regex,
    read_terminal,
)
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.patterns.assertions import whole
from srt.patterns.groups import GroupPattern
from srt.patterns.read_re import parse
from srt.patterns.write import NO_CHARACTER, regex
from srt.wire.constraint import Constraint, may_capture
from srt.wire.errors import ConfigError

# A schema with a little of everything that compilations pass through.
_SCHEMA = """{"type": "object", "required": ["a", "f"], "properties": {
"a": {"type": "string", "pattern": "^[a-f]+b"}, "b": {"type": "array", "items": {"$ref": "#"}},
"c": {"enum": ["x", 1]}, "d": {"type": "integer", "minimum": 3}, "e": {"format": "date-time"},
"f": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string", "maxLength": 9}]}},
"patternProperties": {"^x-": {}}, "additionalProperties": {"type": ["null", "string"]}}"""
_REHEARSAL = (Constraint("regex", "a?|b[0-9]{2}"), Constraint("json_schema", _SCHEMA))


class _Lead(TypedDict):
    """What automata are compiled with; see `compile_regex`."""

    before: bytes
    after: bytes
    opener: bytes
    absent_bytes: bytes


class GrammarCompiler:
    """Compiles for one vocabulary. `backend` "fsm" chooses as above; "llguidance" and "xgrammar"
    take every constraint."""

    def __init__(self, vocabulary: TokenVocabulary, backend: str = "fsm") -> None:
        """Raises ConfigError if the back end is not installed."""
        if backend == "xgrammar" and importlib.util.find_spec("xgrammar") is None:
            raise ConfigError("--grammar-backend xgrammar: the package xgrammar is not installed")
        self._vocabulary = vocabulary
        self._backend = backend

    def warm_up(self) -> list[CompiledGrammar]:
        """Make what compilations share, and touch what they use: before the first fork, and in
        children before they have a constraint. Returns what was compiled for that."""
        if self._backend != "xgrammar":
            tokens_of(self._vocabulary)
        prepare.cache_clear()
        compiled = []
        for constraint in _REHEARSAL:
            with suppress(GrammarError):  # a vocabulary may have no token for it
                compiled.append(self.compile(constraint))
        return compiled

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Raises GrammarError with the reason, and the position if there is one."""
        if constraint.kind == "regex" and may_capture(constraint):
            GroupPattern(constraint.source)  # whose size has a limit
        if self._backend == "xgrammar":
            from scheduler_proc.grammar.xgrammar_backend import compile_xgrammar

            return compile_xgrammar(constraint, self._vocabulary)
        if self._backend == "fsm":
            dfa_of = self._automaton(constraint)
            if dfa_of is not None:
                return self._fsm(constraint, dfa_of)
        return self._llguidance(constraint)

    def _automaton(self, constraint: Constraint) -> Callable[[], ByteDFA] | None:
        """How to make the constraint's automaton; None if it is not regular."""
        source = constraint.source
        lead: _Lead = {
            "before": constraint.before.encode(),
            "after": constraint.after.encode(),
            "opener": constraint.opener.encode(),
            "absent_bytes": self._vocabulary.absent_bytes,
        }
        if constraint.kind == "choices":
            choices = msgspec.json.decode(source, type=list[str])
            return lambda: compile_choices(choices, **lead)
        if constraint.kind == "ebnf":
            terminal = read_terminal(source)
            if terminal is None:
                return None
            return partial(terminal.compile, **lead)
        pattern: str | None = None
        if constraint.kind == "regex":
            pattern = source
        elif constraint.kind == "json_schema":
            pattern = prepare(source, constraint.whitespace, constraint.closed).regex
        if pattern is None:
            return None
        regular = pattern
        return lambda: compile_regex(regular, **lead)

    def _fsm(self, constraint: Constraint, dfa_of: Callable[[], ByteDFA]) -> CompiledGrammar:
        try:
            return FsmGrammar.build(dfa_of(), self._vocabulary)
        except StateLimitError as too_large:
            try:
                return self._llguidance(constraint)
            except GrammarError as error:
                kind = BackEndError if isinstance(error, BackEndError) else GrammarError
                raise kind(f"{too_large}; llguidance: {error}") from None

    def _llguidance(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind == "regex":  # in one syntax, and with one meaning, on every back end
            source = regex(whole(parse(constraint.source)))
            if NO_CHARACTER in source:  # llguidance would take a pattern that nothing matches
                raise GrammarError("a set without characters cannot be passed on")
            constraint = replace(constraint, source=source)
        return compile_llguidance(constraint, self._vocabulary)
