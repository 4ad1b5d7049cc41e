"""The scheduler's statistics: what guessing tokens did."""

import logging

import msgspec
import pytest

from scheduler_proc.core.steps.step import STEP_KINDS
from scheduler_proc.process.construction import core_config, speculative
from scheduler_proc.process.metrics import LOG_INTERVAL_S, StatsLog, stats_of
from scheduler_proc.process.step_clock import StepClock
from srt.args import ServerArgs
from tests.scheduler_proc.driver import Driver


def test_drafts_are_counted_by_source() -> None:
    driver = Driver(max_total_tokens=100)
    driver.core.counters.verified("own", 4, 3)
    driver.core.counters.verified("own", 2, 0)
    driver.core.counters.verified("tree", 8, 8)
    driver.core.counters.verified("a test's", 1, 1)
    stats = stats_of(driver.core, driver.executor, StepClock())
    names = ("own", "tree", "seen")
    assert [stats[f"drafted_tokens_{name}_total"] for name in names] == [6, 8, 0]
    assert [stats[f"accepted_draft_tokens_{name}_total"] for name in names] == [3, 8, 0]
    assert stats["verified_drafts_total"] == 4


def test_steps_are_counted_by_kind() -> None:
    driver = Driver(max_total_tokens=200, chunked_prefill_size=8)
    driver.add("first", list(range(3, 9)), max_new=6)
    for _ in range(3):
        driver.step()
    driver.add("second", list(range(20, 40)), max_new=3)
    driver.run()
    stats = stats_of(driver.core, driver.executor, StepClock())
    counts = {kind: stats[f"{kind}_steps_total"] for kind in STEP_KINDS}
    assert counts["prefill"] >= 1 and counts["mixed"] >= 2 and counts["decode"] >= 2
    assert counts["verify"] == 0 and sum(counts.values()) == stats["forward_steps_total"]


def test_the_log_has_the_accept_length_while_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(max_total_tokens=100)
    lines = StatsLog(driver.core)
    with caplog.at_level(logging.INFO):
        for i, accepted in enumerate((None, 3, None)):
            lines.tick(1.0 + i * LOG_INTERVAL_S)
            if accepted is not None:
                driver.core.counters.verified("own", 4, accepted)
                driver.core.counters.verified("seen", 4, 0)
        lines.tick(1.0 + 3 * LOG_INTERVAL_S)
    told = [record.getMessage().rpartition("used")[2] for record in caplog.records]
    assert told == ["", ", accept length 2.50", ""]


def test_the_core_has_the_options() -> None:
    args = ServerArgs(speculative="tree", speculative_max_tokens=3)
    config = core_config(args, Driver(max_total_tokens=100).executor)
    assert (config.speculative, config.speculative_max_tokens) == ("tree", 3)


def test_what_is_guessed_by_default() -> None:
    assert speculative(ServerArgs()) == "auto"
    for without in (ServerArgs(deterministic=True), ServerArgs(device="cuda:0")):
        assert speculative(without) == "off"
        assert speculative(msgspec.structs.replace(without, speculative="own")) == "own"
