"""Two laid out steps as one: rows that were laid out ahead, and those that had to wait for tokens.

The rows of the first come first, so their numbers stay.
"""

from typing import Any

import numpy as np

from scheduler_proc.batch import ForwardBatch
from scheduler_proc.layout import indptr_of
from scheduler_proc.parts import entries_of
from scheduler_proc.penalties import LateChange
from scheduler_proc.step import LateTokens, Row, Step


def joined(first: Step, second: Step) -> Step:
    """Both have rows, whose reqs are not the same. The second's rows are renumbered in place."""
    a, b = first.batch, second.batch
    details, columns = _details(a, b)
    batch = ForwardBatch(
        input_ids=_both(a.input_ids, b.input_ids),
        positions=_both(a.positions, b.positions),
        out_slots=_both(a.out_slots, b.out_slots),
        qo_indptr=_indptrs(a.qo_indptr, b.qo_indptr),
        kv_indptr=_indptrs(a.kv_indptr, b.kv_indptr),
        kv_indices=_appended(first.kv_buffer, a.kv_indices, b.kv_indices),
        logprob_tokens=_both(a.logprob_tokens, b.logprob_tokens + np.int32(a.num_tokens)),
        logprob_targets=_both(a.logprob_targets, b.logprob_targets),
        **_samples(a, b),
        **columns,
    )
    if len(details) > 0:
        _renumber(first.rows, 0, details, 0)
    for row in second.rows:
        row.logprobs_at += len(a.logprob_tokens)
    num_details = 0 if a.detail_rows is None else len(a.detail_rows)
    _renumber(second.rows, len(a.sample_tokens), details, num_details)
    late = LateTokens(
        _both(first.late_tokens.at, second.late_tokens.at + a.num_tokens),
        _both(first.late_tokens.samples, second.late_tokens.samples),
        first.late_tokens.changes + _behind(a, second.late_tokens.changes),
    )
    return Step(batch, first.rows + second.rows, late)


def _renumber(rows: list[Row], samples: int, details: np.ndarray, before: int) -> None:
    """Of rows with so many samples and details before them; `details` says which number each
    detail row has now."""
    for row in rows:
        if row.sample >= 0:
            row.sample += samples
        if row.sample_detail >= 0:
            row.sample_detail = int(details[before + row.sample_detail])
        if row.known_detail >= 0:
            row.known_detail = int(details[before + row.known_detail])


def _samples(a: ForwardBatch, b: ForwardBatch) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "uniform", "want_logprob")
    fields: dict[str, Any] = {name: _both(getattr(a, name), getattr(b, name)) for name in names}
    count = len(a.sample_tokens)
    fields["sample_tokens"] = _both(a.sample_tokens, b.sample_tokens + np.int32(a.num_tokens))
    fields["suppressed"] = a.suppressed + [s._replace(row=s.row + count) for s in b.suppressed]
    return fields | _masks(a, b) | _adjusts(a, b)


def _masks(a: ForwardBatch, b: ForwardBatch) -> dict[str, Any]:
    masks = [batch.masks for batch in (a, b) if batch.masks is not None]
    if not masks:
        return {}
    before = 0 if a.masks is None else len(a.masks)
    rows = [
        np.full(len(batch.sample_tokens), -1, np.int32)
        if batch.mask_rows is None
        else np.where(batch.mask_rows < 0, -1, batch.mask_rows + shift).astype(np.int32)
        for batch, shift in ((a, 0), (b, before))
    ]
    return {"masks": np.concatenate(masks), "mask_rows": np.concatenate(rows)}


def _adjusts(a: ForwardBatch, b: ForwardBatch) -> dict[str, Any]:
    present = [batch for batch in (a, b) if batch.adjust_indptr is not None]
    if not present:
        return {}
    indptrs = [
        np.zeros(len(batch.sample_tokens) + 1, np.int32)
        if batch.adjust_indptr is None
        else batch.adjust_indptr
        for batch in (a, b)
    ]
    names = ("adjust_ids", "adjust_repeat", "adjust_add")
    columns = {name: np.concatenate([getattr(batch, name) for batch in present]) for name in names}
    return {"adjust_indptr": _indptrs(*indptrs), **columns}


def _behind(a: ForwardBatch, changes: tuple[LateChange, ...]) -> tuple[LateChange, ...]:
    """Where their entries are after those of `a`."""
    shift = 0 if a.adjust_ids is None else len(a.adjust_ids)
    return tuple(change._replace(start=change.start + shift) for change in changes)


def _details(a: ForwardBatch, b: ForwardBatch) -> tuple[np.ndarray, dict[str, Any]]:
    """The number that each detail row, of the first and then of the second, has in both; and the
    `detail_` arrays: ascending, the samples of both before what both score."""
    present = [batch for batch in (a, b) if batch.detail_rows is not None]
    if not present:
        return np.empty(0, np.int64), {}
    num_samples = len(a.sample_tokens), len(b.sample_tokens)
    rows = []
    for batch, sample_shift, known_shift in (
        (a, 0, num_samples[1]),
        (b, num_samples[0], num_samples[0] + len(a.logprob_tokens)),
    ):
        if batch.detail_rows is not None:
            is_sample = batch.detail_rows < len(batch.sample_tokens)
            rows.append(batch.detail_rows + np.where(is_sample, sample_shift, known_shift))
    all_rows = np.concatenate(rows).astype(np.int32)
    order = np.argsort(all_rows)
    tops = np.concatenate([batch.detail_top for batch in present if batch.detail_top is not None])
    counts = [np.diff(batch.detail_indptr) for batch in present if batch.detail_indptr is not None]
    indptr = indptr_of(np.concatenate(counts))
    ids = np.concatenate([batch.detail_ids for batch in present if batch.detail_ids is not None])
    return np.argsort(order), {
        "detail_rows": all_rows[order],
        "detail_top": tops[order],
        "detail_indptr": indptr_of(np.diff(indptr)[order]),
        "detail_ids": ids[entries_of(indptr, order)],
    }


def _appended(buffer: np.ndarray | None, head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Behind the head, of which the buffer is the longer form, if there is room for the tail."""
    stop = len(head) + len(tail)
    if buffer is None or stop > len(buffer):
        return np.concatenate((head, tail))
    buffer[len(head) : stop] = tail
    return buffer[:stop]


def _both(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate((a, b))


def _indptrs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate((a, b[1:] + a[-1]))
