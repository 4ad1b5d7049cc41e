"""A step laid out ahead with the rows that deferred reqs will probably have.

What such a row may sample depends on a token that is still being sampled, but it is nearly always a
row of that one token, in a slot that is set aside. So it is laid out as that, with room for a mask
if it will have one; the plan fills in the rest when the token is known. If a row turns out
otherwise, as after a jump, the guess is discarded.

Where the grammars have the masks at hand, the tokens alone decide that the rows are as expected,
and what they may sample. Then the step can be filled in and started before anything is committed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult, SuppressedIds
from scheduler_proc.core.requests.request import Req, Residency
from scheduler_proc.core.requests.sampling_table import SamplingTable
from scheduler_proc.core.steps.batch_concat import joined
from scheduler_proc.core.steps.batch_layout import lay_out
from scheduler_proc.core.steps.step import NO_LATE_TOKENS, Row, Step
from scheduler_proc.grammar.base import Grammar, SeenMasks
from scheduler_proc.memory.pools import ReqToTokenPool
from scheduler_proc.sampling.penalties import LateChange
from scheduler_proc.sampling.token_rules import NO_LIMITS


class Expected(NamedTuple):
    """What decides a row when the step ends in which its newest token is sampled, its `sample`. The
    token goes to `at` of the batch's input_ids, and what may follow it into `words`, a row of
    the masks, unless the token is a stop or the `grammar` has no mask at hand. It must still hold
    the memory of then."""

    req: Req
    residency: Residency
    sample: int
    at: int
    words: np.ndarray
    stop_ids: frozenset[int]
    seen: SeenMasks
    grammar: Grammar


class Guess:
    """A step whose last `rows`, of one token each, all sample. `changes` are for those of these
    rows whose newest token changes what they may sample."""

    def __init__(self, step: Step, rows: list[Row], changes: Sequence[LateChange]) -> None:
        self._step = step
        self._rows = rows
        self._changes = changes
        self._expected: list[Expected] | None = None
        self._is_started = False  # filled in before its rows were planned

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
            if held.num_drafted > 0:
                return None  # which of its samples is the newest token is not known
            kind = req.rules.kind(req.grammar)
            limits = () if kind is NO_LIMITS else (kind,)
            rows.append(Row(req, held, held.kv_len, 1, True, num_samples=1, limits=limits))
        step = lay_out(rows, table, sampling)
        if any(part and part.batch.details is not None for part in (first, step)):
            return None
        late = NO_LATE_TOKENS if first is None else first.late_tokens
        step = step if first is None else joined(first, step)
        changes = step.late_tokens.changes[len(late.changes) :]
        step.late_tokens = late  # the others will be known
        return cls(step, rows, changes)

    def expect(self, running: list[Row]) -> None:
        """Prepare for `started`; `running` are the rows of the step that runs in which the newest
        tokens are sampled."""
        sampling = {id(row.req): row for row in running if row.samples and row.is_current}
        expected, batch = [], self._step.batch
        for row in self._rows:
            req, before = row.req, sampling.get(id(row.req))
            is_last = req.tokens.known_len + 1 >= req.tokens.max_len
            if before is None or req.grammar is None or batch.masks is None or is_last:
                return
            if req.rules.is_any or req.pending is not None:
                return
            if req.closes and req.grammar.near(req.remaining):
                return
            expected.append(
                Expected(
                    req=req,
                    residency=row.residency,
                    sample=before.sample,
                    at=int(batch.sample_tokens[row.sample]),
                    words=batch.masks.words[batch.masks.rows[row.sample]],
                    stop_ids=req.wish.stop_ids,
                    seen=req.grammar.seen_after(),
                    grammar=req.grammar,
                )
            )
        self._expected = expected

    def started(self, result: StepResult) -> Step | None:
        """The step, filled in from the tokens alone; it is certain then that `completed` would give
        it. None if they do not decide it."""
        if self._expected is None:
            return None
        next_ids, found = result.next_ids, []
        for req, residency, sample, at, words, stop_ids, seen, grammar in self._expected:
            token = int(next_ids[sample])
            mask_of = seen.get(token)
            mask = None if mask_of is None else mask_of()
            if mask is None:
                mask = grammar.mask_after(token)
            if mask is None or token in stop_ids or req.residency is not residency:
                return None
            found.append((token, at, words, mask))
        input_ids = self._step.batch.input_ids
        for token, at, words, mask in found:
            input_ids[at] = token
            words[:] = mask
        if self._changes:
            newest = zip(self._rows, found, strict=True)
            self._change({id(row.req.tokens.logit_changes): one[0] for row, one in newest})
        self._is_started = True
        return self._step

    def _change(self, newest: dict[int, int]) -> None:
        """Count the newest tokens, which are by the id of the changes that they belong to."""
        for change in self._changes:
            assert self._step.batch.adjust is not None
            change.fill_in(self._step.batch.adjust, newest[id(change.changes)])

    def completed(self, rows: list[Row]) -> Step | None:
        """The step, now that these `rows` of the reqs are planned; their `sample` is filled in.
        None if they are not as expected. The row of a req that has ended is run all the same."""
        live = [row for row in self._rows if row.req.finish is None]
        if [_place(row) for row in live] != [_place(row) for row in rows]:
            return None
        assert not self._is_started or len(live) == len(self._rows)
        for row in self._rows:
            row.limits = ()
        for row, planned in zip(live, rows, strict=True):
            row.limits = planned.limits
            planned.sample = row.sample
        if self._is_started:  # it is being read
            return self._step
        for row in self._rows:
            _fill_in(self._step.batch, row)
        reqs = [row.req for row in self._rows]
        self._change({id(req.tokens.logit_changes): int(req.tokens.known[-1]) for req in reqs})
        return self._step


def _place(row: Row) -> tuple[int, ...]:
    """The facts about a row that decide how it is laid out."""
    return (row.req.handle, row.start, row.extend_len, row.num_samples, row.num_logprobs)


def _fill_in(batch: ForwardBatch, row: Row) -> None:
    """Fill in the row's token and its limits."""
    mask, suppressed, _ = row.limits[0] if row.limits else NO_LIMITS
    batch.input_ids[batch.sample_tokens[row.sample]] = row.req.tokens.known[-1]
    if suppressed is not None:
        batch.suppressed.append(SuppressedIds(row.sample, suppressed))
    if batch.masks is None:
        return
    if mask is None:
        batch.masks.rows[row.sample] = -1
    else:
        batch.masks.words[batch.masks.rows[row.sample]] = mask
