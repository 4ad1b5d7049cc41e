"""A fake model: the logits of the next token are a hash of all tokens before it.

It remembers what was written to each slot, and so notices a plan that reads a slot that was never
computed, was overwritten, or belongs to another prefix: the tree may only hold computed tokens.
Whatever the batching, a req's output must equal `reference_output`.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from scheduler_proc.batch import DetailLogprobs, ForwardBatch, StepResult
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.media.spans import MediaFacts
from srt.wire.filled_params import FilledParams
from srt.wire.media import MediaItem
from tests.scheduler_proc.media.pictures import ITEMS, PLACEHOLDER, item_of, numbers_of, plain

VOCAB = 1000
TOP_LOGIT, LOGIT_STEP = 10.0, 0.02  # the logit of the hash's token, and the step from id to id

# By token: what its logit is divided or multiplied by, and what is then added.
Changes = Mapping[int, tuple[float, float]]


def next_hash(prefix_hash: int, token: int) -> int:
    return (prefix_hash * 6364136223846793005 + token * 1442695040888963407 + 12345) % (2**61 - 1)


def hash_of(tokens: Sequence[int]) -> int:
    prefix_hash = 0
    for token in tokens:
        prefix_hash = next_hash(prefix_hash, token)
    return prefix_hash


def next_token(
    prefix_hash: int,
    suppressed: Container[int] = frozenset(),
    allowed: Container[int] | None = None,
    changes: Changes | None = None,
) -> int:
    """The best token: the hash itself or, if it is ruled out, the next id that is not."""
    order: Iterable[int] = count(prefix_hash % VOCAB)
    if changes:
        order = np.argsort(-changed_logits(prefix_hash, changes), kind="stable").tolist()
    for token in order:
        token %= VOCAB
        if token not in suppressed and (allowed is None or token in allowed):
            return token
    raise AssertionError("a row may sample nothing")


def changed_logits(prefix_hash: int, changes: Changes) -> np.ndarray:
    distance = (np.arange(VOCAB) - prefix_hash % VOCAB) % VOCAB
    logits = (TOP_LOGIT - LOGIT_STEP * distance).astype(np.float32)
    for token, (repeat, add) in changes.items():
        factor, value = np.float32(repeat), logits[token]
        logits[token] = (value / factor if value > 0 else value * factor) + np.float32(add)
    return logits


def changes_of(sampling: FilledParams, prompt: list[int], output: list[int]) -> Changes:
    """What the penalties and the bias come to, counted from scratch."""
    if not sampling.has_penalties and not sampling.logit_bias:
        return {}
    counts, known = Counter(output), {*prompt, *output}
    changes = {}
    for token in known | set(sampling.logit_bias):
        add = sampling.logit_bias.get(token, 0.0) - counts[token] * sampling.frequency_penalty
        add -= sampling.presence_penalty if counts[token] else 0.0
        changes[token] = (sampling.repetition_penalty if token in known else 1.0, add)
    return changes


def bad_next(bad_ids: Sequence[Sequence[int]], output: list[int]) -> set[int]:
    """The tokens that would complete one of the sequences."""
    return {
        last
        for *before, last in bad_ids
        if len(before) <= len(output) and output[len(output) - len(before) :] == before
    }


class Detail(NamedTuple):
    """Log-probabilities at one position."""

    top_ids: list[int]
    top_logprobs: list[float]
    id_logprobs: list[float]


def detail_at(prefix_hash: int, num_top: int, ids: Sequence[int]) -> Detail:
    """What the fake executor gives at the position after a prefix."""
    best = -float(prefix_hash % 89)
    return Detail(
        [(prefix_hash + i) % VOCAB for i in range(num_top)],
        [best - i for i in range(num_top)],
        [-float((prefix_hash + token) % 83) for token in ids],
    )


def reference_output(
    prompt: list[int],
    max_new: int,
    stop: frozenset[int] = frozenset(),
    min_new: int = 0,
    grammar: Grammar | None = None,
    sampling: FilledParams = FilledParams(),  # noqa: B008
    bad_ids: Sequence[Sequence[int]] = (),
) -> list[int]:
    """What a req must produce, up to where no token is allowed. Of `sampling`, the penalties, the
    bias and allowed_token_ids count. `grammar` is used up."""
    prefix_hash = hash_of(prompt)
    output: list[int] = []
    while len(output) < max_new:
        allowed = None
        if grammar is not None:
            mask = np.empty((VOCAB + 31) // 32, np.uint32)
            grammar.fill(mask)
            allowed = ids_of(mask)
        if sampling.allowed_token_ids is not None:
            listed = set(sampling.allowed_token_ids)
            allowed = listed if allowed is None else allowed & listed
        blocked = bad_next(bad_ids, output)
        if len(output) < min_new and (grammar is None or (allowed or set()) - blocked - stop):
            blocked |= stop
        if allowed is not None and not allowed - blocked:
            break
        changes = changes_of(sampling, plain(prompt), output)
        token = next_token(prefix_hash, blocked, allowed, changes)
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


class PoisonedStep(RuntimeError):
    """Raised for a step that has a poisoned row."""


class FakeExecutor:
    """Runs steps. One that reads a token of `poison` raises after it has written some of its KV."""

    name = "fake"
    vocab_size = VOCAB
    dtype: object = None
    weight_bytes = pool_bytes = 0

    def __init__(self, max_total_tokens: int, context_len: int) -> None:
        self.max_total_tokens = max_total_tokens
        self.context_len = context_len
        self.hash_at: dict[int, int] = {}  # slot -> hash of the prefix that ends there
        self.parent_at: dict[int, int] = {}
        self.steps = 0
        self.poison: frozenset[int] = frozenset()
        self.media_facts: MediaFacts | None = None
        self.encoded: dict[bytes, int] = {}  # by digest, how many parts
        self.parts_encoded = 0

    def forget(self) -> None:
        """All that was computed is lost."""
        self.hash_at.clear()
        self.parent_at.clear()
        self.encoded.clear()

    def num_parts(self, item: MediaItem) -> int:
        return item.shape[0]

    def encode(self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float = 0.0) -> bool:
        assert pixels.shape == item.shape and (pixels == ITEMS[item.digest]).all()
        done = self.encoded.get(item.digest, 0) if part > 0 else 0
        assert part == done, "parts come in their order"
        self.encoded[item.digest] = done + 1
        self.parts_encoded += 1
        return True

    def drop_media(self, digest: bytes) -> None:
        self.encoded.pop(digest, None)

    def run(self, batch: ForwardBatch) -> StepResult:
        self.steps += 1
        hashes = np.empty(batch.num_tokens, object)
        shown = self._shown(batch)
        # All K and V are written before any attention reads: no two tokens may share a slot.
        assert len(set(batch.out_slots.tolist())) == batch.num_tokens, "a slot is written twice"
        for row in range(batch.num_rows):
            self._run_row(batch, row, hashes, shown)
            if self.poison.intersection(batch.input_ids[slice(*batch.qo_indptr[row : row + 2])]):
                raise PoisonedStep
        suppressed = {s.row: frozenset(s.ids.tolist()) for s in batch.suppressed}
        next_ids = [
            next_token(
                hashes[token],
                suppressed.get(i, frozenset()),
                _allowed(batch, i),
                _changes(batch, i),
            )
            for i, token in enumerate(batch.sample_tokens.tolist())
        ]
        logprobs = np.where(batch.samples.want_logprob, -1.0, np.nan).astype(np.float32)
        prompt_logprobs = [-float(hashes[t] % 97) for t in batch.logprob_tokens.tolist()]
        return StepResult(
            np.array(next_ids, np.int32),
            logprobs,
            np.array(prompt_logprobs, np.float32),
            _details(batch, hashes),
        )

    def _shown(self, batch: ForwardBatch) -> np.ndarray:
        """What each token is: its id, or the number of a picture's token."""
        shown = batch.input_ids.astype(np.int64)
        if batch.embeds is None:
            assert batch.visible_until is None
            return shown
        assert self.media_facts is not None
        for at, length, offset, digest in zip(*batch.embeds, strict=True):
            picture = ITEMS[digest]
            numbers = numbers_of(picture)
            assert self.encoded[digest] == item_of(picture).shape[0], "not encoded"
            assert (shown[at : at + length] == PLACEHOLDER).all()
            shown[at : at + length] = numbers[offset : offset + length]
            if self.media_facts.sees_both_ways:
                assert batch.visible_until is not None and length == len(numbers)
                until = batch.positions[at] + length
                assert (batch.visible_until[at : at + length] == until).all()
        return shown

    def _run_row(
        self, batch: ForwardBatch, row: int, hashes: np.ndarray, shown: np.ndarray
    ) -> None:
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
            prefix_hash = next_hash(prefix_hash, int(shown[token]))
            self.hash_at[slot] = hashes[token] = prefix_hash


