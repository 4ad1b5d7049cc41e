"""A model without a model: the next token is a hash of all tokens before it.

It remembers what was written to each slot, so it catches a plan that reads a slot that was never
computed, was overwritten, or belongs to another prefix: the check behind "only computed tokens are
in the tree". Whatever the batching, a req's output must equal `reference_output`.
"""

from collections.abc import Container

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.grammar.base import Grammar

VOCAB = 1000


def next_hash(prefix_hash: int, token: int) -> int:
    return (prefix_hash * 6364136223846793005 + token * 1442695040888963407 + 12345) % (2**61 - 1)


def next_token(
    prefix_hash: int,
    suppressed: Container[int] = frozenset(),
    allowed: Container[int] | None = None,
) -> int:
    token = prefix_hash % VOCAB
    while token in suppressed or (allowed is not None and token not in allowed):
        token = (token + 1) % VOCAB
    return token


def reference_output(
    prompt: list[int],
    max_new: int,
    stop: frozenset[int] = frozenset(),
    min_new: int = 0,
    grammar: Grammar | None = None,
) -> list[int]:
    """What a req must produce; `grammar` is used up."""
    prefix_hash = 0
    for token in prompt:
        prefix_hash = next_hash(prefix_hash, token)
    output: list[int] = []
    while len(output) < max_new:
        blocked = stop if len(output) < min_new else frozenset()
        allowed = None
        if grammar is not None:
            mask = np.empty((VOCAB + 31) // 32, np.uint32)
            grammar.fill(mask)
            allowed = ids_of(mask)
            blocked = blocked if allowed - blocked else frozenset()
        token = next_token(prefix_hash, blocked, allowed)
        output.append(token)
        if grammar is not None:
            grammar.accept([token])
        if token in stop:
            break
        prefix_hash = next_hash(prefix_hash, token)
    return output


def ids_of(mask: np.ndarray) -> set[int]:
    """The token ids that a mask (uint32 [words]) allows."""
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


class FakeExecutor:
    name = "fake"
    vocab_size = VOCAB

    def __init__(self, max_total_tokens: int, context_len: int) -> None:
        self.max_total_tokens = max_total_tokens
        self.context_len = context_len
        self.hash_at: dict[int, int] = {}  # slot -> hash of the prefix that ends there
        self.parent_at: dict[int, int] = {}
        self.steps = 0

    def run(self, batch: ForwardBatch) -> StepResult:
        self.steps += 1
        hashes = np.empty(batch.num_tokens, object)
        # All K and V are written before any attention reads: no two tokens may share a slot.
        assert len(set(batch.out_slots.tolist())) == batch.num_tokens, "a slot is written twice"
        for row in range(batch.num_rows):
            self._run_row(batch, row, hashes)
        suppressed = {s.row: frozenset(s.ids.tolist()) for s in batch.suppressed}
        next_ids = [
            next_token(hashes[token], suppressed.get(i, frozenset()), _allowed(batch, i))
            for i, token in enumerate(batch.sample_tokens.tolist())
        ]
        logprobs = np.where(batch.want_logprob, -1.0, np.nan).astype(np.float32)
        prompt_logprobs = [-float(hashes[t] % 97) for t in batch.logprob_tokens.tolist()]
        return StepResult(
            np.array(next_ids, np.int32), logprobs, np.array(prompt_logprobs, np.float32)
        )

    def _run_row(self, batch: ForwardBatch, row: int, hashes: np.ndarray) -> None:
        first, stop = batch.qo_indptr[row : row + 2].tolist()
        slots = batch.kv_indices[batch.kv_indptr[row] : batch.kv_indptr[row + 1]].tolist()
        start = len(slots) - (stop - first)
        prefix_hash = 0
        for slot in slots[:start]:
            assert self.parent_at[slot] == prefix_hash, f"slot {slot} holds another prefix"
            prefix_hash = self.hash_at[slot]
        for i, token in enumerate(range(first, stop)):
            slot = slots[start + i]
            assert batch.out_slots[token] == slot and batch.positions[token] == start + i
            self.parent_at[slot] = prefix_hash
            prefix_hash = next_hash(prefix_hash, int(batch.input_ids[token]))
            self.hash_at[slot] = hashes[token] = prefix_hash


def _allowed(batch: ForwardBatch, sample: int) -> set[int] | None:
    if batch.masks is None or batch.mask_rows is None or batch.mask_rows[sample] < 0:
        return None
    allowed = ids_of(batch.masks[batch.mask_rows[sample]])
    assert allowed, "a row may sample nothing"
    return allowed
