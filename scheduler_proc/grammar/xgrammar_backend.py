"""The back end `xgrammar`: a second opinion in tests, and an option for users who want it.

Optional: xgrammar imports torch and transformers, so nothing is imported before it is used. It
accepts some invalid instances where a schema has `not`, `uniqueItems`, `if` and the like: it is
given the schema as we have rewritten it, which avoids most of that.
"""

import json
import logging
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from scheduler_proc.grammar.base import GrammarError, WithoutStates, fewest_forced
from scheduler_proc.grammar.library_errors import in_our_words
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.patterns.read_re import parse
from srt.wire.constraint import Constraint

log = logging.getLogger(__name__)

_MAX_ROLLBACK = -1  # all of it
_infos: "weakref.WeakKeyDictionary[TokenVocabulary, Any]" = weakref.WeakKeyDictionary()


def _tokenizer_info(vocabulary: TokenVocabulary) -> Any:
    found = _infos.get(vocabulary)
    if found is None:
        import xgrammar

        found = xgrammar.TokenizerInfo(
            vocabulary.token_bytes,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.eos_ids),
        )
        _infos[vocabulary] = found
    return found


class XgrammarGrammar:
    """A compiled grammar of xgrammar."""

    backend = "xgrammar"
    narrows = False

    def __init__(self, compiled: Any, vocabulary: TokenVocabulary) -> None:
        self._compiled = compiled
        self.vocabulary = vocabulary

    @property
    def num_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    @cached_property
    def fewest_tokens(self) -> int:
        return fewest_forced(self.start(), max(1, self.vocabulary.trie.max_depth))

    def start(self) -> "XgrammarMatcher":
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._compiled, max_rollback_tokens=_MAX_ROLLBACK)
        return XgrammarMatcher(matcher, self.vocabulary)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"grammar": self._compiled.serialize_json()}, {}

    @classmethod
    def from_arrays(
        cls, facts: dict[str, Any], arrays: dict[str, np.ndarray], vocabulary: TokenVocabulary
    ) -> "XgrammarGrammar":
        """Raises GrammarError if these are not what `to_arrays` gave for this vocabulary."""
        import xgrammar

        text = facts.get("grammar")
        if not isinstance(text, str) or arrays:
            raise GrammarError("the compiled grammar is damaged: no grammar in it")
        info = _tokenizer_info(vocabulary)
        try:
            compiled = xgrammar.CompiledGrammar.deserialize_json(text, info)
        except (RuntimeError, ValueError) as error:
            log.debug("a grammar is not read: %s", error)
            raise GrammarError("the compiled grammar is damaged: xgrammar refuses it") from None
        return cls(compiled, vocabulary)


class XgrammarMatcher(WithoutStates):
    """One request's place in a grammar; see `Grammar`."""

    def __init__(self, matcher: Any, vocabulary: TokenVocabulary, ended: bool = False) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._ended = ended
        self._row = np.zeros((1, vocabulary.mask_width), np.int32)

    def fill(self, row: np.ndarray) -> None:
        if self._ended:
            raise GrammarError("the output has ended")
        vocabulary = self._vocabulary
        if not self._matcher.fill_next_token_bitmask(self._row, 0):
            self._row.fill(-1)  # its answer where everything is allowed
        np.bitwise_and(self._row[0].view(np.uint32), vocabulary.text_mask, out=row)
        row &= ~vocabulary.eos_mask
        if self.is_accepting():
            row |= vocabulary.eos_mask
        if not row.any():
            raise GrammarError("no token of the vocabulary can follow")

    def accept(self, tokens: Sequence[int]) -> None:
        if tokens and self._ended:
            raise GrammarError("the output has ended")
        for number, token in enumerate(tokens):
            is_end = token in self._vocabulary.eos_ids
            is_last = number == len(tokens) - 1
            if not (is_last and self.is_accepting() if is_end else self._accept_text(token)):
                self._matcher.rollback(number)
                raise GrammarError(f"token {token}, number {number} of these, does not fit")
            self._ended = is_end

    def _accept_text(self, token: int) -> bool:
        vocabulary = self._vocabulary
        known = 0 <= token < vocabulary.vocab_size and vocabulary.token_bytes[token]
        return bool(known) and bool(self._matcher.accept_token(token))

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > self._ended:
            self._matcher.rollback(num_tokens - self._ended)
        self._ended = self._ended and num_tokens == 0

    def forced_bytes(self) -> bytes:
        if self._ended or self.is_accepting():
            return b""
        return str(self._matcher.find_jump_forward_string()).encode()

    def is_accepting(self) -> bool:
        return not self._ended and bool(self._matcher.is_completed())

    def is_terminated(self) -> bool:
        if self._ended or self._vocabulary.eos_ids or not self.is_accepting():
            return self._ended
        row = np.zeros(self._vocabulary.mask_width, np.uint32)
        try:
            self.fill(row)
        except GrammarError:
            return True
        return False

    def fork(self) -> "XgrammarMatcher":
        return XgrammarMatcher(self._matcher.fork(), self._vocabulary, self._ended)

    def for_drafts(self) -> "XgrammarMatcher":
        return self.fork()


