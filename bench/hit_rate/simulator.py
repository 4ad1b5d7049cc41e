"""A server without a model: the real scheduler core, an executor that only takes time, and a clock
that jumps from step to step.

The time of a step is linear in what it computes. The default costs are those of a small model on
two cores without AVX-512: 0.4 s for a chunk of 512 prompt tokens, 0.1 s for 64 decoding requests.
Like the real one, the server plans a step while the previous one runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.hit_rate.families import OUTPUT_TOKEN, VOCAB, Prompt
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step import Step
from srt.args import ServerArgs
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

DEFAULTS = ServerArgs()
UNBOUNDED_S = 1e9


@dataclass(frozen=True)
class StepCost:
    """Seconds: of each step, of each row that decodes, of each prompt token computed."""

    step_s: float = 0.005
    row_s: float = 0.0015
    token_s: float = 0.0008

    def times(self, factor: float) -> "StepCost":
        """Those of a machine that takes so many times as long."""
        return StepCost(factor * self.step_s, factor * self.row_s, factor * self.token_s)

    def of(self, step: Step) -> float:
        decodes = sum(row.is_decode for row in step.rows)
        return self.step_s + decodes * self.row_s + self.token_s * (step.batch.num_tokens - decodes)


@dataclass(frozen=True)
class Setting:
    """What a run varies; everything else is as in the server's default options."""

    pool: int  # tokens
    policy: str = "lpm"
    max_wait_s: float = DEFAULTS.schedule_max_wait
    outputs: int = 16  # of each request, tokens
    cost: StepCost = StepCost()

    def config(self) -> SchedulerConfig:
        return SchedulerConfig(
            max_total_tokens=self.pool,
            context_len=8192,
            vocab_size=VOCAB,
            max_running_requests=DEFAULTS.max_running_requests,
            chunked_prefill_size=DEFAULTS.chunked_prefill_size,
            schedule_policy=self.policy,
            max_wait_s=self.max_wait_s,
        )


@dataclass
class Outcome:
    """A run's figures. Times in seconds since the first arrival; reqs by number."""

    arrived_s: list[float]
    admitted_s: list[float] = field(default_factory=list)
    order: list[int] = field(default_factory=list)  # of admission
    events: list[int] = field(default_factory=list)  # i: the i-th req is admitted; ~i: it ends
    reused: int = 0  # prompt tokens that were not computed
    seconds: float = 0.0
    steps: int = 0
    retracted: int = 0

    @property
    def waits_s(self) -> list[float]:
        return [b - a for a, b in zip(self.arrived_s, self.admitted_s, strict=True)]

    @property
    def worst_overtaking_s(self) -> float:
        """The most by which a req arrived later than one that was admitted after it."""
        arrived = np.array(self.arrived_s)[self.order]
        return float(np.max(np.maximum.accumulate(arrived) - arrived))


class Simulator:
    """One run: `prompts[i]` arrives at `arrived_s[i]`, ascending."""

    def __init__(
        self, prompts: Sequence[Prompt], arrived_s: Sequence[float], setting: Setting
    ) -> None:
        longest = max(len(prompt) for prompt in prompts) + setting.outputs
        if longest > setting.pool:
            raise ValueError(f"a request of {longest} tokens never fits into {setting.pool}")
        self.core = Scheduler(setting.config())
        self._setting = setting
        self._prompts = prompts
        self._now = 0.0
        self._num_arrived = 0
        self._indices: dict[int, int] = {}  # handle -> number
        self._last_tokens = 0  # computed for the logits of wholly cached prompts
        self._outcome = Outcome(list(arrived_s), [0.0] * len(prompts))

    def run(self) -> Outcome:
        """Run until all requests have ended."""
        running: Step | None = None
        while running is not None or self._has_more():
            self._arrive()
            planned_s = self._now
            plan = self.core.prepare(self._now)
            step = None if plan is None else self.core.seal(plan)
            if step is not None:
                step.finalize(None if running is None else _result(running.batch))
            if running is not None:
                self._now += self._setting.cost.of(running)
                self.core.commit(running, _result(running.batch))
            running = step
            self._collect(planned_s)
        return self._finished()

    def _has_more(self) -> bool:
        """Whether there is work, now or later; if later, advance the clock to it."""
        if not self.core.has_work and self._num_arrived < len(self._prompts):
            self._now = max(self._now, self._outcome.arrived_s[self._num_arrived])
        return self.core.has_work or self._num_arrived < len(self._prompts)

    def _arrive(self) -> None:
        arrived_s = self._outcome.arrived_s
        while self._num_arrived < len(arrived_s) and arrived_s[self._num_arrived] <= self._now:
            index = self._num_arrived
            ids = pack_ids(self._prompts[index])
            sampling = FilledParams(max_new_tokens=self._setting.outputs, temperature=0.0)
            wire = TokenizedReq(b"client", str(index), 0, ids, sampling)
            self.core.add(wire, arrived_s[index])
            self._num_arrived += 1

    def _collect(self, planned_s: float) -> None:
        batch, outcome = self.core.take_output(self._now), self._outcome
        if batch is None:
            return
        # Within one step, memory is given back before it is allocated.
        outcome.events += [~self._indices[end.handle] for end in batch.ends]
        for start in batch.starts:
            index = self._indices[start.handle] = int(start.rid)
            outcome.order.append(index)
            outcome.events.append(index)
            outcome.admitted_s[index] = planned_s
            self._last_tokens += start.meta.cached_tokens == len(self._prompts[index]) - 1

    def _finished(self) -> Outcome:
        outcome, counters = self._outcome, self.core.state.counters
        total = sum(len(prompt) for prompt in self._prompts)
        outcome.reused = total - counters.computed_prompt_tokens + self._last_tokens
        outcome.seconds, outcome.steps = self._now, counters.forward_steps
        outcome.retracted = counters.retracted
        return outcome


def _result(batch: ForwardBatch) -> StepResult:
    samples = len(batch.sample_tokens)
    return StepResult(
        np.full(samples, OUTPUT_TOKEN, np.int32),
        np.full(samples, np.nan, np.float32),
        np.zeros(len(batch.logprob_tokens), np.float32),
    )


def simulate(prompts: Sequence[Prompt], arrived_s: Sequence[float], setting: Setting) -> Outcome:
    """Run `prompts`, which arrive at these times (ascending), to their end."""
    return Simulator(prompts, arrived_s, setting).run()
