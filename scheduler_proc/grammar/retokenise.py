"""Jump-forward: forced bytes become tokens at once, the same tokens that the tokenizer would have
made of the text.

Called by the scheduler core after each accepted token. A forced string must not be cut into tokens
as it lies: its start may belong into one token with what was generated before (`"` + `,` is `",`),
and its end into one with what comes after it. So a window of the output, from the last boundary of
the pre-tokenizer on, is tokenised again together with the forced bytes; tokens that come out
different replace the old ones; and tokens at the end that a longer, allowed token could begin
with are left to the model. The output's bytes only ever grow, and prompt tokens never change.
Source: the jump-forward decoding of SGLang (February 2024), with the token healing that
llguidance describes in its notes on fast-forward tokens.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from scheduler_proc.grammar.base import Grammar, GrammarError
from srt.files.sorted_tokens import SortedTokens
from srt.files.tokenizer import Pieces
from srt.files.vocab import Vocab
from srt.wire.messages import JUMP_WINDOW_TOKENS

WINDOW_TOKENS = JUMP_WINDOW_TOKENS  # looked back at most; longer words are left alone
MAX_HELD_TOKENS = 4


class TextEncoder(Protocol):
    """What retokenising needs of the tokenizer."""

    def split(self, text: str) -> Pieces:
        """Tokenise plain text, in which special tokens are text like any other."""


class Jump(NamedTuple):
    """Replace the last `drop` output tokens by `tokens`, which begin with the dropped tokens'
    `skip` bytes; the first `num_old` of `tokens` consist of such bytes only."""

    drop: int
    tokens: list[int]
    skip: int
    num_old: int


class Retokeniser:
    """Turns forced bytes into jumps for one vocabulary."""

    def __init__(self, vocab: Vocab, encoder: TextEncoder) -> None:
        self.eos_id = vocab.eos_ids[0] if vocab.eos_ids else None
        self._bytes = vocab.token_bytes
        self._split = encoder.split
        self._marks = {i: vocab.token_bytes[i] for i in vocab.mark_ids}
        self._longer = SortedTokens(vocab.token_bytes, vocab.special_ids).longer
        self._mask = np.empty((vocab.vocab_size + 31) // 32, np.uint32)
        self._not_eos = np.full_like(self._mask, 2**32 - 1)
        for eos in vocab.eos_ids:
            self._not_eos[eos // 32] &= ~np.uint32(1 << eos % 32)

    def jump(
        self,
        tail: list[int],
        is_whole: bool,
        grammar: Grammar,
        limit: int,
        must_end: bool = False,
    ) -> Jump | None:
        """The jump that the forced bytes after an output make, if any.

        `tail` are its last tokens, all of them if `is_whole`; the output may grow by `limit`
        tokens at most, and if it `must_end`, an end within these must be known after the jump: the
        tokenizer may make more tokens of a text than are needed. With a jump, `grammar` has gone
        along; without one it is where it was.
        """
        forced = grammar.forced_bytes()
        if not forced or self._has_mark(tail, forced):
            return None
        while tail and not is_whole and _is_continuation(self._bytes[tail[0]]):
            tail = tail[1:]
        pieces = self._pieces(b"".join([self._bytes[i] for i in tail]) + forced)
        sync = None if pieces is None else self._sync(tail, is_whole, pieces)
        if pieces is None or sync is None:
            return None
        old, new = tail[sync.num_tokens :], pieces.ids[sync.num_pieces :]
        same = _common_length(old, new)
        return self._take(old[same:], new[same:], grammar, limit, must_end)

    def _has_mark(self, tail: list[int], forced: bytes) -> bool:
        """Whether there are control tokens, which the encoder would spell out."""
        if not self._marks:
            return False
        return not self._marks.keys().isdisjoint(tail) or any(
            mark in forced for mark in self._marks.values()
        )

    def only_eos(self, grammar: Grammar) -> bool:
        """Whether the output can do nothing but end here."""
        if not grammar.is_accepting():
            return False
        grammar.fill(self._mask)
        return not self.allows_text(self._mask)

    def allows_text(self, mask: np.ndarray) -> bool:
        """Whether a mask allows more than EOS."""
        return bool((mask & self._not_eos).any())

    def _pieces(self, data: bytes) -> Pieces | None:
        """The pieces of `data`, as far as it is whole characters. None if it is not text, or the
        tokenizer does not give it back byte for byte."""
        text = _whole_characters(data)
        if text is None:
            return None
        pieces = self._split(text)
        exact = b"".join([self._bytes[i] for i in pieces.ids]) == text.encode()
        return pieces if exact else None

    def _sync(self, tail: list[int], is_whole: bool, pieces: Pieces) -> "_Sync | None":
        """The last point before the forced bytes where a word of the new pieces and an old token
        both begin. The window's own beginning does not count if words may have been cut there."""
        ends, seam = {0: 0}, 0
        for count, token in enumerate(tail, 1):
            seam += len(self._bytes[token])
            ends[seam] = count
        best, at, previous = None, 0, None
        for count, (piece, word) in enumerate(zip(pieces.ids, pieces.words, strict=True)):
            begins_word = is_whole if count == 0 else word is None or word != previous
            if begins_word and at in ends and at <= seam:
                best = _Sync(ends[at], count)
            at, previous = at + len(self._bytes[piece]), word
        return best

    def _take(
        self, old: list[int], new: list[int], grammar: Grammar, limit: int, must_end: bool
    ) -> Jump | None:
        """The jump without the tokens at its end that must be held back, with the grammar moved
        along it; None, and the grammar where it was, if nothing new is left."""
        grammar.rollback(len(old))
        try:
            grammar.accept(new)
        except GrammarError:  # in a vocabulary where not every byte is a token of its own
            grammar.accept(old)
            return None
        taken = min(len(new) - self._num_held(new, grammar), len(old) + limit)
        skip = self._length(old)
        if self._length(new[:taken]) > skip:
            grammar.rollback(len(new) - taken)
            if not must_end or grammar.ends_within(len(old) + limit - taken):
                ends = accumulate(len(self._bytes[i]) for i in new)
                return Jump(len(old), new[:taken], skip, sum(end <= skip for end in ends))
            new = new[:taken]
        grammar.rollback(len(new))
        grammar.accept(old)
        return None

    def _length(self, tokens: Sequence[int]) -> int:
        return sum(len(self._bytes[i]) for i in tokens)

    def _num_held(self, tokens: list[int], grammar: Grammar) -> int:
        """How many tokens at the end could be the beginning of a longer allowed token. `grammar`
        must stand after `tokens`, and does so again afterwards."""
        held, ending = 0, b""
        last = min(MAX_HELD_TOKENS, len(tokens))
        for count in range(1, last + 1):
            ending = self._bytes[tokens[-count]] + ending
            longer = self._longer(ending)
            if len(longer) > 0:
                grammar.rollback(count)
                grammar.fill(self._mask)
                grammar.accept(tokens[-count:])
                if ((self._mask[longer >> 5] >> (longer & 31).astype(np.uint32)) & 1).any():
                    held = count
        return held


class _Sync(NamedTuple):
    """The same place counted in old tokens and in new pieces of the window."""

    num_tokens: int
    num_pieces: int


def _is_continuation(token: bytes) -> bool:
    return bool(token) and 0x80 <= token[0] < 0xC0


def _whole_characters(data: bytes) -> str | None:
    """`data` as text, without an unfinished character at its end; None if it is not UTF-8."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                return None
    return None


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
