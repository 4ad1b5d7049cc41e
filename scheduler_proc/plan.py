"""A step in the making: the rows that the scheduler chose, and their layout as a ForwardBatch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler_proc.batch import ForwardBatch, SuppressedIds
from scheduler_proc.limits import NO_LIMITS, Limits
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
    limits: Limits = NO_LIMITS  # what it may sample
    sample: int = -1  # index into the batch's samples; -1 if it does not sample
    logprob_start: int = 0  # position of the first known token that it scores
    num_logprobs: int = 0
    sample_detail: int = -1  # the sample's detail row, and the first of those of the known tokens
    known_detail: int = -1  # that it scores; -1 if its req asks for none

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

    def add(self, req: Req, extend_len: int, is_decode: bool, limits: Limits = NO_LIMITS) -> Row:
        """Plan the req's next `extend_len` tokens; it samples, within `limits`, if they are all
        that is left."""
        row = Row(req, req.residency, req.kv_len, extend_len, is_decode, limits=limits)
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
        starts = np.array([row.start for row in rows], np.int32)
        qo_indptr, kv_indptr = indptr_of(extend_lens), indptr_of(starts + extend_lens)
        late_tokens: list[tuple[int, int]] = []
        input_ids = np.empty(self.num_tokens, np.int32)
        for row, at in zip(rows, qo_indptr.tolist(), strict=False):
            _fill_input_ids(row, at, input_ids, late_tokens)
        slots, order = self.table.slots, np.arange(self.num_tokens, dtype=np.int32)
        kv_indices = np.concatenate(
            [slots[row.req.row, : row.start + row.extend_len] for row in rows]
        )
        batch = ForwardBatch(
            input_ids=input_ids,
            positions=order + np.repeat(starts - qo_indptr[:-1], extend_lens),
            # The last of each row's slots are those of its new tokens.
            out_slots=kv_indices[order + np.repeat(kv_indptr[1:] - qo_indptr[1:], extend_lens)],
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            **self._sampling_arrays(qo_indptr),
            **self._logprob_arrays(qo_indptr),
            **self._detail_arrays(),
        )
        for row in rows:
            if row.sample >= 0:
                row.req.pending += 1
                row.req.pending_sample = row.sample
        return Step(batch, rows, late_tokens)

    def _sampling_arrays(self, qo_indptr: np.ndarray) -> dict[str, Any]:
        picked = [row for row in self.rows if row.samples]
        reqs = [row.req for row in picked]
        samples = np.array([row.samples for row in self.rows], bool)
        params = np.array([req.sampling_row for req in reqs], np.float64).reshape(-1, 4)
        temperature, top_p, min_p, top_k = np.ascontiguousarray(params.T)
        return {
            "sample_tokens": qo_indptr[1:][samples] - 1,
            "temperature": temperature.astype(np.float32),
            "top_p": top_p.astype(np.float32),
            "top_k": top_k.astype(np.int32),
            "min_p": min_p.astype(np.float32),
            "uniform": np.array([req.uniform() for req in reqs], np.float64),
            "want_logprob": np.array([req.return_logprob for req in reqs], bool),
            **_limit_arrays([row.limits for row in picked]),
            **_adjust_arrays(reqs),
        }

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

    def _detail_arrays(self) -> dict[str, Any]:
        """The detail rows of those that ask, the samples' first; each row learns its own."""
        asking = [row for row in self.rows if row.req.wants_details]
        if not asking:
            return {}
        parts: list[tuple[Req, np.ndarray]] = []  # who asks, and the detail_rows
        num_details = 0
        for row in asking:
            if row.sample >= 0:
                row.sample_detail = num_details
                parts.append((row.req, np.array([row.sample])))
                num_details += 1
        logprobs_at = sum(row.samples for row in self.rows)
        for row in self.rows:
            if row.num_logprobs > 0 and row.req.wants_details:
                row.known_detail = num_details
                parts.append((row.req, np.arange(logprobs_at, logprobs_at + row.num_logprobs)))
                num_details += row.num_logprobs
            logprobs_at += row.num_logprobs
        return _detail_columns(parts) if parts else {}


def _fill_input_ids(row: Row, at: int, out: np.ndarray, late: list[tuple[int, int]]) -> None:
    req, stop = row.req, row.start + row.extend_len
    known = min(stop, req.num_tokens)
    if known > row.start:
        out[at : at + known - row.start] = req.tokens[row.start : known]
    if known < stop:
        out[at + row.extend_len - 1] = 0
        late.append((at + row.extend_len - 1, req.pending_sample))


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


def _adjust_arrays(reqs: list[Req]) -> dict[str, Any]:
    """The changes of each sample's logits."""
    changes = [req.logit_changes for req in reqs]
    present = [change for change in changes if change is not None and len(change) > 0]
    if not present:
        return {}
    return {
        "adjust_indptr": indptr_of([0 if change is None else len(change) for change in changes]),
        "adjust_ids": np.concatenate([change.ids for change in present]),
        "adjust_repeat": np.concatenate([change.repeat for change in present]),
        "adjust_add": np.concatenate([change.add for change in present]),
    }


def _detail_columns(parts: list[tuple[Req, np.ndarray]]) -> dict[str, np.ndarray]:
    """The `detail_` arrays, of (who asks, detail_rows [n])."""
    counts = [len(rows) for _, rows in parts]
    num_ids = [len(req.logprob_ids) for req, _ in parts]
    return {
        "detail_rows": np.concatenate([rows for _, rows in parts]).astype(np.int32),
        "detail_top": np.repeat([req.top_logprobs for req, _ in parts], counts).astype(np.int32),
        "detail_indptr": indptr_of(np.repeat(num_ids, counts)),
        "detail_ids": np.concatenate([np.tile(req.logprob_ids, len(rows)) for req, rows in parts]),
    }


def indptr_of(lens: np.ndarray | list[int]) -> np.ndarray:
    """Where the list of each of these lengths begins, and the last one ends: int32 [n+1]."""
    return np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
