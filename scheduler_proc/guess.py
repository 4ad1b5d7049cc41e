"""A step laid out ahead with the rows that deferred reqs will probably have.

What such a row may sample depends on a token that is still being sampled, but it is nearly always a
row of that one token, in a slot that is set aside. So it is laid out as that, with room for a mask
if it will have one; the plan fills in the rest when the token is known. If a row turns out
otherwise, as after a jump, the guess is of no use.
"""

import numpy as np

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from scheduler_proc.joining import joined
from scheduler_proc.layout import lay_out
from scheduler_proc.limits import NO_LIMITS
from scheduler_proc.memory import ReqToTokenPool
from scheduler_proc.penalties import LogitChanges
from scheduler_proc.req import Req
from scheduler_proc.sampling_table import SamplingTable
from scheduler_proc.step import NO_LATE_TOKENS, Row, Step

NEW_ENTRIES = 2  # by which a req's changes may grow by a token: itself, and another in its place


class Guess:
    """A step whose last `rows`, of one token each, all sample."""

    def __init__(self, step: Step, rows: list[Row]) -> None:
        self._step = step
        self._rows = rows
        self._changes = _Changes(step.batch, [row.req.tokens.logit_changes for row in rows])

    @classmethod
    def of(
        cls, first: Step | None, reqs: list[Req], table: ReqToTokenPool, sampling: SamplingTable
    ) -> "Guess | None":
        """The rows of `first` and then one for each req. None where a req will surely not have such
        a row, or where details are asked for, which do not come row by row."""
        rows = []
        for req in reqs:
            held = req.residency
            if held is None or held.num_spare == 0 or req.extend_left != 1 or req.wants_logprobs:
                return None
            limits = req.rules.kind(req.grammar)
            rows.append(Row(req, held, held.kv_len, 1, True, samples=True, limits=limits))
        step = lay_out(rows, table, sampling)
        if any(part and part.batch.detail_rows is not None for part in (first, step)):
            return None
        step.late_tokens = NO_LATE_TOKENS
        return cls(step if first is None else joined(first, step), rows)

    def completed(self, rows: list[Row]) -> Step | None:
        """The step, now that these `rows` of the reqs have been planned; they learn their samples.
        None if they are not as expected. The row of a req that has ended is run all the same."""
        live = [row for row in self._rows if row.req.finish is None]
        if [_place(row) for row in live] != [_place(row) for row in rows]:
            return None
        if not self._changes.fill_in():
            return None
        for row in self._rows:
            row.limits = NO_LIMITS
        for row, planned in zip(live, rows, strict=True):
            row.limits = planned.limits
            planned.sample = row.sample
        for row in self._rows:
            _fill_in(self._step.batch, row)
        return self._step


def _place(row: Row) -> tuple[int, ...]:
    """What of a row decides how it is laid out."""
    return (row.req.handle, row.start, row.extend_len, row.samples, row.num_logprobs)


def _fill_in(batch: ForwardBatch, row: Row) -> None:
    """The row's token and its limits."""
    mask, suppressed = row.limits
    batch.input_ids[batch.sample_tokens[row.sample]] = row.req.tokens.known[-1]
    if suppressed is not None:
        batch.suppressed.append(SuppressedIds(row.sample, suppressed))
    if batch.masks is None or batch.mask_rows is None:
        return
    if mask is None:
        batch.mask_rows[row.sample] = -1
    else:
        batch.masks[batch.mask_rows[row.sample]] = mask


class _Changes:
    """The changes of the last samples' logits: arrays of a batch that hold as many entries as there
    may be."""

    def __init__(self, batch: ForwardBatch, changes: list[LogitChanges | None]) -> None:
        self._batch = batch
        self._changes = changes
        self._is_any = any(change is not None for change in changes)
        if not self._is_any:
            return
        count = len(batch.sample_tokens) - len(changes)
        if batch.adjust_indptr is None:
            batch.adjust_indptr = np.zeros(len(batch.sample_tokens) + 1, np.int32)
        self._ends = batch.adjust_indptr[count + 1 :]
        self._start = int(batch.adjust_indptr[count])
        room = self._start + sum(
            len(change) + NEW_ENTRIES for change in changes if change is not None
        )
        self._ids = _enlarged(batch.adjust_ids, room, np.int32)
        self._repeat = _enlarged(batch.adjust_repeat, room, np.float32)
        self._add = _enlarged(batch.adjust_add, room, np.float32)

    def fill_in(self) -> bool:
        """As they are now. False if there is not enough room."""
        if not self._is_any:
            return True
        at = self._start
        for number, change in enumerate(self._changes):
            if change is not None:
                stop = at + len(change)
                if stop > len(self._ids):
                    return False
                entries = change.entries
                self._ids[at:stop] = entries.ids
                self._repeat[at:stop] = entries.repeat
                self._add[at:stop] = entries.add
                at = stop
            self._ends[number] = at
        batch = self._batch
        batch.adjust_ids, batch.adjust_repeat = self._ids[:at], self._repeat[:at]
        batch.adjust_add = self._add[:at]
        return True


def _enlarged(values: np.ndarray | None, room: int, dtype: type) -> np.ndarray:
    """With the same beginning."""
    result: np.ndarray = np.empty(room, dtype)
    if values is not None:
        result[: len(values)] = values
    return result
