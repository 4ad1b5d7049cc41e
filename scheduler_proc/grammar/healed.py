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


class HealedGrammar:
    """A `Grammar` that begins with the bytes of `given`, the tokens that the prompt had."""

    def __init__(self, inner: Grammar, given: Sequence[int], vocabulary: TokenVocabulary) -> None:
        """`inner` must be at its beginning, and force these bytes first."""
        self._inner = inner
        self._given = given
        self._vocabulary = vocabulary
        pieces = [vocabulary.token_bytes[token] for token in given]
        self._text = b"".join(pieces)
        starts = accumulate(map(len, pieces[:-1]), initial=0)
        self._given_at = dict(zip(starts, given, strict=True))
        self._lengths = [0]  # bytes written after each accepted token, the start first

    def fill(self, row: np.ndarray) -> None:
        self._inner.fill(row)
        written = self._lengths[-1]
        if written < len(self._text):
            narrowed = row & self._fitting(written)
            if narrowed.any():  # none fits only if the vocabulary lacks some bytes
                row[:] = narrowed

    def _fitting(self, written: int) -> np.ndarray:
        """The tokens that fit where this many bytes are written: uint32 [mask_width]."""
        vocabulary = self._vocabulary
        ids = vocabulary.sorted_tokens.starting(self._text[written:])
        return vocabulary.pack([*ids.tolist(), *self._given_here(written)])

    def _given_here(self, written: int) -> list[int]:
        token = self._given_at.get(written)
        return [] if token is None else [token]

    def accept(self, tokens: Sequence[int]) -> None:
        self._inner.accept(tokens)
        for token in tokens:
            self._lengths.append(self._lengths[-1] + len(self._vocabulary.token_bytes[token]))

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)
        del self._lengths[len(self._lengths) - num_tokens :]

    def forced_bytes(self) -> bytes:
        return self._inner.forced_bytes()

    def is_accepting(self) -> bool:
        return self._inner.is_accepting()

    def is_terminated(self) -> bool:
        return self._inner.is_terminated()

    def is_free(self) -> bool:
        return self._inner.is_free()

    def mask_after(self, token: int) -> np.ndarray | None:
        written = self._lengths[-1] + len(self._vocabulary.token_bytes[token])
        return self._inner.mask_after(token) if written >= len(self._text) else None

    def seen_after(self) -> SeenMasks:
        is_written = self._lengths[-1] >= len(self._text)
        return self._inner.seen_after() if is_written else NONE_SEEN

    def fork(self) -> "HealedGrammar":
        copy = HealedGrammar(self._inner.fork(), self._given, self._vocabulary)
        copy._lengths = self._lengths.copy()
        return copy

    def for_drafts(self) -> "HealedGrammar":
        return self.fork()
