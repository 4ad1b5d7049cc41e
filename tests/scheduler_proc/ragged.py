"""Builds ForwardBatches by hand, for tests of executors, attention and sampling."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.executor.base import Executor

Ids = Sequence[int] | np.ndarray


class Row(NamedTuple):
    """One request's share of a step: its new ids, after `slots` minus as many computed ones.

    `slots` hold the whole sequence, in order. `targets` asks for log-probabilities: target i is
    scored by the i-th new token.
    """

    ids: Ids
    slots: Ids
    targets: Ids = ()
    samples: bool = True


def int32(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def indptr(lengths: Sequence[int]) -> np.ndarray:
    return int32(np.concatenate([[0], np.cumsum(lengths)]))


def sampling_fields(count: int, **values: Any) -> dict[str, Any]:
    """Greedy defaults for `count` sample rows; keywords override, scalars are spread."""
    fields = {
        "temperature": (np.float32, 0.0),
        "top_p": (np.float32, 1.0),
        "top_k": (np.int32, -1),
        "min_p": (np.float32, 0.0),
        "uniform": (np.float64, 0.5),
        "want_logprob": (np.bool_, False),
    }
    rest = {name: value for name, value in values.items() if name not in fields}
    spread: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(values.get(name, default), dtype), count).copy()
        for name, (dtype, default) in fields.items()
    }
    return {**spread, **rest}


def make_batch(rows: Sequence[Row], **sampling: Any) -> ForwardBatch:
    """A step over `rows`; keywords as in `sampling_fields`."""
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
        logprob_tokens=int32(np.concatenate(scored)),
        logprob_targets=int32(np.concatenate([row.targets for row in rows])),
        **sampling_fields(len(sample_tokens), **sampling),
    )


def chunked_logprobs(
    executor: Executor, ids: Ids, slots: Ids, chunk: int, start: int = 0
) -> tuple[np.ndarray, StepResult]:
    """Extend `ids[start:]` in chunks; log p of every id after the first one computed.

    Returns float32 [len(ids) - start - 1] (entry i belongs to ids[start + 1 + i]) and the last
    step's result. Tokens before `start` must lie computed in their slots.
    """
    parts = []
    for begin in range(start, len(ids), chunk):
        end = min(begin + chunk, len(ids))
        row = Row(ids[begin:end], slots[:end], targets=ids[begin + 1 : end + 1])
        result = executor.run(make_batch([row]))
        parts.append(result.prompt_logprobs)
    return np.concatenate(parts), result
