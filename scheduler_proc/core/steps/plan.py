"""A step before its arrays are laid out: the rows that the scheduler chose."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain

from scheduler_proc.core.requests.request import Pending, Req
from scheduler_proc.core.requests.sampling_table import SamplingTable
from scheduler_proc.core.steps.batch_concat import joined
from scheduler_proc.core.steps.batch_layout import lay_out
from scheduler_proc.core.steps.prelaid import Guess
from scheduler_proc.core.steps.step import ANYTHING, Follows, Row, Step
from scheduler_proc.memory.pools import ReqToTokenPool

APPENDED = 16  # room for this many tokens of a deferred row, beyond those of its req


@dataclass(slots=True)
class Plan:
    """A step that rows can still be added to. Their slots are in the req's table row already.

    `deferred` are reqs whose row depends on the result of the step that runs now: the plan can be
    sealed only when their rows of that have been committed. Without any it can be sealed at once.
    `ahead` are the other rows, if they have been laid out meanwhile, and `guess` these and the rows
    that the deferred reqs are expected to have. `awaited` are the rows of the step that runs, from
    which those tokens come. Of the reqs with the handles `guessed`, a row may hold guessed tokens,
    of which `trials` at least are to be.
    """

    table: ReqToTokenPool
    sampling: SamplingTable
    rows: list[Row] = field(default_factory=list)
    deferred: list[Req] = field(default_factory=list)
    num_tokens: int = 0
    ahead: Step | None = None
    guess: Guess | None = None
    awaited: list[Row] = field(default_factory=list)
    guessed: Collection[int] = ()
    trials: int = 0

    @property
    def has_lost_rows(self) -> bool:
        """Whether a req whose row is laid out has ended or lost its memory since. The row is run
        all the same: until then nobody else may get its slots."""
        return self.ahead is not None and not all(row.is_current for row in self.ahead.rows)

    @property
    def num_decodes(self) -> int:
        """Rows that decode, those that are laid out included."""
        ahead = 0 if self.ahead is None else self.ahead.num_decodes
        return ahead + sum(row.is_decode for row in self.rows)

    @property
    def num_prompts(self) -> int:
        """Rows of prompts, those that are laid out included, but of none ahead of time."""
        return sum(not (row.is_decode or row.req.wish.is_ahead) for row in self._all_rows())

    @property
    def num_drafted(self) -> int:
        """Guessed tokens of all rows, those that are laid out included."""
        return sum(len(row.draft) for row in self._all_rows())

    @property
    def num_ahead(self) -> int:
        """Tokens of prompts ahead of time, for which nothing else is to have less room."""
        return sum(row.extend_len for row in self._all_rows() if row.req.wish.is_ahead)

    def _all_rows(self) -> Iterator[Row]:
        return chain(() if self.ahead is None else self.ahead.rows, self.rows)

    def add(self, req: Req, num_known: int, is_decode: bool, follows: Follows = ANYTHING) -> Row:
        """Plan the req's next `num_known` tokens. If they are all that is left it samples, within
        what `follows` allows, and the tokens guessed there are extended too."""
        held, draft = req.held, follows.draft
        extend_len = num_known + len(draft)
        row = Row(req, held, held.kv_len, extend_len, is_decode, limits=follows.limits, draft=draft)
        row.origin = follows.origin
        held.kv_len += extend_len
        held.num_drafted = len(draft)
        if req.pending is not None:
            _plan_logprobs(row, req.pending)
        if held.kv_len - len(draft) == req.tokens.seq_len and req.remaining > 0:
            row.num_samples = 1 + len(draft)
        self.rows.append(row)
        self.num_tokens += extend_len
        return row

    def drop_ended(self) -> None:
        """Forget the rows of reqs that have ended or lost their memory since they were planned:
        their slots may have new owners."""
        rows = [row for row in self.rows if row.residency is row.req.residency]
        if len(rows) < len(self.rows):
            self.num_tokens -= sum(row.extend_len for row in self.rows)
            self.num_tokens += sum(row.extend_len for row in rows)
            self.rows = rows

    def seal_ahead(self, running: Step) -> None:
        """Lay out the rows so far; those that are added from now on, when the tokens that the
        `running` step samples for the deferred reqs are known, come after them."""
        handles = {req.handle for req in self.deferred}
        self.awaited = [row for row in running.rows if row.req.handle in handles]
        if self.rows:
            self.ahead = self._laid_out(sum(req.tokens.seq_len + APPENDED for req in self.deferred))
            _mark_pending(self.rows)
            self.rows = []
        self.guess = Guess.of(self.ahead, self.deferred, self.table, self.sampling)
        if self.guess is not None and handles.isdisjoint(self.guessed):
            self.guess.expect(self.awaited)

    def seal(self) -> Step:
        """Lay out the batch and mark the sampled tokens as pending. At least one row is needed."""
        if not self.rows:
            assert self.ahead is not None
            return self.ahead
        step = None if self.guess is None else self.guess.completed(self.rows)
        if step is None:
            step = self._laid_out()
            step = step if self.ahead is None else joined(self.ahead, step)
        _mark_pending(self.rows)
        return step

    def _laid_out(self, kv_room: int = 0) -> Step:
        return lay_out(self.rows, self.table, self.sampling, kv_room)


def _plan_logprobs(row: Row, pending: Pending) -> None:
    """Position p's log-probability comes from the logits of token p-1."""
    stop = min(row.start + row.extend_len + 1, pending.stop)
    if row.start < pending.start < stop:
        row.logprob_start = pending.start
        row.num_logprobs = stop - pending.start
        pending.start = stop


def _mark_pending(rows: list[Row]) -> None:
    for row in rows:
        if row.samples:
            tokens = row.req.tokens
            tokens.seq_len += 1
            tokens.late_sample = row.sample
