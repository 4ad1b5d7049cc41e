"""Lays the rows of a step out as a ForwardBatch. Called by `Plan.seal`.

Only what differs from row to row is gone through one by one; the rest is gathered by table row.
"""

import numpy as np

from scheduler_proc.batch import Adjust, Details, ForwardBatch, Masks, SuppressedIds
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.requests.sampling_table import SamplingTable
from scheduler_proc.core.steps.media_layout import media_arrays
from scheduler_proc.core.steps.step import LateTokens, Row, Step
from scheduler_proc.memory.pools import ReqToTokenPool
from scheduler_proc.ragged import indptr_of
from scheduler_proc.sampling.penalties import Entries, LateChange, with_entries
from scheduler_proc.sampling.token_rules import NO_LIMITS, Limits


def lay_out(
    rows: list[Row], table: ReqToTokenPool, sampling: SamplingTable, kv_room: int = 0
) -> Step:
    """A step of these rows, at least one, which get their numbers here. `kv_room` is how many
    kv_indices it keeps room for, for rows that are appended later."""
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
    is_single = len(order) == len(rows)  # one token a row
    if is_single:
        positions, last = starts, kv_indptr[1:] - 1
    else:
        positions = order + np.repeat(starts - qo_indptr[:-1], extend_lens)
        last = order + np.repeat(kv_indptr[1:] - qo_indptr[1:], extend_lens)
    picked = [row for row in rows if row.num_samples > 0]
    sample_tokens, table_rows = _samples(rows, picked, qo_indptr)
    adjust, late_changes = _adjust(picked)
    limits: list[Limits] = []
    if any(row.limits for row in picked):
        limits = [limit for row in picked for limit in row.limits or [NO_LIMITS] * row.num_samples]
    logprob_tokens, logprob_targets = _logprob_arrays(rows, qo_indptr)
    batch = ForwardBatch(
        input_ids=input_ids,
        positions=positions,
        # The last of each row's slots are those of its new tokens.
        out_slots=kv_indices[last],
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        sample_tokens=sample_tokens,
        samples=sampling.samples(table_rows, positions[sample_tokens] + 1),
        suppressed=_suppressed(limits),
        masks=_masks(limits),
        adjust=adjust,
        details=_details(rows),
        logprob_tokens=logprob_tokens,
        logprob_targets=logprob_targets,
        **media_arrays(rows, qo_indptr, positions)._asdict(),
    )
    late_tokens = LateTokens(np.array(at, np.int64), np.array(late_samples, np.int64), late_changes)
    return Step(batch, rows, late_tokens, kv_buffer)


def _input_ids(rows: list[Row], qo_indptr: np.ndarray) -> tuple[np.ndarray, list[int], list[int]]:
    """The known ids; the places of the others, and which samples of the step before they are."""
    input_ids = np.zeros(qo_indptr[-1], np.int32)
    at, samples = [], []
    for row, first in zip(rows, qo_indptr.tolist(), strict=False):
        tokens, known = row.req.tokens, row.extend_len - len(row.draft)
        if row.draft:
            input_ids[first + known : first + row.extend_len] = row.draft
        if row.start + known > tokens.known_len:  # `_is_late`
            known -= 1
            at.append(first + known)
            samples.append(tokens.late_sample)
        if known > 0:
            input_ids[first : first + known] = tokens.known[row.start : row.start + known]
    return input_ids, at, samples


def _is_late(row: Row) -> bool:
    """Whether its last token that is not guessed is still being sampled."""
    return row.start + row.num_known > row.req.tokens.known_len


