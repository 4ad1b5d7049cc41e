"""Which tokens a req may sample next: `allowed_token_ids`, bad words, blocked stop ids, and how
they combine with a grammar's mask. Called by `Req` for each step that it samples in.

Masks are uint32 [ceil(vocab/32)], lowest bit first, as a grammar's.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from scheduler_proc.grammar.base import Grammar
from srt.wire.messages import unpack_ids
from srt.wire.ring_messages import TokenizedReq

_NO_IDS = np.empty(0, np.int32)


class NoTokenLeft(ValueError):
    """What a request asks for leaves no token that could come next. The message is for the user."""


class Limits(NamedTuple):
    """The next token is one of `mask`, or none of `suppressed` (int32 [n]); never both are set.
    `is_steered`: the mask lacks tokens after which the output could not end within its limit."""

    mask: np.ndarray | None = None
    suppressed: np.ndarray | None = None
    is_steered: bool = False


NO_LIMITS = Limits()


class TokenRules:
    """What one request rules out itself: bad words, all but its allowed_token_ids, and to stop
    before min_new_tokens."""

    def __init__(self, wire: TokenizedReq, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bad = BadSequences(wire.bad_ids) if wire.bad_ids else None
        allowed = wire.sampling.allowed_token_ids
        self._allowed = None if allowed is None else _mask_of(allowed, vocab_size)
        self._healed_ids: list[int] = unpack_ids(wire.healed_ids).tolist()
        self._stop_ids = np.array(sorted({*wire.eos_ids, *wire.sampling.stop_token_ids}), np.int32)
        self._min_new_tokens = wire.sampling.min_new_tokens
        self.forbid_something = self._bad is not None or self._allowed is not None
        self.is_any = self.forbid_something or self._min_new_tokens > 0
        self.need_output = self._bad is not None and self._bad.reach > 0

    def limits(
        self,
        output: np.ndarray,
        num_outputs: int,
        grammar: Grammar | None,
        left: int | None = None,
    ) -> Limits:
        """What may follow `num_outputs` tokens, the known ones being `output` (int32 [n]), within a
        grammar: no stop id until min_new_tokens. If the output is to be whole after `left` more
        tokens, only what still leads there.

        A stop is let through where a grammar lets nothing else follow. Raises GrammarError if the
        grammar cannot go on, NoTokenLeft if nothing is left.
        """
        bad = self._bad_ids(output)
        stops = self._stop_ids if num_outputs < self._min_new_tokens else _NO_IDS
        if grammar is None and self._allowed is None:
            return self._suppressed(stops, bad)
        mask, is_steered = self._mask(output, grammar, bad, left)
        if len(stops) > 0:
            going_on = _without(mask, stops)
            if going_on.any():
                return Limits(mask=going_on, is_steered=is_steered)
            if grammar is None:
                raise NoTokenLeft("min_new_tokens blocks all that allowed_token_ids leave")
        return Limits(mask=mask, is_steered=is_steered)

    def kind(self, grammar: Grammar | None) -> Limits:
        """Limits of the form that `limits` will give: with a mask (empty here), or without."""
        if grammar is None and self._allowed is None:
            return NO_LIMITS
        return Limits(mask=np.zeros((self._vocab_size + 31) // 32, np.uint32))

    def _suppressed(self, stops: np.ndarray, bad: np.ndarray) -> Limits:
        if len(stops) == 0 and len(bad) == 0:
            return NO_LIMITS
        suppressed = stops if len(bad) == 0 else np.union1d(stops, bad)
        if len(suppressed) >= self._vocab_size:
            raise NoTokenLeft("bad_words and min_new_tokens leave no token at all")
        return Limits(suppressed=suppressed)

    def _mask(
        self, output: np.ndarray, grammar: Grammar | None, bad: np.ndarray, length: int | None
    ) -> tuple[np.ndarray, bool]:
        """What the grammar, within `length` more tokens, and allowed_token_ids both allow and `bad`
        does not, and whether the length rules something out. What the prompt had is never ruled out
        by others where token healing writes it again."""
        if grammar is None:
            assert self._allowed is not None
            return self._left(self._allowed, output, bad), False
        mask = np.empty((self._vocab_size + 31) // 32, np.uint32)
        grammar.fill(mask)
        if length is not None and grammar.near(length):
            with suppress(NoTokenLeft):  # what else is ruled out keeps the end out of reach
                if grammar.narrow(narrowed := mask.copy(), length):
                    return self._left(narrowed, output, bad), True
        return self._left(mask, output, bad), False

    def _left(self, mask: np.ndarray, output: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """What is left of a mask. Raises NoTokenLeft if that is nothing."""
        left = mask if self._allowed is None else mask & self._allowed
        left = _without(left, bad) if len(bad) > 0 else left
        if self.forbid_something and len(output) < len(self._healed_ids):
            left = left | mask & _mask_of(self._healed_next(output.tolist()), self._vocab_size)
        if not left.any():
            raise NoTokenLeft(
                "allowed_token_ids, bad_words and the constraint together leave no token at all"
            )
        return left

    def _bad_ids(self, output: np.ndarray) -> np.ndarray:
        if self._bad is None:
            return _NO_IDS
        tail = output[max(0, len(output) - self._bad.reach) :]
        return self._bad.next_ids(tail.tolist())

    def _healed_next(self, output: list[int]) -> list[int]:
        """The prompt's token at this place, while the output is nothing but the prompt's tokens."""
        count = len(output)
        return self._healed_ids[count : count + 1] if output == self._healed_ids[:count] else []


class BadSequences:
    """Token sequences that must not come; each is found by the id before its last one."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        """None of `sequences` may be empty."""
        alone = {ids[0] for ids in sequences if len(ids) == 1}
        self._alone = np.array(sorted(alone), np.int32)
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        for *before, last in sequences:
            if before:
                self._after.setdefault(before[-1], []).append((before, last))
        self.reach = max(map(len, sequences)) - 1  # last ids of the output that matter

    def next_ids(self, tail: list[int]) -> np.ndarray:
        """The ids that would complete a sequence after `tail`, the last `reach` of the output:
        int32 [n], distinct."""
        following = self._after.get(tail[-1], ()) if tail else ()
        last_ids = [last for before, last in following if tail[-len(before) :] == before]
        return np.union1d(self._alone, np.array(last_ids, np.int32)) if last_ids else self._alone


def _mask_of(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """The mask that allows `ids` and nothing else."""
    bits = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
    bits[np.fromiter(ids, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _without(mask: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """A copy of `mask` that does not allow `ids`, int32 [n]."""
    result = mask.copy()
    words, bits = np.divmod(ids, 32)
    np.bitwise_and.at(result, words, ~(np.uint32(1) << bits.astype(np.uint32)))
    return result
