"""Token healing: the beginning of an output that writes the end of its prompt again.

The grammar inside forces the bytes; this narrows down in which tokens they may come. Among the
tokens that are only a beginning of the bytes, a model prefers some for other texts that they begin
(` he` instead of ` hel`), and is then led astray. So a token must reach the end of the bytes, or
be the one that the prompt had there, which keeps every text possible.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from scheduler_proc.grammar.base import NONE_SEEN, Grammar, SeenMasks
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.grammar.wrapped import WrappedGrammar


class HealedGrammar(WrappedGrammar):
    """A `Grammar` that begins with the bytes of `given`, the tokens that the prompt had."""

    def __init__(self, inner: Grammar, given: Sequence[int], vocabulary: TokenVocabulary) -> None:
        """`inner` must be at its beginning, and force these bytes first."""
        super().__init__(inner)
        self._given = given
        self._vocabulary = vocabulary
        pieces = [vocabulary.token_bytes[token] for token in given]
        self._text = b"".join(pieces)
        starts = accumulate(map(len, pieces[:-1]), initial=0)
        self._given_at = dict(zip(starts, given, strict=True))
        self._lengths = [0]  # bytes written after each accepted token, the start first

    def fill(self, row: np.ndarray) -> None:
        super().fill(row)
        written = self._lengths[-1]
        if written < len(self._text):
            narrowed = row & self._fitting(written)
            if narrowed.any():  # none fits only if the vocabulary lacks some bytes
                row[:] = narrowed

    def _fitting(self, written: int) -> np.ndarray:
        """The tokens that fit where this many bytes are written: uint32 [mask_width]."""
        vocabulary = self._vocabulary
        ids = vocabulary.sorted_tokens.starting(self._text[written:])
        given = [self._given_at[written]] if written in self._given_at else []
        return vocabulary.pack([*ids.tolist(), *given])

    def narrow(self, row: np.ndarray, left: int) -> bool:
        written = self._lengths[-1]
        if written >= len(self._text):
            return super().narrow(row, left)
        whole = np.empty_like(row)
        self._grammar.fill(whole)
        self._grammar.narrow(whole, left)
        narrowed = whole & self._fitting(written)
        before = row.copy()
        row[:] = narrowed if narrowed.any() else whole
        return not np.array_equal(row, before)

    def accept(self, tokens: Sequence[int]) -> None:
        super().accept(tokens)
        for token in tokens:
            self._lengths.append(self._lengths[-1] + len(self._vocabulary.token_bytes[token]))

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        del self._lengths[len(self._lengths) - num_tokens :]

    def mask_after(self, token: int) -> np.ndarray | None:
        written = self._lengths[-1] + len(self._vocabulary.token_bytes[token])
        return self._grammar.mask_after(token) if written >= len(self._text) else None

    def seen_after(self) -> SeenMasks:
        is_written = self._lengths[-1] >= len(self._text)
        return self._grammar.seen_after() if is_written else NONE_SEEN

    def fork(self) -> "HealedGrammar":
        copy = HealedGrammar(super().fork(), self._given, self._vocabulary)
        copy._lengths = self._lengths.copy()
        return copy

    def for_drafts(self) -> "HealedGrammar":
        return self.fork()
