"""Rows, memory and prompts for the class latency, among those of throughput."""

from typing import Any

import pytest

from scheduler_proc.core.sharing.latency_room import LEAST_SHARE
from srt.wire.hints import Hints
from tests.running.profiles import some
from tests.scheduler_proc.core.sharing.watched import WatchedDriver

LATENCY, THROUGHPUT = Hints(perf="latency"), Hints(perf="throughput")


def flooded(count: int, hints: Hints | None = THROUGHPUT, **config: Any) -> WatchedDriver:
    """Long requests have all rows, and more wait."""
    sizes = {"max_running_requests": 4, "max_total_tokens": 4000, "max_wait_s": 0.1}
    driver = WatchedDriver(**(sizes | config))
    for number in range(count):
        driver.add(f"t{number}", [number % 900, 1], max_new=50, hints=hints, caller="t")
    for _ in range(20):
        driver.step()
    return driver


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("after_s", some([0.0, 100.0], 100.0))
def test_a_flood_leaves_a_row_to_a_request_for_latency(lag: int, after_s: float) -> None:
    """At once, however long the flood has waited; and it ends."""
    driver = flooded(200, lag=lag, check=False)
    driver.now += after_s
    before = len(driver.steps)
    driver.add("now", [7, 7], max_new=4, hints=LATENCY, caller="t")
    for _ in range(3):
        driver.step()
    assert driver.steps_of("now")[0] <= before + lag
    driver.run()
    assert len(driver.finishes) == 201
    assert driver.core.state.counters.retracted == 1


@pytest.mark.parametrize(("priority", "has_row"), [(2, True), (1, True), (0, False)])
def test_a_priority_that_all_have_changes_nothing(priority: int, has_row: bool) -> None:
    """Not even where the flood is overdue; but one with a lower priority takes no row from those
    that would have it again."""
    driver = flooded(0, check=False)
    for number in range(40):
        hints = THROUGHPUT
        driver.add(f"t{number}", [number, 1], max_new=50, hints=hints, caller="t", priority=1)
    for _ in range(20):
        driver.step()
    driver.now += 100.0
    before = len(driver.steps)
    driver.add("now", [7, 7], max_new=4, hints=LATENCY, caller="t", priority=priority)
    for _ in range(3):
        driver.step()
    assert (driver.steps_of("now")[:1] == [before]) == has_row
    driver.run()
    assert driver.core.state.counters.retracted == has_row


def test_rows_without_a_class_are_not_taken() -> None:
    driver = flooded(10, hints=None)
    driver.add("now", [7, 7], max_new=4, hints=LATENCY, caller="t")
    driver.run()
    assert driver.core.state.counters.retracted == 0
    assert driver.steps_of("now")[0] <= driver.steps_of("t4")[0]


def test_nobody_takes_more_rows_from_another_caller_than_that_has() -> None:
    driver = flooded(10)
    for number in range(4):
        driver.add(f"now{number}", [7, number], max_new=200, hints=LATENCY, caller="other")
    for _ in range(20):
        driver.step()
    running = [req.wish.caller for req in driver.core.state.running.values()]
    assert sorted(running) == ["other", "other", "t", "t"]


def test_memory_is_taken_too() -> None:
    driver = flooded(10, max_running_requests=16, max_total_tokens=160)
    before = len(driver.steps)
    driver.add("now", [7 for _ in range(90)], max_new=4, hints=LATENCY, caller="t")
    for _ in range(10):
        driver.step()
    assert driver.steps_of("now")[0] < before + 10
    driver.run()
    assert len(driver.finishes) == 11


def test_prompts_of_throughput_leave_most_of_a_step_and_get_on() -> None:
    driver = flooded(0, chunked_prefill_size=64)
    driver.add("long", [number % 900 for number in range(3000)], hints=THROUGHPUT, caller="t")
    driver.step()
    driver.add("now", [number % 800 for number in range(1, 300)], hints=LATENCY, caller="t")
    for _ in range(6):
        driver.step()
    rows = driver.steps[1:6]
    assert [each.get("now") for each in rows[:5]] == [56] * 5
    assert [each.get("long") for each in rows[:5]] == [64 // LEAST_SHARE] * 5


@pytest.mark.parametrize("priority", some([0, 3], 3))
def test_a_stream_of_requests_for_latency_starves_nobody(priority: int) -> None:
    """One row, and as one request for latency ends the next one is there."""
    driver = flooded(3, max_running_requests=1)
    for number in range(2000):
        more: dict[str, Any] = {"hints": LATENCY, "caller": "t", "priority": priority}
        driver.add(f"now{number}", [7, number % 900], max_new=3, **more)
        while f"now{number}" not in driver.finishes:
            driver.step()
        if all(f"t{each}" in driver.finishes for each in range(3)):
            break
    assert all(f"t{each}" in driver.finishes for each in range(3))
    assert driver.core.state.counters.retracted <= 3 * 4  # each with twice the outputs
