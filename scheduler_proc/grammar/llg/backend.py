"""The back end `llguidance`: grammars that are no finite automaton (JSON Schema, EBNF, tags).

Called by the compiler in the worker, and by the scheduler to step. llguidance compiles in
milliseconds and has no form on disk, so an artefact holds the grammar's text and is compiled
again where it is loaded. A matcher that refused a token stays in error for ever, so tokens are
validated before they are consumed; EOS never reaches the matcher.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from time import thread_time
from typing import Any

import llguidance
import msgspec
import numpy as np

from scheduler_proc.grammar.base import GrammarError, WithoutStates, fewest_forced
from scheduler_proc.grammar.library_errors import about_lark, in_our_words
from scheduler_proc.grammar.ll_grammar import LLGrammar, free_until, text_first
from scheduler_proc.grammar.llg.ebnf import lark_of
from scheduler_proc.grammar.llg.structural_tags import tags_grammar
from scheduler_proc.grammar.llg.tokens import tokens_of
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.patterns.read_gbnf import is_gbnf
from srt.wire.constraint import Constraint

# Bounds of one compile and one mask: lexer fuel goes at about 50k/ms when a grammar is built and
# 14k/ms in a step (the library's own figures), Earley items at 20k/ms, but at 0.2k/ms in grammars
# that double at every rule: a step takes at most about 30 ms, and schemas of real programs do not
# need a fifth of the items. What is slow within the bounds is ended by `allowance`. Large
# terminals are not run over the vocabulary ahead: with two of them that used the fuel up, and
# llguidance then refused valid text without an error.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 150_000,
    "step_max_items": 5_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
MAX_GRAMMAR_CHARS = 4 * 2**20
_MAX_VALIDATED = 256  # tokens that are tried one by one
_BYTES_PER_GRAMMAR_CHAR = 64  # of the compiled form; llguidance does not report its size


Refusal = Callable[[str], GrammarError]  # from the library's message


def parser_limits() -> llguidance.LLParserLimits:
    """The bounds that every grammar is compiled and stepped within."""
    return llguidance.LLParserLimits(**_LIMITS)


class LlguidanceGrammar:
    """A compiled grammar: the text that llguidance takes, and a matcher at its beginning."""

    backend = "llguidance"
    narrows = False

    def __init__(
        self, text: str, vocabulary: TokenVocabulary, refusal: Refusal = in_our_words
    ) -> None:
        """Raises what `refusal` makes of the library's message if llguidance refuses the grammar,
        and GrammarError if it is above the limits."""
        if len(text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(
                f"the grammar takes {len(text)} characters, above the limit of {MAX_GRAMMAR_CHARS}"
            )
        self.text = text
        self.vocabulary = vocabulary
        tokenizer = tokens_of(vocabulary).tokenizer
        started = thread_time()
        self._pristine = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=parser_limits())
        if self._pristine.is_error():
            raise refusal(self._pristine.get_error())
        self.load_s = thread_time() - started  # seconds of CPU time, as wherever it is loaded

    @property
    def num_bytes(self) -> int:
        return sys.getsizeof(self.text) + _BYTES_PER_GRAMMAR_CHAR * len(self.text)

    @cached_property
    def fewest_tokens(self) -> int:
        return fewest_forced(self.start(), max(1, self.vocabulary.trie.max_depth))

    def start(self) -> "LlguidanceMatcher":
        return LlguidanceMatcher(self._pristine.deep_copy(), self.vocabulary)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What an artefact holds: the text. The limits are the program's, not the file's."""
        return {"grammar": self.text}, {}

    @classmethod
    def from_arrays(
        cls, facts: dict[str, Any], arrays: dict[str, np.ndarray], vocabulary: TokenVocabulary
    ) -> "LlguidanceGrammar":
        """Compile what `to_arrays` gave. Raises GrammarError if that is not what it gave."""
        text = facts.get("grammar")
        if not isinstance(text, str) or arrays:
            raise GrammarError("the compiled grammar is damaged: no text of a grammar in it")
        return cls(text, vocabulary)


