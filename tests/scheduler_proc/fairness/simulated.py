"""Callers that share one scheduler core, in virtual time: an executor that only takes time, as in
`bench.hit_rate`, and a front that keeps at most `QUEUED` reqs waiting.

Like the front, it drops the newest waiting req of the caller with most when the queue is full.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bench.hit_rate.simulator import StepCost
from bench.scheduler import null_result
from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.core.planning_time import PlanningTime, delay_s
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_target import StepCosts
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import Abort, TokenizedReq

VOCAB = 32000
QUEUED = 1024
COST = StepCost()


class Asked(NamedTuple):
    """A req that comes at `at_s`."""

    at_s: float
    caller: str
    prompt: np.ndarray  # int32 [length]
    outputs: int = 16
    weight: float = 1.0


class Served(NamedTuple):
    """What became of a req: when it was admitted, had its first token, and ended; None if not."""

    asked: Asked
    first_s: float | None
    ended_s: float | None
    cached: int

    @property
    def ttft_s(self) -> float:
        assert self.first_s is not None
        return self.first_s - self.asked.at_s


class Outcome(NamedTuple):
    """A run's figures."""

    served: list[Served]
    tokens: Counter[str]  # by caller: computed prompt tokens and outputs, as they are charged
    seconds: float
    longest_step_s: float
    mean_step_s: float
    retracted: int

    def of(self, caller: str) -> list[Served]:
        return [one for one in self.served if one.asked.caller == caller]

    def answered(self, caller: str) -> float:
        """The share of the caller's reqs that have ended."""
        own = self.of(caller)
        return sum(one.ended_s is not None for one in own) / len(own)

    def ttfts_s(self, caller: str) -> list[float]:
        return sorted(one.ttft_s for one in self.of(caller) if one.first_s is not None)

    def hit_rate(self, caller: str) -> float:
        """The share of the caller's prompt tokens that were cached."""
        own = [one for one in self.of(caller) if one.first_s is not None]
        return sum(one.cached for one in own) / sum(len(one.asked.prompt) for one in own)


def poisson(
    seed: str,
    caller: str,
    rate: float,
    until_s: float,
    prompt_of: Callable[[random.Random], np.ndarray],
    outputs: int = 16,
    weight: float = 1.0,
) -> list[Asked]:
    """Reqs at random times, `rate` of them a second."""
    rng, now, asked = random.Random(f"{seed} {caller}"), 0.0, []
    while (now := now + rng.expovariate(rate)) < until_s:
        asked.append(Asked(now, caller, prompt_of(rng), outputs, weight))
    return asked


def unique(length: int) -> Callable[[random.Random], np.ndarray]:
    """Prompts of that length with nothing in common."""

    def prompt(rng: random.Random) -> np.ndarray:
        return np.random.default_rng(rng.getrandbits(32)).integers(1, VOCAB, length, np.int32)

    return prompt


class Shared:
    """One run of a core."""

    def __init__(
        self,
        config: SchedulerConfig,
        cost: StepCost = COST,
        *,
        has_callers: bool = True,
        check: bool = False,
    ) -> None:
        self.core = Scheduler(config)
        self.core.measure(StepCosts(cost.step_s, cost.row_s, cost.token_s, cost.row_s))
        self.planning = PlanningTime(self.core.state)
        self.cost = cost
        self.has_callers, self.check = has_callers, check
        self.now = 0.0
        self.first: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.cached: dict[str, int] = {}
        self.admitted: list[str] = []  # rids, in this order
        self.waiting: dict[str, dict[str, None]] = defaultdict(dict)  # rids by caller
        self.tokens = Counter[str]()
        self._rids: dict[int, str] = {}
        self._callers: dict[str, str] = {}

    def run(self, asked: Sequence[Asked], until_s: float = float("inf")) -> Outcome:
        """Run until all reqs have ended, or that time has come."""
        asked = sorted(asked, key=lambda one: one.at_s)
        running: Step | None = None
        number, longest_s = 0, 0.0
        while self.now < until_s:
            if running is None and not self.core.has_work:
                if number == len(asked):
                    break
                self.now = max(self.now, asked[number].at_s)
            planned_s = self.now + self._delay_s(running)
            while number < len(asked) and asked[number].at_s <= planned_s:
                self._add(str(number), asked[number])
                number += 1
            plan = self.core.prepare(planned_s)
            step = None if plan is None else self.core.seal(plan)
            if step is not None:
                step.finalize(None if running is None else null_result(running.batch))
            if running is not None:
                seconds = self.cost.of(running)
                longest_s = max(longest_s, seconds)
                self.now += seconds
                self.core.commit(running, null_result(running.batch))
            running = step
            self._collect()
            if self.check:
                check_invariants(self.core)
        served = [
            Served(one, self.first.get(rid), self.ended.get(rid), self.cached.get(rid, 0))
            for rid, one in ((str(i), one) for i, one in enumerate(asked[:number]))
        ]
        retracted = self.core.state.counters.retracted
        mean_s = self.now / max(1, self.core.state.counters.forward_steps)
        return Outcome(served, self.tokens, self.now, longest_s, mean_s, retracted)

    def _delay_s(self, running: Step | None) -> float:
        """When the next step is planned, after the start of the one that runs."""
        if running is None or not self.planning.is_late(self.now):
            return 0.0
        return delay_s(running.size, self.core.costs)

    def _add(self, rid: str, asked: Asked) -> None:
        sampling = FilledParams(max_new_tokens=asked.outputs, temperature=0.0)
        wire = TokenizedReq(
            b"c",
            rid,
            0,
            pack_ids(asked.prompt),
            sampling,
            stream=True,
            caller=asked.caller if self.has_callers else "",
            weight=asked.weight,
        )
        self.core.add(wire, asked.at_s)
        self.waiting[asked.caller][rid] = None
        self._callers[rid] = asked.caller
        if sum(map(len, self.waiting.values())) > QUEUED:
            most = max(self.waiting.values(), key=len)
            newest = next(reversed(most))
            del most[newest]
            self.core.abort(Abort(b"c", newest, 0))
            self._callers.pop(newest)

    def _collect(self) -> None:
        batch = self.core.take_output(self.now)
        if batch is None:
            return
        for start in batch.starts:
            self.admitted.append(start.rid)
            self._rids[start.handle] = start.rid
            self.waiting.get(self._callers.get(start.rid, ""), {}).pop(start.rid, None)
            cached = self.cached.setdefault(start.rid, start.meta.cached_tokens or 0)
            if start.rid in self._callers:
                self.tokens[self._callers[start.rid]] += (start.meta.prompt_tokens or 0) - cached
        for handle in batch.firsts:
            self.first.setdefault(self._rids[handle], self.now)
        for handle, count in zip(batch.handles, batch.counts, strict=True):
            self.tokens[self._callers[self._rids[handle]]] += count
        for end in batch.ends:
            rid = self._rids[end.handle]
            if end.finish.type != "abort":
                self.ended[rid] = self.now
