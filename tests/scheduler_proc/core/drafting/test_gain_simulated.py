"""Drafts of measured length against those of every fixed one, by simulated seconds: the costs are
learned from noisy steps meanwhile, and so is how often guesses are right."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from scheduler_proc.core.drafting.gain import Acceptance, Candidate, Pauses, lengths
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import CostMeter, StepCosts

MOST, FIXED = 8, (0, 1, 2, 4, 8)
NOISE = 0.1  # of a step's seconds, up to
STALLS, STALLED = 0.02, 5.0  # the share of steps that the machine stood still in, and how much
PROMPT = 100
# Milliseconds. "avx2" is as measured there; "late" a GPU, where a late layout costs most.
COSTS = {
    "memory bound": StepCosts(7.7, 0.3, 0.3, 0.3),
    "compute bound": StepCosts(1.0, 3.0, 3.0, 3.0),
    "avx2": StepCosts(6.5, 2.5, 1.6, 2.2, 0.5),
    "late": StepCosts(5.0, 0.02, 0.02, 0.02, 0.5),
}
CHANCES = ("0.05", "0.2", "0.4", "0.6", "0.8", "0.95")
SWITCHES = 300  # tokens, after which text that can be guessed follows what cannot, and vice versa


def chance_at(process: str, row: int, position: int) -> float:
    """How likely a guess at this position of an output is right."""
    if process == "mixed":
        return (0.05, 0.5, 0.95)[row % 3]
    if process == "switches":
        return (0.95, 0.05)[position // SWITCHES % 2]
    return float(process)


class Batch:
    """Rows that decode for ever, with a guess at each position."""

    def __init__(self, costs: StepCosts, process: str, rows: int, seed: int) -> None:
        self._costs, self._process = costs, process
        self._noise = random.Random(seed)
        self._right = [random.Random(f"{seed} {row}") for row in range(rows)]
        self._known: list[list[bool]] = [[] for _ in range(rows)]
        self.rows, self.outputs, self.seconds = rows, [0] * rows, 0.0

    def step(self, drafted: list[int]) -> tuple[list[int], float]:
        """How many guesses of each row were right, and the seconds as measured."""
        costs = self._costs
        seconds = costs.decode_s(self.rows) + costs.draft_s * sum(drafted)
        seconds += costs.drafting_s if any(drafted) else 0.0
        self.seconds += seconds
        accepted = [self._accept(row, k) for row, k in enumerate(drafted)]
        noise = self._noise.uniform(1 - NOISE, 1 + NOISE)
        if self._noise.random() < STALLS:
            noise *= STALLED
        return accepted, seconds * noise

    def _accept(self, row: int, drafted: int) -> int:
        accepted = 0
        while accepted < drafted and self._is_right(row, self.outputs[row] + accepted):
            accepted += 1
        self.outputs[row] += accepted + 1
        return accepted

    def _is_right(self, row: int, position: int) -> bool:
        known = self._known[row]
        while len(known) <= position:
            chance = chance_at(self._process, row, len(known))
            known.append(self._right[row].random() < chance)
        return known[position]


class ByGain:
    """Chooses the lengths as the core does."""

    def __init__(self, costs: StepCosts, rows: int) -> None:
        self._acceptance, self._pauses, self._meter = Acceptance(), Pauses(), CostMeter()
        self._rows, self._step = rows, 0
        self._meter.add(StepSize(others=PROMPT), costs.base_s + PROMPT * costs.token_s)
        self._costs = self._meter.news()

    def choose(self) -> list[int]:
        costs, rows, acceptance = self._costs, range(self._rows), self._acceptance
        if self._pauses.is_due(self._rows):
            return [0] * self._rows
        assert costs is not None
        candidates = [Candidate(acceptance.reach(row, "own", 4, MOST)) for row in rows]
        paying = lengths(costs, self._rows, candidates)
        for row in rows:
            if paying[row] == 0 and acceptance.is_due(
                costs, self._rows, row, candidates[row], self._step
            ):
                candidates[row] = candidates[row]._replace(least=1)
        return lengths(costs, self._rows, candidates)

    def learn(self, drafted: list[int], accepted: list[int], seconds: float) -> None:
        size = StepSize(self._rows, 0, sum(drafted))
        self._pauses.ran(size)
        self._meter.add(size, seconds)
        self._costs = self._meter.news() or self._costs
        for row, k in enumerate(drafted):
            if k > 0:
                self._acceptance.verified(row, "own", 4, k, accepted[row], self._step)
        self._step += 1


def speed(batch: Batch, outputs: int, choose: Callable[[], list[int]]) -> float:
    """Tokens per second until there are so many of each row on average."""
    while sum(batch.outputs) < outputs * batch.rows:
        batch.step(choose())
    return sum(batch.outputs) / batch.seconds


def speed_by_gain(batch: Batch, outputs: int, costs: StepCosts) -> float:
    gain = ByGain(costs, batch.rows)
    while sum(batch.outputs) < outputs * batch.rows:
        drafted = gain.choose()
        gain.learn(drafted, *batch.step(drafted))
    return sum(batch.outputs) / batch.seconds


@cache
def speeds(kind: str, process: str, rows: int, seed: int) -> tuple[float, float, float]:
    """By gain, without drafts, and with the best fixed length."""
    costs = StepCosts(*(ms / 1000 for ms in COSTS[kind]))
    outputs = 1200 if rows == 1 else 400
    fixed = [
        speed(Batch(costs, process, rows, seed), outputs, lambda k=k: [k] * rows)  # type: ignore[misc]
        for k in FIXED
    ]
    return speed_by_gain(Batch(costs, process, rows, seed), outputs, costs), fixed[0], max(fixed)


def forms(*processes: str) -> list[Any]:
    """Costs with what is guessed; in short each of both, but not all combinations."""
    return [
        pytest.param(kind, process, marks=[] if number % len(COSTS) == place else pytest.mark.full)
        for place, kind in enumerate(COSTS)
        for number, process in enumerate(processes)
    ]


# The bounds hold on average: they would not for any seed.
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(("kind", "process"), forms(*CHANCES, "switches"))
def test_one_request_is_nearly_as_fast_as_with_the_best_length(
    kind: str, process: str, seed: int
) -> None:
    by_gain, without, best = speeds(kind, process, 1, seed)
    assert by_gain >= 0.98 * without
    assert by_gain >= 0.95 * best


@pytest.mark.parametrize(("kind", "process"), forms("0.05", "0.4", "0.95", "mixed"))
def test_so_is_a_batch(kind: str, process: str) -> None:
    by_gain, without, best = speeds(kind, process, 16, 0)
    assert by_gain >= 0.98 * without
    assert by_gain >= 0.95 * best