# ---- From constraints ------------------------------------------------------------------------


def compile_xgrammar(constraint: Constraint, vocabulary: TokenVocabulary) -> XgrammarGrammar:
    """Compile any kind of constraint. Raises GrammarError with a reason for the user.

    Regexes are in xgrammar's syntax, which is close to ECMA-262's.
    """
    import xgrammar

    compiler = xgrammar.GrammarCompiler(
        _tokenizer_info(vocabulary), max_threads=1, cache_enabled=False
    )
    try:
        if constraint.before or constraint.after:
            tag = json.dumps(_with_lead(constraint))
            return XgrammarGrammar(compiler.compile_structural_tag(tag), vocabulary)
        return XgrammarGrammar(_COMPILE[constraint.kind](compiler, constraint), vocabulary)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, GrammarError):
            raise
        _check_with_ours(constraint, vocabulary)
        raise in_our_words(str(error)) from None


def _check_with_ours(constraint: Constraint, vocabulary: TokenVocabulary) -> None:
    """Raise GrammarError for what is wrong in a constraint itself, in our words."""
    if constraint.kind == "regex":
        parse(constraint.source)
    else:
        compile_llguidance(constraint, vocabulary)


def _schema(compiler: Any, constraint: Constraint) -> Any:
    schema = prepare(constraint.source, constraint.whitespace, constraint.closed).schema
    if constraint.whitespace == "free":
        return compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
    return compiler.compile_json_schema(
        json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=False
    )


_COMPILE: dict[str, Callable[[Any, Constraint], Any]] = {
    "regex": lambda compiler, constraint: compiler.compile_regex(constraint.source),
    "json_schema": _schema,
    "ebnf": lambda compiler, constraint: compiler.compile_grammar(constraint.source),
    "structural_tag": lambda compiler, c: compiler.compile_structural_tag(c.source),
    "choices": lambda compiler, constraint: compiler.compile_grammar(_choices(constraint.source)),
}


def _choices(source: str) -> str:
    choices = msgspec.json.decode(source, type=list[str])
    return "root ::= " + " | ".join(json.dumps(choice) for choice in choices)


def _with_lead(constraint: Constraint) -> dict[str, Any]:
    """A structural tag: the text before, free text up to a string, then the constraint."""
    kind, source = constraint.kind, constraint.source
    formats: dict[str, dict[str, Any]] = {
        "regex": {"type": "regex", "pattern": source},
        "ebnf": {"type": "grammar", "grammar": source},
    }
    if kind == "json_schema":
        schema = prepare(source, constraint.whitespace, constraint.closed).schema
        formats[kind] = {"type": "json_schema", "json_schema": schema}
    elif kind == "choices":
        formats[kind] = {"type": "grammar", "grammar": _choices(source)}
    elif kind == "structural_tag":
        formats[kind] = msgspec.json.decode(source, type=dict[str, Any]).get("format", {})
    elements: list[dict[str, Any]] = []
    if constraint.before:
        elements.append({"type": "const_string", "value": constraint.before})
    held = formats[kind]
    if constraint.after:
        free = {"type": "any_text"}
        begin, end = constraint.opener, constraint.after
        elements.append({"type": "tag", "begin": begin, "content": free, "end": end})
    elements.append(held)
    if constraint.opener:
        waiting = {"type": "sequence", "elements": elements[-2:]}
        elements[-2:] = [{"type": "or", "elements": [waiting, held]}]
    return {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