def _samples(
    rows: list[Row], picked: list[Row], qo_indptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens at which the `picked` of the rows sample, the last ones of each, and the table
    row of each sample. The rows get the numbers of their samples."""
    table_rows = np.array([row.residency.row for row in picked], np.int64)
    if len(picked) == len(rows) == qo_indptr[-1]:  # one token a row
        for number, row in enumerate(rows):
            row.sample = number
        return np.arange(len(rows), dtype=np.int32), table_rows
    counts = np.array([row.num_samples for row in picked], np.int32)
    indptr = indptr_of(counts)
    for row, first in zip(picked, indptr.tolist(), strict=False):
        row.sample = first
    stops = qo_indptr[1:][np.flatnonzero([row.num_samples > 0 for row in rows])]
    order = np.arange(indptr[-1], dtype=np.int32)
    return order + np.repeat(stops - indptr[1:], counts), np.repeat(table_rows, counts)


def _logprob_arrays(rows: list[Row], qo_indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See ForwardBatch.logprob_tokens and logprob_targets."""
    scored = [number for number, row in enumerate(rows) if row.num_logprobs > 0]
    if not scored:
        return np.empty(0, np.int32), np.empty(0, np.int32)
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
    return np.concatenate(tokens).astype(np.int32), np.concatenate(targets)


def _details(rows: list[Row]) -> Details | None:
    """The detail rows of the rows that ask, the samples' first; each row is given its numbers."""
    asking = [row for row in rows if row.req.wish.wants_details]
    if not asking:
        return None
    parts: list[tuple[Req, np.ndarray]] = []  # who asks, and for which rows
    num_details = 0
    for row in asking:
        if row.sample >= 0:
            row.sample_detail = num_details
            parts.append((row.req, np.arange(row.sample, row.sample + row.num_samples)))
            num_details += row.num_samples
    logprobs_at = sum(row.num_samples for row in rows)
    for row in rows:
        if row.num_logprobs > 0 and row.req.wish.wants_details:
            row.known_detail = num_details
            parts.append((row.req, np.arange(logprobs_at, logprobs_at + row.num_logprobs)))
            num_details += row.num_logprobs
        logprobs_at += row.num_logprobs
    return _details_of(parts) if parts else None


def _details_of(parts: list[tuple[Req, np.ndarray]]) -> Details:
    """The detail rows of `parts`: who asks, and for which rows [n]."""
    counts = [len(rows) for _, rows in parts]
    num_ids = [len(req.wish.logprob_ids) for req, _ in parts]
    tops = [req.wish.scoring.top for req, _ in parts if req.wish.scoring is not None]
    return Details(
        rows=np.concatenate([rows for _, rows in parts]).astype(np.int32),
        top=np.repeat(tops, counts).astype(np.int32),
        indptr=indptr_of(np.repeat(num_ids, counts)),
        ids=np.concatenate([np.tile(req.wish.logprob_ids, len(rows)) for req, rows in parts]),
    )


def _suppressed(limits: list[Limits]) -> list[SuppressedIds]:
    """What the limits, one for each sample, suppress."""
    return [
        SuppressedIds(sample, limit.suppressed)
        for sample, limit in enumerate(limits)
        if limit.suppressed is not None
    ]


def _masks(limits: list[Limits]) -> Masks | None:
    """The masks of the limits, one for each sample."""
    masks = [limit.mask for limit in limits if limit.mask is not None]
    if not masks:
        return None
    masked = np.array([limit.mask is not None for limit in limits])
    rows = np.where(masked, np.cumsum(masked) - 1, -1)
    return Masks(np.stack(masks), rows.astype(np.int32))


def _adjust(picked: list[Row]) -> tuple[Adjust | None, tuple[LateChange, ...]]:
    """The changes of each sample's logits, and which of these wait for a token."""
    if all(row.req.tokens.logit_changes is None for row in picked):
        return None, ()
    lists: list[Entries | None] = []
    late: list[LateChange] = []
    start = 0
    for row in picked:
        changes = row.req.tokens.logit_changes
        found: list[Entries | None] = [None] * row.num_samples
        if changes is not None and changes.count_outputs and _is_late(row):
            entries = changes.entries_with_room()
            late.append(LateChange(changes, row.req.tokens.late_sample, start, entries.counts))
            found = [entries]
        elif changes is not None:
            found = [*changes.entries_along(row.draft)]
        lists += found
        start += sum(len(entries.ids) for entries in found if entries is not None)
    return with_entries(Adjust.none(0), lists), tuple(late)
