"""Lays the rows of a step out as a ForwardBatch. Called by `Plan.seal`.

Only what differs from row to row is gone through one by one; the rest is gathered by table row.
"""

from typing import Any

import numpy as np

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from scheduler_proc.limits import NO_LIMITS, Limits
from scheduler_proc.memory import ReqToTokenPool
from scheduler_proc.penalties import Entries, LateChange
from scheduler_proc.req import Req
from scheduler_proc.sampling_table import SamplingTable
from scheduler_proc.step import LateTokens, Row, Step


def lay_out(
    rows: list[Row], table: ReqToTokenPool, sampling: SamplingTable, kv_room: int = 0
) -> Step:
    """A step of these rows, one at least, which are numbered by this; with room for so many
    kv_indices of rows that are appended."""
    extend_lens = np.array([row.extend_len for row in rows], np.int32)
    starts = np.array([row.start for row in rows], np.int32)
    seq_lens = starts + extend_lens
    qo_indptr, kv_indptr = indptr_of(extend_lens), indptr_of(seq_lens)
    slots, order = table.slots, np.arange(qo_indptr[-1], dtype=np.int32)
    kv_buffer = np.empty(kv_indptr[-1] + kv_room, np.int32)
    kv_indices = kv_buffer[: kv_indptr[-1]]
    parts = [slots[row.residency.row, : row.start + row.extend_len] for row in rows]
    np.concatenate(parts, out=kv_indices)
    input_ids, at, late_samples = _input_ids(rows, qo_indptr)
    samples = np.flatnonzero([row.samples for row in rows])
    picked = [row for row in rows if row.samples]
    for sample, row in enumerate(picked):
        row.sample = sample
    adjusts, late_changes = _adjust_arrays(picked)
    table_rows = np.array([row.residency.row for row in picked], np.int64)
    batch = ForwardBatch(
        input_ids=input_ids,
        positions=order + np.repeat(starts - qo_indptr[:-1], extend_lens),
        # The last of each row's slots are those of its new tokens.
        out_slots=kv_indices[order + np.repeat(kv_indptr[1:] - qo_indptr[1:], extend_lens)],
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        sample_tokens=qo_indptr[1:][samples] - 1,
        **sampling.arrays(table_rows, seq_lens[samples]),
        **_limit_arrays([row.limits for row in picked]),
        **adjusts,
        **_logprob_arrays(rows, qo_indptr),
        **_detail_arrays(rows),
    )
    late_tokens = LateTokens(np.array(at, np.int64), np.array(late_samples, np.int64), late_changes)
    return Step(batch, rows, late_tokens, kv_buffer)