class LlguidanceMatcher(WithoutStates):
    """One request's place in a grammar; see `Grammar`."""

    def __init__(self, matcher: Any, vocabulary: TokenVocabulary, ended: bool = False) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._ended = ended
        width = vocabulary.mask_width + (not vocabulary.eos_ids and vocabulary.vocab_size % 32 == 0)
        self._row = np.zeros(width, np.uint32)

    def fill(self, row: np.ndarray) -> None:
        if self._ended:
            raise GrammarError("the output has ended")
        vocabulary = self._vocabulary
        accepting = self._matcher.is_accepting()
        forced = b"" if accepting else bytes(self._matcher.compute_ff_bytes())
        self._check()
        if forced:
            row[:] = self._forced_mask(forced)
        else:
            np.bitwise_and(self._mask(), vocabulary.text_mask, out=row)
            row &= ~vocabulary.eos_mask
        if accepting:  # whatever the library makes of EOS, our own rule decides
            row |= vocabulary.eos_mask
        if not row.any():
            raise GrammarError("no token of the vocabulary can follow")

    def _mask(self) -> np.ndarray:
        """The library's own mask: uint32 [mask_width]."""
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        self._check()
        return self._row[: self._vocabulary.mask_width]

    def _forced_mask(self, forced: bytes) -> np.ndarray:
        """The tokens that agree with forced bytes; see `llg.tokens`."""
        tokens = tokens_of(self._vocabulary)
        within = tokens.within(forced)
        if tokens.num_beyond(forced) > _MAX_VALIDATED and within:
            # Many tokens go on beyond: here the library's mask has them all.
            mask: np.ndarray = self._mask() | self._vocabulary.pack(within)
            return mask
        beyond = tokens.beyond(forced)
        fitting = [i for i in beyond if self._matcher.validate_tokens([i]) == 1]
        return self._vocabulary.pack([*within, *fitting])

    def accept(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        if self._ended:
            raise GrammarError("the output has ended")
        eos = self._vocabulary.eos_ids
        text = list(tokens[:-1]) if tokens[-1] in eos else list(tokens)
        self._check_ordinary(text)
        valid = self._matcher.validate_tokens(text)
        self._check()
        if valid < len(text):
            raise GrammarError(f"token {text[valid]}, number {valid} of these, does not fit")
        if len(text) < len(tokens):
            self._accept_end(text)
        else:
            self._consume(text)

    def _accept_end(self, text: list[int]) -> None:
        self._consume(text)
        if not self._matcher.is_accepting():
            self._matcher.rollback(len(text))
            raise GrammarError("the output may not end here")
        self._ended = True

    def _consume(self, text: list[int]) -> None:
        if text and not self._matcher.consume_tokens(text):
            self._check()

    def _check_ordinary(self, tokens: list[int]) -> None:
        texts = self._vocabulary.token_bytes
        size = len(texts)
        for number, token in enumerate(tokens):
            if not 0 <= token < size or not texts[token]:
                raise GrammarError(f"token {token}, number {number} of these, is no text")

    def rollback(self, num_tokens: int) -> None:
        if num_tokens == 0:
            return
        if self._ended:
            num_tokens -= 1
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise GrammarError(f"cannot take back {num_tokens} tokens")
        self._ended = False

    def forced_bytes(self) -> bytes:
        if self._ended or self._matcher.is_accepting():
            return b""
        return bytes(self._matcher.compute_ff_bytes())

    def is_accepting(self) -> bool:
        return not self._ended and bool(self._matcher.is_accepting())

    def is_terminated(self) -> bool:
        if self._ended:
            return True
        stopped = not self._vocabulary.eos_ids and self._matcher.is_stopped()
        return bool(stopped) and not self._matcher.is_error()

    def fork(self) -> "LlguidanceMatcher":
        return LlguidanceMatcher(self._matcher.deep_copy(), self._vocabulary, self._ended)

    def for_drafts(self) -> "LlguidanceMatcher":
        return self.fork()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise in_our_words(self._matcher.get_error())


# ---- From constraints ------------------------------------------------------------------------

_GRAMMARS: dict[str, Callable[[Constraint], LLGrammar]] = {
    "json_schema": lambda c: prepare(c.source, c.whitespace, c.closed).grammar,
    "ebnf": lambda constraint: lark_of(constraint.source),
    "structural_tag": lambda c: tags_grammar(c.source, c.whitespace, c.closed, c.after, c.opener),
    "regex": lambda constraint: LLGrammar.regex(constraint.source),
    "choices": lambda constraint: LLGrammar.literals(_choices(constraint.source)),
}


def _choices(source: str) -> list[str]:
    try:
        return msgspec.json.decode(source, type=list[str])
    except msgspec.DecodeError as error:
        raise GrammarError(f"the choices must be a JSON array of strings: {error}") from None


def compile_llguidance(constraint: Constraint, vocabulary: TokenVocabulary) -> LlguidanceGrammar:
    """Compile any kind of constraint. Raises GrammarError with a reason for the user.

    A `regex` is expected in the syntax of Rust's regex crate, as `srt.patterns.write` has it.
    """
    grammar = _GRAMMARS[constraint.kind](constraint)
    refusal = about_lark if _is_lark(constraint) else in_our_words
    if constraint.after and constraint.kind != "structural_tag":  # which has seen to it
        grammar = free_until(constraint.after, grammar, constraint.opener)
    if constraint.before:
        grammar = text_first(constraint.before, grammar)
    return LlguidanceGrammar(grammar.text(), vocabulary, refusal)


def _is_lark(constraint: Constraint) -> bool:
    """Whether the grammar is the user's own text, so that places in it are known to the user."""
    return constraint.kind == "ebnf" and not is_gbnf(constraint.source)
