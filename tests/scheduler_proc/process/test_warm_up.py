"""The steps before the first request, and what the core learns from them."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.process.load_reports import Reports
from scheduler_proc.process.metrics import StepClock
from scheduler_proc.process.warm_up import MAX_S, PROMPT, ROWS, warm_up
from tests.scheduler_proc.fake_executor import VOCAB, FakeExecutor

SIZES = {  # as seconds of steps
    StepSize(0, 1, 0): 0.006,
    StepSize(1, 0, 0): 0.005,
    StepSize(0, ROWS * PROMPT, 0): 0.036,
    StepSize(ROWS, 0, 0): 0.012,
}
TOLD = {size: seconds for size, seconds in SIZES.items() if size.others != 1}
ROUND, COLD = 4, 2  # steps


class Slow(FakeExecutor):
    """Each step takes what SIZES says times the next of `factors`; the clock is its own."""

    def __init__(self, factors: Iterator[float], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(64, 64)
        self._factors, self._now = factors, 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now)

    def run(self, batch: ForwardBatch) -> StepResult:
        is_decode = batch.num_tokens == len(batch.sample_tokens) and batch.positions[0] > 0
        rows = len(batch.qo_indptr) - 1
        size = StepSize(rows, 0, 0) if is_decode else StepSize(0, batch.num_tokens, 0)
        self._now += SIZES[size] * next(self._factors)
        return super().run(batch)


def config(**limits: Any) -> SchedulerConfig:
    return replace(SchedulerConfig(64, 64, VOCAB), **limits)


def test_one_step_of_each_size_is_told_the_faster_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = iter([2000.0, 9.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0])
    executor = Slow(factors, monkeypatch)
    assert dict(warm_up(executor, config())) == pytest.approx(TOLD)
    assert executor.steps == COLD + 2 * ROUND


def test_a_slow_model_is_warmed_up_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(repeat(40.0), monkeypatch)
    assert {size for size, _ in warm_up(slow, config())} == set(TOLD)
    assert slow.steps == COLD + ROUND
    slowest = Slow(repeat(MAX_S / 0.005), monkeypatch)
    warm_up(slowest, config())
    assert slowest.steps == COLD + 1


@pytest.mark.parametrize(
    "limits",
    [
        {"max_running_requests": 1},
        {"max_total_tokens": 1},
        {"max_total_tokens": 8},
        {"chunked_prefill_size": 1},
        {"chunked_prefill_size": 3},
        {"vocab_size": 1},
        {"disable_radix_cache": True},
        *({"context_len": length} for length in range(1, PROMPT + 3)),
    ],
    ids=str,
)
def test_small_limits_are_kept(limits: dict[str, int]) -> None:
    executor = FakeExecutor(64, 64)
    warm_up(executor, config(**limits))
    assert executor.steps >= COLD or limits == {"max_total_tokens": 1}


def test_the_core_knows_what_steps_cost_before_the_first_request() -> None:
    core = Scheduler(config())
    Reports(
        core, StepClock(), lambda message: None, has_router=False, warm_steps=list(TOLD.items())
    )
    costs = core.costs
    assert costs is not None
    assert costs.decode_s(ROWS) == pytest.approx(0.012, rel=0.01)
    assert costs.token_s == pytest.approx((0.036 - 0.004) / (ROWS * PROMPT), rel=0.01)
