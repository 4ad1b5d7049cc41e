"""A sealed step: what the executor runs, and what its commit needs to know of each row."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.limits import NO_LIMITS, Limits
from scheduler_proc.penalties import LateChange
from scheduler_proc.req import Req, Residency


@dataclass(slots=True)
class Row:
    """One req's share of a step: tokens [start, start+extend_len) of its sequence."""

    req: Req
    residency: Residency
    start: int
    extend_len: int
    is_decode: bool
    samples: bool = False
    limits: Limits = NO_LIMITS  # what it may sample
    sample: int = -1  # index into the batch's samples; -1 if it does not sample
    logprob_start: int = 0  # position of the first known token that it scores
    num_logprobs: int = 0
    logprobs_at: int = 0  # where theirs begin among the batch's
    sample_detail: int = -1  # the sample's detail row, and the first of those of the known tokens
    known_detail: int = -1  # that it scores; -1 if its req asks for none
    is_committed: bool = False  # before the others of its step

    @property
    def logprob_stop(self) -> int:
        """The position after the last known token that it scores."""
        return self.logprob_start + self.num_logprobs

    @property
    def is_current(self) -> bool:
        """Whether the req is still in memory as it was when this row was planned."""
        return self.residency is self.req.residency


class LateTokens(NamedTuple):
    """Tokens that were not known when a step was laid out: their places `at` in its input_ids and
    the numbers of their `samples` in the step before, both int64 [n]; and the `changes` that they
    make to the next logits."""

    at: np.ndarray
    samples: np.ndarray
    changes: tuple[LateChange, ...] = ()


NO_LATE_TOKENS = LateTokens(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(slots=True)
class Step:
    """A sealed step: what the executor runs (`batch`) and what commit needs to know (`rows`).

    `finalize` fills in the `late_tokens`. Where rows may be appended, `kv_buffer` is what
    kv_indices is the beginning of.
    """

    batch: ForwardBatch
    rows: list[Row]
    late_tokens: LateTokens
    kv_buffer: np.ndarray | None = None

    @property
    def num_decodes(self) -> int:
        """Rows that decode."""
        return sum(row.is_decode for row in self.rows)

    def finalize(self, previous: StepResult | None) -> None:
        """Fill in the tokens that the step before has sampled. Needed once, before running."""
        at, samples, changes = self.late_tokens
        if len(at) > 0:
            assert previous is not None
            self.batch.input_ids[at] = previous.next_ids[samples]
            for change in changes:
                assert self.batch.adjust is not None
                change.fill_in(self.batch.adjust, int(previous.next_ids[change.sample]))
