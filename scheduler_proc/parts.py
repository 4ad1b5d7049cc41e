"""A part of a sealed step: some of its rows, as a step that can be run by itself.

Rows are independent: each reads only KV that earlier steps have written, and its own. Used where a
step could not be computed, to find out which of its rows is the reason.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_proc.batch import ForwardBatch
from scheduler_proc.layout import indptr_of
from scheduler_proc.step import NO_LATE_TOKENS, Row, Step


def part_of(step: Step, numbers: Sequence[int]) -> Step:
    """The rows of these numbers (ascending, one at least), whose late tokens are known by now."""
    batch, at = step.batch, np.array(numbers)
    rows = [step.rows[number] for number in numbers]
    samples = np.array([row.sample for row in rows if row.sample >= 0], np.int64)
    scored = indptr_of([row.num_logprobs for row in step.rows])
    logprobs = entries_of(scored, at)
    tokens = entries_of(batch.qo_indptr, at)
    asked = np.concatenate((samples, len(batch.sample_tokens) + logprobs))
    details, columns = _details(batch, asked)
    part = ForwardBatch(
        input_ids=batch.input_ids[tokens],
        positions=batch.positions[tokens],
        out_slots=batch.out_slots[tokens],
        qo_indptr=indptr_of(np.diff(batch.qo_indptr)[at]),
        kv_indptr=indptr_of(np.diff(batch.kv_indptr)[at]),
        kv_indices=batch.kv_indices[entries_of(batch.kv_indptr, at)],
        logprob_tokens=_numbers_in(tokens, batch.logprob_tokens[logprobs]),
        logprob_targets=batch.logprob_targets[logprobs],
        sample_tokens=_numbers_in(tokens, batch.sample_tokens[samples]),
        **_samples(batch, samples),
        **columns,
    )
    starts = indptr_of([row.num_logprobs for row in rows]).tolist()
    renumbered = [
        _renumbered(row, samples, details, at) for row, at in zip(rows, starts, strict=False)
    ]
    return Step(part, renumbered, NO_LATE_TOKENS)


def _renumbered(row: Row, samples: np.ndarray, details: np.ndarray, logprobs_at: int) -> Row:
    """The row with its numbers among these samples and detail rows of the whole step."""
    return replace(
        row,
        logprobs_at=logprobs_at,
        sample=_number_in(samples, row.sample),
        sample_detail=_number_in(details, row.sample_detail),
        known_detail=_number_in(details, row.known_detail),
    )


def _samples(batch: ForwardBatch, samples: np.ndarray) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "uniform", "want_logprob")
    fields: dict[str, Any] = {name: getattr(batch, name)[samples] for name in names}
    fields["suppressed"] = [
        entry._replace(row=_number_in(samples, entry.row))
        for entry in batch.suppressed
        if entry.row in samples
    ]
    if batch.masks is not None and batch.mask_rows is not None:
        fields |= {"masks": batch.masks, "mask_rows": batch.mask_rows[samples]}
    if batch.adjust_indptr is not None:
        entries = entries_of(batch.adjust_indptr, samples)
        fields["adjust_indptr"] = indptr_of(np.diff(batch.adjust_indptr)[samples])
        for name in ("adjust_ids", "adjust_repeat", "adjust_add"):
            fields[name] = getattr(batch, name)[entries]
    return fields


def _details(batch: ForwardBatch, asked: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """Which detail rows are about `asked` (ascending), and the `detail_` arrays of these."""
    if batch.detail_rows is None or batch.detail_top is None:
        return np.empty(0, np.int64), {}
    assert batch.detail_indptr is not None and batch.detail_ids is not None
    numbers = np.flatnonzero(np.isin(batch.detail_rows, asked))
    return numbers, {
        "detail_rows": _numbers_in(asked, batch.detail_rows[numbers]),
        "detail_top": batch.detail_top[numbers],
        "detail_indptr": indptr_of(np.diff(batch.detail_indptr)[numbers]),
        "detail_ids": batch.detail_ids[entries_of(batch.detail_indptr, numbers)],
    }


def entries_of(indptr: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The indices [indptr[i], indptr[i+1]) of each of `numbers`, one list after the other."""
    ranges = [np.arange(indptr[i], indptr[i + 1]) for i in numbers.tolist()]
    return np.concatenate([np.empty(0, np.int64), *ranges]).astype(np.int64)


def _numbers_in(kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The place of each value among those kept (ascending), int32."""
    return np.searchsorted(kept, values).astype(np.int32)


def _number_in(kept: np.ndarray, value: int) -> int:
    """The same for one; -1 stays."""
    return -1 if value < 0 else int(np.searchsorted(kept, value))
