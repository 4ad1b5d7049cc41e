"""The scheduler's statistics: what guessing tokens did; and the clock of the steps: what counts as
time in which requests waited for the scheduler.
"""

import logging
from typing import Any

import msgspec
import numpy as np
import pytest

from scheduler_proc.core.steps.step import STEP_KINDS
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.executor.base import ExpertCounter
from scheduler_proc.process.construction import core_config, speculative
from scheduler_proc.process.metrics import (
    EXPERTS_INTERVAL_S,
    EXPERTS_WINDOW_S,
    LOG_INTERVAL_S,
    ExpertLoad,
    StatsLog,
    StepClock,
    stats_of,
)
from srt.args import ServerArgs
from srt.wire.filled_params import FilledParams
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor


def test_drafts_are_counted_by_source() -> None:
    driver = Driver(max_total_tokens=100)
    driver.core.state.counters.verified("own", 4, 3)
    driver.core.state.counters.verified("own", 2, 0)
    driver.core.state.counters.verified("tree", 8, 8)
    driver.core.state.counters.verified("a test's", 1, 1)
    stats = stats_of(driver.core, driver.executor, StepClock(), ExpertLoad(driver.executor))
    names = ("own", "tree", "seen", "prediction")
    assert [stats[f"drafted_tokens_{name}_total"] for name in names] == [6, 8, 0, 0]
    assert [stats[f"accepted_draft_tokens_{name}_total"] for name in names] == [3, 8, 0, 0]
    assert stats["verified_drafts_total"] == 4


def test_steps_are_counted_by_kind() -> None:
    driver = Driver(max_total_tokens=200, chunked_prefill_size=8)
    driver.add("first", list(range(3, 9)), max_new=6)
    for _ in range(3):
        driver.step()
    driver.add("second", list(range(20, 40)), max_new=3)
    driver.run()
    stats = stats_of(driver.core, driver.executor, StepClock(), ExpertLoad(driver.executor))
    counts = {kind: stats[f"{kind}_steps_total"] for kind in STEP_KINDS}
    assert counts["prefill"] >= 1 and counts["mixed"] >= 2 and counts["decode"] >= 2
    assert counts["verify"] == 0 and sum(counts.values()) == stats["forward_steps_total"]


def test_the_log_has_the_accept_length_while_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(max_total_tokens=100)
    lines = StatsLog(driver.core, ExpertLoad(driver.executor))
    with caplog.at_level(logging.INFO):
        for i, accepted in enumerate((None, 3, None)):
            lines.tick(1.0 + i * LOG_INTERVAL_S)
            if accepted is not None:
                driver.core.state.counters.verified("own", 4, accepted)
                driver.core.state.counters.verified("seen", 4, 0)
        lines.tick(1.0 + 3 * LOG_INTERVAL_S)
    told = [record.getMessage().rpartition("used")[2] for record in caplog.records]
    assert told == ["", ", accept length 2.50", ""]


def test_the_core_has_the_options() -> None:
    args = ServerArgs(speculative="tree", speculative_max_tokens=3)
    config = core_config(args, Driver(max_total_tokens=100).executor)
    assert (config.speculative, config.speculative_max_tokens) == ("tree", 3)


@pytest.mark.parametrize(
    ("options", "hashed"), [({}, None), ({"dp": 2}, "f"), ({"kv_events": "ipc:///events"}, "f")]
)
def test_blocks_are_named_by_the_models_fingerprint(
    options: dict[str, Any], hashed: str | None
) -> None:
    """Not by where its files lie; and not at all where nobody asks."""
    args = ServerArgs(model="/some/path", fingerprint="f", **options)
    assert core_config(args, Driver(max_total_tokens=100).executor).block_model == hashed


def test_what_is_guessed_by_default() -> None:
    assert speculative(ServerArgs()) == "auto"
    for without in (ServerArgs(deterministic=True), ServerArgs(device="cuda:0")):
        assert speculative(without) == "off"
        assert speculative(msgspec.structs.replace(without, speculative="own")) == "own"


def test_the_time_between_steps_counts_unless_there_was_nothing_to_do() -> None:
    clock = StepClock()
    clock.begin(10.0)  # the first step: nothing before it
    clock.end(11.0)
    clock.begin(11.25)
    clock.end(12.25)
    assert (clock.step_s, clock.exposed_s) == (2.0, 0.25)
    clock.rest()
    clock.begin(20.0)
    clock.end(20.5)
    assert (clock.step_s, clock.exposed_s) == (2.5, 0.25)


def test_steps_are_noted_with_the_time_before_them() -> None:
    clock, size = StepClock(), StepSize(decodes=2, drafted=5)
    for begin in (10.0, 11.5):
        clock.begin(begin)
        clock.end(begin + 1.0, size)
    clock.begin(13.0)
    clock.end(14.0)  # failed
    assert list(clock.steps) == [(size, 1.0), (size, 1.5)]


def test_guesses_are_no_tokens_of_prompts() -> None:
    driver = Driver(max_total_tokens=100)
    driver.add("decodes", [1, 2], 9, sampling=FilledParams())
    driver.step()
    driver.add("begins", [3, 4, 5], 9)
    plan = driver.core.prepare(0.0)
    assert plan is not None
    step = driver.core.seal(plan)
    assert step is not None
    assert step.size == StepSize(decodes=1, others=3)
    step.rows[0].draft = [7, 8]
    step.batch.input_ids = np.append(step.batch.input_ids, np.array([7, 8], np.int32))
    assert step.size == StepSize(decodes=1, others=3, drafted=2)
    assert step.size.tokens == step.batch.num_tokens


class Counting(FakeExecutor, ExpertCounter):
    """A fake model that says which experts its tokens have used."""

    def __init__(self, *rows: list[int]) -> None:
        super().__init__(10, 10)
        self.totals = np.array(rows, np.int64)

    def _count_experts(self) -> np.ndarray:
        return self.totals.copy()


def test_the_busiest_expert_of_any_layer() -> None:
    """The second layer has a MLP, and in the last one half of the tokens went to one of four."""
    executor = Counting([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0])
    load = ExpertLoad(executor)
    assert load.max_over_mean == 0.0
    load.tick(100.0)
    assert load.max_over_mean == 0.0
    executor.totals[0] += [5, 5, 5, 5]
    executor.totals[2] += [10, 5, 5, 0]
    load.tick(100.0 + EXPERTS_INTERVAL_S / 2)
    assert load.max_over_mean == 0.0, "not counted yet"
    load.look()
    assert load.max_over_mean == 2.0
    stats = stats_of(Driver(max_total_tokens=10).core, executor, StepClock(), load)
    assert stats["expert_load_max_over_mean"] == 2.0


def test_expert_load_forgets_what_is_older_than_the_window() -> None:
    executor = Counting([0, 0])
    load, now = ExpertLoad(executor), 0.0
    load.tick(now)
    executor.totals[0] += [90, 10]
    for _ in range(int(EXPERTS_WINDOW_S / EXPERTS_INTERVAL_S)):
        now += EXPERTS_INTERVAL_S
        executor.totals[0] += [1, 1]
        load.tick(now)
    assert load.max_over_mean > 1.5
    load.tick(now + EXPERTS_INTERVAL_S)
    assert load.max_over_mean == 1.0


def test_a_model_without_experts_has_no_load() -> None:
    driver = Driver(max_total_tokens=100)
    load = ExpertLoad(driver.executor)
    load.tick(1.0)
    assert load.max_over_mean == 0.0
