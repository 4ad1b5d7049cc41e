"""A sealed step: what the executor runs, and what its commit needs to know of each row."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.requests.request import Req, Residency
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.sampling.penalties import LateChange
from scheduler_proc.sampling.token_rules import Limits

MOST_GUESSED = 512  # tokens of a step: each has a sample, whose logits take memory


class Origin(NamedTuple):
    """Where a guess comes from: the name of its source, and the length of the match there."""

    source: str
    match_len: int


class Follows(NamedTuple):
    """What a row may sample after its last known token, and after each token of the `draft`, which
    it guesses: one of `limits` for each, or anything if that is empty."""

    draft: list[int]
    limits: tuple[Limits, ...] = ()
    origin: Origin | None = None


ANYTHING = Follows([])


@dataclass(slots=True)
class Row:
    """One req's share of a step: tokens [start, start+extend_len) of its sequence."""

    req: Req
    residency: Residency
    start: int
    extend_len: int
    is_decode: bool
    num_samples: int = 0  # one at its last known token, and one at each that is guessed
    limits: tuple[Limits, ...] = ()  # what each of them may be; empty: anything
    draft: list[int] = field(default_factory=list)  # the last of its tokens, guessed
    origin: Origin | None = None  # of the guess
    sample: int = -1  # index of the first among the batch's samples; -1 if there is none
    logprob_start: int = 0  # position of the first known token that it scores
    num_logprobs: int = 0
    logprobs_at: int = 0  # where theirs begin among the batch's
    sample_detail: int = -1  # first detail row of its samples, and of the known tokens that it
    known_detail: int = -1  # scores; -1 if its req asks for none
    is_committed: bool = False  # before the others of its step

    @property
    def samples(self) -> bool:
        """Whether it samples at all."""
        return self.num_samples > 0

    @property
    def num_known(self) -> int:
        """Its tokens that are not guessed, those that are still being sampled included."""
        return self.extend_len - len(self.draft)

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


# What a step computes: decodes alone, of which rows may verify guessed tokens, parts of prompts
# alone, or both.
STEP_KINDS = ("decode", "verify", "prefill", "mixed")


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

    @property
    def size(self) -> StepSize:
        """What it computes."""
        decodes, drafted = self.num_decodes, sum(len(row.draft) for row in self.rows)
        return StepSize(decodes, len(self.batch.input_ids) - decodes - drafted, drafted)

    @property
    def kind(self) -> str:
        """One of STEP_KINDS."""
        decodes = self.num_decodes
        if decodes == len(self.rows):
            return "verify" if any(row.draft for row in self.rows) else "decode"
        return "mixed" if decodes else "prefill"

    def finalize(self, previous: StepResult | None) -> None:
        """Fill in the tokens that the step before has sampled. Needed once, before running."""
        at, samples, changes = self.late_tokens
        if len(at) > 0:
            assert previous is not None
            self.batch.input_ids[at] = previous.next_ids[samples]
            for change in changes:
                assert self.batch.adjust is not None
                change.fill_in(self.batch.adjust, int(previous.next_ids[change.sample]))
