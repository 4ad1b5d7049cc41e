"""A grammar without a language: what may follow is a hash of everything accepted so far."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from scheduler_proc.grammar.base import GrammarError, SeenMasks, WithoutStates
from tests.scheduler_proc.fake_executor import VOCAB, next_hash

EOS = VOCAB - 1


class FakeGrammar(WithoutStates):
    """Allows about a seventh of the tokens; ends after `length` tokens at the latest."""

    def __init__(self, length: int, breaks_at: int = -1) -> None:
        self.length = length
        self.breaks_at = breaks_at  # after this many tokens none may follow, as if by a defect
        self.tokens: list[int] = []

    def allowed(self) -> set[int]:
        position, state = len(self.tokens), 7
        for token in self.tokens:
            state = next_hash(state, token)
        if position == self.breaks_at:
            return set()
        if position >= self.length:
            return {EOS}
        following = set(range(state % 7, EOS, 7))
        return following | {EOS} if state % 11 == 0 else following

    def fill(self, row: np.ndarray) -> None:
        allowed = sorted(self.allowed())
        if not allowed:
            raise GrammarError("made to break")
        bits = np.zeros(32 * len(row), np.uint8)
        bits[allowed] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, tokens: Sequence[int]) -> None:
        for i, token in enumerate(tokens):
            if token not in self.allowed():
                del self.tokens[len(self.tokens) - i :]
                raise GrammarError(f"{token} is not allowed")
            self.tokens.append(token)

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[len(self.tokens) - num_tokens :]

    def forced_bytes(self) -> bytes:
        return b""

    def is_accepting(self) -> bool:
        return EOS in self.allowed() and not self.is_terminated()

    def is_terminated(self) -> bool:
        return self.tokens[-1:] == [EOS]

    def is_free(self) -> bool:
        return False

    def mask_after(self, token: int) -> np.ndarray | None:
        after = self.fork()
        try:
            after.accept([token])
        except GrammarError:
            return None
        allowed = after.allowed()
        if after.is_terminated() or not allowed - {EOS}:
            return None
        mask = np.empty((VOCAB + 31) // 32, np.uint32)
        after.fill(mask)
        return mask

    def seen_after(self) -> SeenMasks:
        """Of every other token that may follow."""
        tokens = sorted(self.allowed())[::2]
        return {token: partial(self.mask_after, token) for token in tokens}

    def fork(self) -> "FakeGrammar":
        copy = FakeGrammar(self.length, self.breaks_at)
        copy.tokens = list(self.tokens)
        return copy

    def for_drafts(self) -> "FakeGrammar":
        return self.fork()
