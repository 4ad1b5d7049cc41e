"""Joins two laid-out steps into one: rows laid out ahead, and rows that had to wait for tokens.

The rows of the first come first, so their numbers stay.
"""

import numpy as np

from scheduler_proc.batch import NO_DETAILS, Adjust, Details, ForwardBatch, Masks
from scheduler_proc.core.steps.media_layout import joined_media
from scheduler_proc.core.steps.step import LateTokens, Row, Step
from scheduler_proc.ragged import both_indptr
from scheduler_proc.sampling.penalties import LateChange


def joined(first: Step, second: Step) -> Step:
    """Both must have rows, of different reqs. The second's rows are renumbered in place."""
    a, b = first.batch, second.batch
    numbers, details = _details(a, b)
    shifted = [entry._replace(row=entry.row + a.num_samples) for entry in b.suppressed]
    batch = ForwardBatch(
        input_ids=_both(a.input_ids, b.input_ids),
        positions=_both(a.positions, b.positions),
        out_slots=_both(a.out_slots, b.out_slots),
        qo_indptr=both_indptr(a.qo_indptr, b.qo_indptr),
        kv_indptr=both_indptr(a.kv_indptr, b.kv_indptr),
        kv_indices=_appended(first.kv_buffer, a.kv_indices, b.kv_indices),
        sample_tokens=_both(a.sample_tokens, b.sample_tokens + np.int32(a.num_tokens)),
        samples=a.samples.followed_by(b.samples),
        suppressed=a.suppressed + shifted,
        masks=_masks(a, b),
        adjust=_adjust(a, b),
        details=details,
        logprob_tokens=_both(a.logprob_tokens, b.logprob_tokens + np.int32(a.num_tokens)),
        logprob_targets=_both(a.logprob_targets, b.logprob_targets),
        **joined_media(a, b)._asdict(),
    )
    if details is not None:
        _renumber(first.rows, 0, numbers, 0)
    for row in second.rows:
        row.logprobs_at += len(a.logprob_tokens)
    _renumber(second.rows, a.num_samples, numbers, 0 if a.details is None else len(a.details.rows))
    late = LateTokens(
        _both(first.late_tokens.at, second.late_tokens.at + a.num_tokens),
        _both(first.late_tokens.samples, second.late_tokens.samples),
        first.late_tokens.changes + _shifted(second.late_tokens.changes, a.adjust),
    )
    return Step(batch, first.rows + second.rows, late)


def _renumber(rows: list[Row], samples: int, details: np.ndarray, before: int) -> None:
    """Renumber rows that have this many samples and details before them; `details` gives the new
    number of each detail row."""
    for row in rows:
        if row.sample >= 0:
            row.sample += samples
        if row.sample_detail >= 0:
            row.sample_detail = int(details[before + row.sample_detail])
        if row.known_detail >= 0:
            row.known_detail = int(details[before + row.known_detail])


def _masks(a: ForwardBatch, b: ForwardBatch) -> Masks | None:
    present = [batch.masks.words for batch in (a, b) if batch.masks is not None]
    if not present:
        return None
    before = 0 if a.masks is None else len(a.masks.words)
    rows = [
        np.full(batch.num_samples, -1, np.int32)
        if batch.masks is None
        else np.where(batch.masks.rows < 0, -1, batch.masks.rows + shift).astype(np.int32)
        for batch, shift in ((a, 0), (b, before))
    ]
    return Masks(np.concatenate(present), np.concatenate(rows))


def _adjust(a: ForwardBatch, b: ForwardBatch) -> Adjust | None:
    if a.adjust is None and b.adjust is None:
        return None
    first, second = (batch.adjust or Adjust.none(batch.num_samples) for batch in (a, b))
    return first.followed_by(second)


def _shifted(changes: tuple[LateChange, ...], before: Adjust | None) -> tuple[LateChange, ...]:
    """The changes, with their entries placed after those of `before`."""
    shift = 0 if before is None else len(before.ids)
    return tuple(change._replace(start=change.start + shift) for change in changes)


def _details(a: ForwardBatch, b: ForwardBatch) -> tuple[np.ndarray, Details | None]:
    """The new number of each detail row (the first's, then the second's), and all detail rows in
    the new order: ascending, so that all samples come before all prompt log-probabilities."""
    if a.details is None and b.details is None:
        return np.empty(0, np.int64), None
    first, second = (batch.details or NO_DETAILS for batch in (a, b))
    together = first.followed_by(second)._replace(
        rows=_both(
            np.where(first.rows < a.num_samples, first.rows, first.rows + b.num_samples),
            np.where(
                second.rows < b.num_samples,
                second.rows + a.num_samples,
                second.rows + (a.num_samples + len(a.logprob_tokens)),
            ),
        ).astype(np.int32)
    )
    order = np.argsort(together.rows)
    return np.argsort(order), together.take(order)


def _appended(buffer: np.ndarray | None, head: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """The head and the tail in one array: in the head's `buffer` if it has room for the tail."""
    stop = len(head) + len(tail)
    if buffer is None or stop > len(buffer):
        return np.concatenate((head, tail))
    buffer[len(head) : stop] = tail
    return buffer[:stop]


def _both(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate((a, b))