def _input_ids(rows: list[Row], qo_indptr: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
    """The known ones; where the others are, and which samples of the step before."""
    input_ids = np.zeros(qo_indptr[-1], np.int32)
    at, samples = [], []
    for row, first in zip(rows, qo_indptr.tolist(), strict=False):
        req, known = row.req, row.extend_len
        if _is_late(row):
            known -= 1
            at.append(first + known)
            samples.append(req.tokens.late_sample)
        if known > 0:
            input_ids[first : first + known] = req.tokens.known[row.start : row.start + known]
    return input_ids, at, samples


def _is_late(row: Row) -> bool:
    """Whether its last token is still being sampled."""
    return row.start + row.extend_len > row.req.tokens.known_len


def _logprob_arrays(rows: list[Row], qo_indptr: np.ndarray) -> dict[str, Any]:
    scored = [number for number, row in enumerate(rows) if row.num_logprobs > 0]
    if not scored:
        return {}
    tokens, targets = [], []
    count = 0
    for number in scored:
        row = rows[number]
        row.logprobs_at = count
        count += row.num_logprobs
        first, stop = row.logprob_start, row.logprob_stop
        at = qo_indptr[number] - row.start
        tokens.append(np.arange(first, stop, dtype=np.int32) - 1 + at)
        targets.append(row.req.tokens.known[first:stop])
    return {
        "logprob_tokens": np.concatenate(tokens).astype(np.int32),
        "logprob_targets": np.concatenate(targets),
    }


def _detail_arrays(rows: list[Row]) -> dict[str, Any]:
    """The detail rows of those that ask, the samples' first; each row learns its own."""
    asking = [row for row in rows if row.req.wish.wants_details]
    if not asking:
        return {}
    parts: list[tuple[Req, np.ndarray]] = []  # who asks, and the detail_rows
    num_details = 0
    for row in asking:
        if row.sample >= 0:
            row.sample_detail = num_details
            parts.append((row.req, np.array([row.sample])))
            num_details += 1
    logprobs_at = sum(row.samples for row in rows)
    for row in rows:
        if row.num_logprobs > 0 and row.req.wish.wants_details:
            row.known_detail = num_details
            parts.append((row.req, np.arange(logprobs_at, logprobs_at + row.num_logprobs)))
            num_details += row.num_logprobs
        logprobs_at += row.num_logprobs
    return _detail_columns(parts) if parts else {}


def _limit_arrays(limits: list[Limits]) -> dict[str, Any]:
    """Of each sample's limits: which ids are suppressed, and the masks."""
    if all(limit is NO_LIMITS for limit in limits):
        return {}
    fields: dict[str, Any] = {
        "suppressed": [
            SuppressedIds(sample, limit.suppressed)
            for sample, limit in enumerate(limits)
            if limit.suppressed is not None
        ]
    }
    masks = [limit.mask for limit in limits if limit.mask is not None]
    if masks:
        masked = np.array([limit.mask is not None for limit in limits])
        mask_rows = np.where(masked, np.cumsum(masked) - 1, -1)
        fields |= {"masks": np.stack(masks), "mask_rows": mask_rows.astype(np.int32)}
    return fields


def _adjust_arrays(picked: list[Row]) -> tuple[dict[str, Any], tuple[LateChange, ...]]:
    """The changes of each sample's logits, and which of these wait for a token."""
    if all(row.req.tokens.logit_changes is None for row in picked):
        return {}, ()
    columns: list[Entries] = []
    late: list[LateChange] = []
    lens = [0] * len(picked)
    start = 0
    for sample, row in enumerate(picked):
        changes = row.req.tokens.logit_changes
        if changes is None:
            continue
        if changes.count_outputs and _is_late(row):
            columns.append(changes.entries_with_room())
            late.append(LateChange(changes, row.req.tokens.late_sample, start, columns[-1].counts))
        else:
            columns.append(changes.entries)
        lens[sample] = len(columns[-1].ids)
        start += lens[sample]
    if start == 0:
        return {}, ()
    return {
        "adjust_indptr": indptr_of(lens),
        "adjust_ids": np.concatenate([entries.ids for entries in columns]),
        "adjust_repeat": np.concatenate([entries.repeat for entries in columns]),
        "adjust_add": np.concatenate([entries.add for entries in columns]),
    }, tuple(late)


def _detail_columns(parts: list[tuple[Req, np.ndarray]]) -> dict[str, np.ndarray]:
    """The `detail_` arrays, of (who asks, detail_rows [n])."""
    counts = [len(rows) for _, rows in parts]
    num_ids = [len(req.wish.logprob_ids) for req, _ in parts]
    return {
        "detail_rows": np.concatenate([rows for _, rows in parts]).astype(np.int32),
        "detail_top": np.repeat(
            [req.wish.scoring.top for req, _ in parts if req.wish.scoring is not None], counts
        ).astype(np.int32),
        "detail_indptr": indptr_of(np.repeat(num_ids, counts)),
        "detail_ids": np.concatenate(
            [np.tile(req.wish.logprob_ids, len(rows)) for req, rows in parts]
        ),
    }


def indptr_of(lens: np.ndarray | list[int]) -> np.ndarray:
    """Where the list of each of these lengths begins, and the last one ends: int32 [n+1]."""
    return np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