def _allowed(batch: ForwardBatch, sample: int) -> set[int] | None:
    if batch.masks is None or batch.masks.rows[sample] < 0:
        return None
    allowed = ids_of(batch.masks.words[batch.masks.rows[sample]])
    assert allowed, "a row may sample nothing"
    return allowed


def _changes(batch: ForwardBatch, sample: int) -> Changes | None:
    if batch.adjust is None:
        return None
    indptr, ids, repeat, add = batch.adjust
    part = slice(*indptr[sample : sample + 2])
    tokens = ids[part].tolist()
    assert len(set(tokens)) == len(tokens), "a token's logit is changed twice"
    return dict(zip(tokens, zip(repeat[part], add[part], strict=True), strict=True))


def _details(batch: ForwardBatch, hashes: np.ndarray) -> DetailLogprobs | None:
    if batch.details is None:
        return None
    rows, top, indptr, ids = batch.details
    assert (np.diff(rows) > 0).all()
    tokens = np.concatenate((batch.sample_tokens, batch.logprob_tokens))[rows]
    details = [
        detail_at(hashes[token], int(top[i]), ids[indptr[i] : indptr[i + 1]].tolist())
        for i, token in enumerate(tokens.tolist())
    ]
    return DetailLogprobs(
        np.array([i for detail in details for i in detail.top_ids], np.int32),
        np.array([v for detail in details for v in detail.top_logprobs], np.float32),
        np.array([v for detail in details for v in detail.id_logprobs], np.float32),
    )
