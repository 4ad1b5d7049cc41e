"""A part of a sealed step: some of its rows, as a step that can be run by itself.

Rows are independent: each reads only KV that earlier steps have written, and its own. Used where a
step could not be computed, to find out which of its rows is the reason.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduler_proc.batch import NO_DETAILS, ForwardBatch
from scheduler_proc.core.steps.media_layout import media_of
from scheduler_proc.core.steps.step import NO_LATE_TOKENS, Step
from scheduler_proc.ragged import entries_of, indptr_of, taken_indptr


def part_of(step: Step, numbers: Sequence[int]) -> Step:
    """The rows of these numbers (ascending, one at least), whose late tokens are known by now."""
    batch, at = step.batch, np.array(numbers)
    rows = [step.rows[number] for number in numbers]
    spans = [range(row.sample, row.sample + row.num_samples) for row in rows]
    samples = np.array([number for span in spans for number in span], np.int64)
    logprobs = entries_of(indptr_of([row.num_logprobs for row in step.rows]), at)
    tokens = entries_of(batch.qo_indptr, at)
    asked = np.concatenate((samples, batch.num_samples + logprobs))
    all_details = batch.details or NO_DETAILS
    numbers_of_details = np.flatnonzero(np.isin(all_details.rows, asked))
    details = all_details.take(numbers_of_details)
    part = ForwardBatch(
        input_ids=batch.input_ids[tokens],
        positions=batch.positions[tokens],
        out_slots=batch.out_slots[tokens],
        qo_indptr=taken_indptr(batch.qo_indptr, at),
        kv_indptr=taken_indptr(batch.kv_indptr, at),
        kv_indices=batch.kv_indices[entries_of(batch.kv_indptr, at)],
        sample_tokens=_numbers_in(tokens, batch.sample_tokens[samples]),
        samples=batch.samples.take(samples),
        suppressed=[
            entry._replace(row=_number_in(samples, entry.row))
            for entry in batch.suppressed
            if entry.row in samples
        ],
        masks=batch.masks and batch.masks.take(samples),
        adjust=batch.adjust and batch.adjust.take(samples),
        details=batch.details and details._replace(rows=_numbers_in(asked, details.rows)),
        logprob_tokens=_numbers_in(tokens, batch.logprob_tokens[logprobs]),
        logprob_targets=batch.logprob_targets[logprobs],
        **media_of(batch, tokens)._asdict(),
    )
    starts = indptr_of([row.num_logprobs for row in rows]).tolist()
    renumbered = [
        replace(
            row,
            logprobs_at=at,
            sample=_number_in(samples, row.sample),
            sample_detail=_number_in(numbers_of_details, row.sample_detail),
            known_detail=_number_in(numbers_of_details, row.known_detail),
        )
        for row, at in zip(rows, starts, strict=False)
    ]
    return Step(part, renumbered, NO_LATE_TOKENS)


def _numbers_in(kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The place of each value among those kept (ascending), int32."""
    return np.searchsorted(kept, values).astype(np.int32)


def _number_in(kept: np.ndarray, value: int) -> int:
    """The place of one value; -1 stays -1."""
    return -1 if value < 0 else int(np.searchsorted(kept, value))
