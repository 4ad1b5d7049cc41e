"""A step in the making: the rows that the scheduler chose, and their layout as a ForwardBatch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from scheduler_proc.memory import ReqToTokenPool
from scheduler_proc.req import Req


@dataclass(slots=True)
class Row:
    """One req's share of a step: tokens [start, start+extend_len) of its sequence."""

    req: Req
    residency: int
    start: int
    extend_len: int
    is_decode: bool
    samples: bool = False
    mask: np.ndarray | None = None  # uint32 [ceil(vocab/32)]: what it may sample
    sample: int = -1  # index into the batch's samples; -1 if it does not sample
    logprob_start: int = 0  # position of the first known token that it scores
    num_logprobs: int = 0

    @property
    def logprob_stop(self) -> int:
        """The position behind the last known token that it scores."""
        return self.logprob_start + self.num_logprobs

    @property
    def is_current(self) -> bool:
        """Whether the req is still in memory as it was when this row was planned."""
        return self.req.is_resident and self.residency == self.req.residency


@dataclass(slots=True)
class Step:
    """A sealed step: what the executor runs (`batch`) and what commit needs to know (`rows`).

    `late_tokens` are (index into input_ids, sample of the step before): tokens that were not
    known when this step was prepared. `finalize` fills them in.
    """

    batch: ForwardBatch
    rows: list[Row]
    late_tokens: list[tuple[int, int]]


@dataclass(slots=True)
class Plan:
    """A step that rows can still be added to. Their slots are in the req's table row already.

    `deferred` are reqs whose row depends on the result of the step that runs now: the plan can be
    sealed only when that has been committed. Without any it can be sealed at once.
    """

    table: ReqToTokenPool
    rows: list[Row] = field(default_factory=list)
    deferred: list[Req] = field(default_factory=list)
    num_tokens: int = 0

    def add(
        self, req: Req, extend_len: int, is_decode: bool, mask: np.ndarray | None = None
    ) -> Row:
        """Plan the req's next `extend_len` tokens; it samples, under `mask`, if they are all that
        is left."""
        row = Row(req, req.residency, req.kv_len, extend_len, is_decode, mask=mask)
        req.kv_len += extend_len
        self._plan_logprobs(row)
        row.samples = req.kv_len == req.seq_len and req.remaining > 0
        self.rows.append(row)
        self.num_tokens += extend_len
        return row

    def drop_ended(self) -> None:
        """Forget the rows of reqs that have ended or lost their memory since they were planned:
        their slots may have new owners."""
        self.rows = [row for row in self.rows if row.is_current]
        self.num_tokens = sum(row.extend_len for row in self.rows)

    def _plan_logprobs(self, row: Row) -> None:
        """Position p's log-probability comes from the logits of token p-1."""
        req = row.req
        stop = min(row.start + row.extend_len + 1, req.logprob_stop)
        first = req.next_logprob
        if first > row.start and first < stop:
            row.logprob_start = first
            row.num_logprobs = stop - first
            req.next_logprob = stop

    def seal(self) -> Step:
        """Lay out the batch and mark the sampled tokens as pending. At least one row is needed."""
        rows = self.rows
        for sample, row in enumerate(row for row in rows if row.samples):
            row.sample = sample
        extend_lens = np.array([row.extend_len for row in rows], np.int32)
        seq_lens = np.array([row.start + row.extend_len for row in rows], np.int32)
        qo_indptr, kv_indptr = _indptr(extend_lens), _indptr(seq_lens)
        late_tokens: list[tuple[int, int]] = []
        input_ids = np.empty(self.num_tokens, np.int32)
        for row, at in zip(rows, qo_indptr.tolist(), strict=False):
            _fill_input_ids(row, at, input_ids, late_tokens)
        slots = self.table.slots
        positions = [np.arange(row.start, row.start + row.extend_len) for row in rows]
        batch = ForwardBatch(
            input_ids=input_ids,
            positions=np.concatenate(positions).astype(np.int32),
            out_slots=np.concatenate(
                [slots[row.req.row, row.start : row.start + row.extend_len] for row in rows]
            ),
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=np.concatenate(
                [slots[row.req.row, : row.start + row.extend_len] for row in rows]
            ),
            **self._sampling_arrays(qo_indptr),
            **self._logprob_arrays(qo_indptr),
        )
        for row in rows:
            if row.sample >= 0:
                row.req.pending += 1
                row.req.pending_sample = row.sample
        return Step(batch, rows, late_tokens)

    def _sampling_arrays(self, qo_indptr: np.ndarray) -> dict[str, Any]:
        picked = [(i, row.req) for i, row in enumerate(self.rows) if row.samples]
        params = [req.sampling for _, req in picked]
        suppressed = [
            SuppressedIds(sample, req.stop_id_array)
            for sample, (_, req) in enumerate(picked)
            if req.blocks_stop and req.grammar is None  # else its mask says so
        ]
        return {
            "sample_tokens": np.array([qo_indptr[i + 1] - 1 for i, _ in picked], np.int32),
            "temperature": np.array([p.temperature for p in params], np.float32),
            "top_p": np.array([p.top_p for p in params], np.float32),
            "top_k": np.array([p.top_k for p in params], np.int32),
            "min_p": np.array([p.min_p for p in params], np.float32),
            "uniform": np.array([req.uniform() for _, req in picked], np.float64),
            "want_logprob": np.array([req.return_logprob for _, req in picked], bool),
            "suppressed": suppressed,
            **self._mask_arrays(),
        }

    def _mask_arrays(self) -> dict[str, Any]:
        masks = [row.mask for row in self.rows if row.samples and row.mask is not None]
        if not masks:
            return {}
        constrained = np.array([row.mask is not None for row in self.rows if row.samples])
        mask_rows = np.where(constrained, np.cumsum(constrained) - 1, -1)
        return {"masks": np.stack(masks), "mask_rows": mask_rows.astype(np.int32)}

    def _logprob_arrays(self, qo_indptr: np.ndarray) -> dict[str, Any]:
        tokens, targets = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for row, at in zip(self.rows, qo_indptr.tolist(), strict=False):
            if row.num_logprobs > 0:
                first, stop = row.logprob_start, row.logprob_stop
                tokens.append(np.arange(first, stop, dtype=np.int32) - 1 - row.start + at)
                targets.append(row.req.tokens[first:stop])
        return {
            "logprob_tokens": np.concatenate(tokens).astype(np.int32),
            "logprob_targets": np.concatenate(targets),
        }


def _fill_input_ids(row: Row, at: int, out: np.ndarray, late: list[tuple[int, int]]) -> None:
    req, stop = row.req, row.start + row.extend_len
    known = min(stop, req.num_tokens)
    out[at : at + known - row.start] = req.tokens[row.start : known]
    if known < stop:
        out[at + row.extend_len - 1] = 0
        late.append((at + row.extend_len - 1, req.pending_sample))


def _indptr(lens: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
