"""A step laid out ahead with the rows that deferred reqs will probably have.

What such a row may sample depends on a token that is still being sampled, but it is nearly always a
row of that one token, in a slot that is set aside. So it is laid out as that, with room for a mask
if it will have one; the plan fills in the rest when the token is known. If a row turns out
otherwise, as after a jump, the guess is discarded.
"""

from collections.abc import Sequence

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from scheduler_proc.joining import joined
from scheduler_proc.layout import lay_out
from scheduler_proc.limits import NO_LIMITS
from scheduler_proc.memory import ReqToTokenPool
from scheduler_proc.penalties import LateChange
from scheduler_proc.req import Req
from scheduler_proc.sampling_table import SamplingTable
from scheduler_proc.step import NO_LATE_TOKENS, Row, Step


class Guess:
    """A step whose last `rows`, of one token each, all sample. `changes` are for those of these
    rows whose newest token changes what they may sample."""

    def __init__(self, step: Step, rows: list[Row], changes: Sequence[LateChange]) -> None:
        self._step = step
        self._rows = rows
        self._changes = changes

    @classmethod
    def of(
        cls, first: Step | None, reqs: list[Req], table: ReqToTokenPool, sampling: SamplingTable
    ) -> "Guess | None":
        """The rows of `first`, then one for each req. None if a req will certainly not have such a
        row, or if any row asks for details, which are not laid out row by row."""
        rows = []
        for req in reqs:
            held = req.residency
            if held is None or held.num_spare == 0 or req.extend_left != 1 or req.wants_logprobs:
                return None
            limits = req.rules.kind(req.grammar)
            rows.append(Row(req, held, held.kv_len, 1, True, samples=True, limits=limits))
        step = lay_out(rows, table, sampling)
        if any(part and part.batch.details is not None for part in (first, step)):
            return None
        late = NO_LATE_TOKENS if first is None else first.late_tokens
        step = step if first is None else joined(first, step)
        changes = step.late_tokens.changes[len(late.changes) :]
        step.late_tokens = late  # the others will be known
        return cls(step, rows, changes)

    def completed(self, rows: list[Row]) -> Step | None:
        """The step, now that these `rows` of the reqs are planned; their `sample` is filled in.
        None if they are not as expected. The row of a req that has ended is run all the same."""
        live = [row for row in self._rows if row.req.finish is None]
        if [_place(row) for row in live] != [_place(row) for row in rows]:
            return None
        for row in self._rows:
            row.limits = NO_LIMITS
        for row, planned in zip(live, rows, strict=True):
            row.limits = planned.limits
            planned.sample = row.sample
        batch = self._step.batch
        for row in self._rows:
            _fill_in(batch, row)
        newest = {id(row.req.tokens.logit_changes): row.req.tokens.known[-1] for row in self._rows}
        for change in self._changes:
            assert batch.adjust is not None
            change.fill_in(batch.adjust, int(newest[id(change.changes)]))
        return self._step


def _place(row: Row) -> tuple[int, ...]:
    """The facts about a row that decide how it is laid out."""
    return (row.req.handle, row.start, row.extend_len, row.samples, row.num_logprobs)


def _fill_in(batch: ForwardBatch, row: Row) -> None:
    """Fill in the row's token and its limits."""
    mask, suppressed = row.limits
    batch.input_ids[batch.sample_tokens[row.sample]] = row.req.tokens.known[-1]
    if suppressed is not None:
        batch.suppressed.append(SuppressedIds(row.sample, suppressed))
    if batch.masks is None:
        return
    if mask is None:
        batch.masks.rows[row.sample] = -1
    else:
        batch.masks.words[batch.masks.rows[row.sample]] = mask
