"""Requests whose deadline passes, in the queue or later. A driver's step takes 0.01 s."""

from pathlib import Path

import msgspec
import pytest

from scheduler_proc.trace.recorded import replay
from srt.wire.errors import TIMED_OUT
from srt.wire.messages import Finish
from srt.wire.pause import NO_PAUSE
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output


@pytest.mark.parametrize("lag", [0, 1])
def test_one_that_runs_ends_with_what_it_has(lag: int) -> None:
    driver = Driver(lag, max_total_tokens=500)
    driver.add("timed", [1, 2, 3], max_new=100, deadline=0.1)
    driver.add("other", [4, 5, 6], max_new=40)
    driver.run()
    assert driver.finishes["timed"] == Finish("timeout")
    outputs = driver.outputs["timed"]
    assert 0 < len(outputs) < 12
    assert outputs == reference_output([1, 2, 3], 100)[: len(outputs)]
    assert driver.outputs["other"] == reference_output([4, 5, 6], 40)
    assert driver.core.state.counters.aborted == 0


@pytest.mark.parametrize("lag", [0, 1])
def test_one_that_waits_fails_before_it_runs(lag: int) -> None:
    driver = Driver(lag, max_total_tokens=500, max_running_requests=1)
    driver.add("first", [1, 2, 3], max_new=50)
    driver.add("timed", [4, 5, 6], max_new=5, deadline=0.1)
    driver.run()
    finish = driver.finishes["timed"]
    assert finish.type == "abort"
    assert finish.error is not None
    assert (finish.error.code, finish.error.retryable) == (TIMED_OUT, True)
    assert "timed" not in driver.outputs
    assert driver.core.state.counters.prompt_tokens == 3


def test_a_prompt_that_is_only_partly_computed_is_no_answer() -> None:
    driver = Driver(max_total_tokens=500, chunked_prefill_size=8)
    driver.add("timed", range(40), max_new=5, deadline=0.03)
    driver.run()
    assert driver.finishes["timed"].error is not None


def test_in_time_nothing_happens() -> None:
    driver = Driver(max_total_tokens=500)
    driver.add("timed", [1, 2, 3], max_new=5, deadline=10.0)
    driver.run()
    assert driver.finishes["timed"] == Finish("length")


def test_in_a_pause_no_time_passes() -> None:
    """For one that runs, one that waits, and one that comes meanwhile. That those which run are
    retracted says nothing about the memory that requests need."""
    driver = Driver(max_total_tokens=500, max_running_requests=2)
    driver.add("beside", [9, 9], max_new=60)
    driver.add("runs", [1, 2, 3], max_new=5, deadline=0.2)
    driver.add("waits", [4, 5, 6], max_new=5, deadline=0.4)
    driver.step()
    driver.pause_in("in_place")
    for _ in range(100):
        driver.step()
    driver.add("comes", [7, 8], max_new=50, deadline=driver.pause.served_s(driver.now) + 0.2)
    ratio = driver.core.state.admissions.ratio
    before = ratio.value
    driver.pause_in("retract")
    for _ in range(100):
        driver.step()
    assert not driver.finishes and not driver.core.state.running and ratio.value == before
    driver.pause_in(None)
    driver.run()
    assert driver.finishes["runs"] == driver.finishes["waits"] == Finish("length")
    assert driver.finishes["comes"] == Finish("timeout")


def test_a_flush_in_a_pause_waits_for_the_step_that_runs() -> None:
    """What it has a row of is not retracted before."""
    driver = Driver(lag=1, max_total_tokens=500)
    driver.add("runs", [1, 2, 3], max_new=5)
    driver.step()
    driver.pause_in("retract")
    assert driver.core.prepare(driver.now) is None and not driver.core.flush_cache()
    for _ in range(2):
        driver.step()
    assert driver.core.flush_cache() and driver.core.state.memory.pool.free_size == 500
    driver.core.reset(1)  # the front tells the core of a new epoch of its pause
    assert driver.core.state.live.pause == NO_PAUSE


def test_a_trace_with_deadlines_replays(tmp_path: Path) -> None:
    driver = Driver(max_total_tokens=500, max_running_requests=1, trace=tmp_path / "trace")
    for rid, deadline in (("a", 0.2), ("b", 0.1)):
        driver.add(rid, [1, 2, 3], 50, deadline=deadline)
    driver.run()
    driver.close()
    replayed = replay(tmp_path / "trace").state.counters
    assert msgspec.to_builtins(replayed) == msgspec.to_builtins(driver.core.state.counters)
    assert replayed.aborted == 1
    assert replayed.generation_tokens < 50


def test_deadlines_of_those_that_have_ended_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_proc.core.state.MOST_PAST", 2)
    driver, kept = Driver(max_total_tokens=500), list[int]()
    driver.add("late", [9, 9], max_new=400, deadline=0.5)
    for i in range(30):
        driver.add(f"r{i}", [1, 2, i], max_new=1, deadline=100.0 + i % 7)
        driver.step()
        kept.append(len(driver.core.state.live._deadlines))
    driver.run()
    assert max(kept) < 12 and driver.finishes["late"] == Finish("timeout")
