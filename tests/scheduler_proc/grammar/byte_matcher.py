"""Grammars over single bytes, for tests that ask whether a whole text is accepted."""

import json
import random
from typing import Any

import llguidance

from scheduler_proc.grammar.ll_grammar import LLGrammar
from scheduler_proc.grammar.llg.backend import parser_limits
from scheduler_proc.grammar.schema import prepare
from scheduler_proc.grammar.schema.oracle import accepts_text, byte_tokenizer

_END = 256


class ByteMatcher:
    """Judges texts by a grammar in llguidance's form."""

    def __init__(self, grammar: LLGrammar) -> None:
        self._matcher = llguidance.LLMatcher(
            byte_tokenizer(), grammar.text(), log_level=0, limits=parser_limits()
        )
        assert not self._matcher.is_error(), self._matcher.get_error()

    def accepts(self, text: str) -> bool:
        return accepts_text(self._matcher, text)

    def sample(self, rng: random.Random, size: int) -> str | None:
        """A random text of the grammar; None if it does not end within `size` bytes."""
        matcher, data = self._matcher.deep_copy(), bytearray()
        while len(data) < size:
            bits = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [i for i in range(_END) if bits >> i & 1]
            if matcher.is_accepting() and (not allowed or rng.random() < 0.3):
                return data.decode()
            # Half of the time choose what ends a string or structure, so that texts stay short.
            closing = [i for i in allowed if i in b'"]},:']
            byte = rng.choice(closing if closing and rng.random() < 0.5 else allowed)
            matcher.consume_token(byte)
            data.append(byte)
        return None


def schema_matcher(schema: Any, whitespace: str = "compact", closed: bool = False) -> ByteMatcher:
    return ByteMatcher(prepare(json.dumps(schema), whitespace, closed).grammar)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
