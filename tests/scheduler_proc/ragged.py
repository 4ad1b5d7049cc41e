"""Builds ForwardBatches by hand, for tests of executors, attention and sampling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from scheduler_proc.batch import (
    SAMPLE_DTYPES,
    Adjust,
    Details,
    ForwardBatch,
    Samples,
    StepResult,
)
from scheduler_proc.executor.base import Executor
from srt.wire.filled_params import FilledParams

Ids = Sequence[int] | np.ndarray


class Row(NamedTuple):
    """One request's part of a step: its new ids, which follow the computed ones.

    `slots` are those of the whole sequence, computed and new, in order. `targets` asks for
    log-probabilities: target i is scored by the i-th new token.
    """

    ids: Ids
    slots: Ids
    targets: Ids = ()
    samples: bool = True


def int32(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def indptr(lengths: Sequence[int]) -> np.ndarray:
    return int32(np.concatenate([[0], np.cumsum(lengths)]))


_NEUTRAL = {"temperature": 0.0, "uniform": 0.5, "want_logprob": False}


def samples_of(count: int, **values: Any) -> Samples:
    """`count` greedy samples with every parameter turned off. Keywords replace columns; a scalar
    counts for all samples."""
    neutral = structs.asdict(FilledParams()) | _NEUTRAL
    columns = {
        name: np.broadcast_to(np.asarray(values.pop(name, neutral[name]), dtype), count).copy()
        for name, dtype in SAMPLE_DTYPES.items()
    }
    return Samples(**columns, **values)


def sampling_batch(count: int, **values: Any) -> ForwardBatch:
    """A batch for samplers alone: `count` samples as in `samples_of`, without tokens."""
    empty = int32([])
    rows, samples = int32(np.arange(count)), samples_of(count, **values)
    return ForwardBatch(empty, empty, empty, int32([0]), int32([0]), empty, rows, samples)


def adjust_of(changes: Sequence[dict[int, tuple[float, float]]]) -> Adjust:
    """Changes for one sample per entry of `changes`, which is id -> (repeat, add)."""
    pairs = np.array([pair for row in changes for pair in row.values()], np.float32).reshape(-1, 2)
    ids = int32([token for row in changes for token in row])
    return Adjust(indptr([len(row) for row in changes]), ids, *pairs.T.copy())


def details_of(rows: Sequence[int], top: Sequence[int], ids: Sequence[Any]) -> Details:
    """Details for `rows`: how many of the likeliest tokens each asks for, and which ids."""
    flat = int32(np.concatenate([int32([]), *ids]))
    return Details(int32(rows), int32(top), indptr([len(row) for row in ids]), flat)


def make_batch(rows: Sequence[Row], **sampling: Any) -> ForwardBatch:
    """A step over `rows`; keywords as in `samples_of`."""
    qo = indptr([len(row.ids) for row in rows])
    kv = indptr([len(row.slots) for row in rows])
    starts = [len(row.slots) - len(row.ids) for row in rows]
    positions = [np.arange(s, len(r.slots)) for s, r in zip(starts, rows, strict=True)]
    out_slots = [r.slots[s:] for s, r in zip(starts, rows, strict=True)]
    sample_tokens = [qo[i + 1] - 1 for i, row in enumerate(rows) if row.samples]
    scored = [np.arange(qo[i], qo[i] + len(row.targets)) for i, row in enumerate(rows)]
    return ForwardBatch(
        input_ids=int32(np.concatenate([row.ids for row in rows])),
        positions=int32(np.concatenate(positions)),
        out_slots=int32(np.concatenate(out_slots)),
        qo_indptr=qo,
        kv_indptr=kv,
        kv_indices=int32(np.concatenate([row.slots for row in rows])),
        sample_tokens=int32(sample_tokens),
        samples=samples_of(len(sample_tokens), **sampling),
        logprob_tokens=int32(np.concatenate(scored)),
        logprob_targets=int32(np.concatenate([row.targets for row in rows])),
    )


def chunked_logprobs(
    executor: Executor, ids: Ids, slots: Ids, chunk: int, start: int = 0
) -> tuple[np.ndarray, StepResult]:
    """Extend `ids[start:]` in chunks; log p of every id after the first one computed.

    Returns float32 [len(ids) - start - 1] (entry i belongs to ids[start + 1 + i]) and the last
    step's result. The tokens before `start` must already be computed in their slots.
    """
    parts = []
    for begin in range(start, len(ids), chunk):
        end = min(begin + chunk, len(ids))
        row = Row(ids[begin:end], slots[:end], targets=ids[begin + 1 : end + 1])
        result = executor.run(make_batch([row]))
        parts.append(result.prompt_logprobs)
    return np.concatenate(parts), result
