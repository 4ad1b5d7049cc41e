"""Targets for the time between tokens: who stays out of a step, and for how long."""

from itertools import pairwise

import pytest

from scheduler_proc.core.sharing.latency_room import LEAST_SHARE
from scheduler_proc.core.steps.step_target import StepCosts
from srt.wire.hints import Hints
from tests.scheduler_proc.core.sharing.watched import WatchedDriver

# A step of n rows and m other tokens takes 10 + n + m ms.
COSTS = StepCosts(base_s=0.010, row_s=0.001, token_s=0.001, draft_s=0.001)
THROUGHPUT = Hints(perf="throughput")


def filled(
    rows: int, tpot_ms: float, lag: int, plain: int = 0, length: int = 300, **config: int
) -> WatchedDriver:
    """As many rows of throughput decode, some without a class, and one with a target."""
    size = rows + plain + 1
    sizes = {"max_running_requests": size, "max_total_tokens": 400 * size} | config
    driver = WatchedDriver(lag=lag, **sizes)
    driver.core.measure(COSTS)
    for number in range(rows + plain):
        hints = THROUGHPUT if number < rows else None
        driver.add(f"{number}", [number, 1, 2], max_new=length, hints=hints)
    driver.add("now", [500, 1], max_new=80, hints=Hints(perf="latency", tpot_ms=tpot_ms))
    return driver


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("tpot_ms", "most"), [(17.0, 7), (14.0, 4), (1.0, 4), (40.0, 21)]
)  # of 1 ms only an eighth is kept
def test_as_many_rows_share_a_step_as_its_target_allows(
    tpot_ms: float, most: int, lag: int
) -> None:
    driver = filled(20, tpot_ms, lag)
    while "now" not in driver.finishes:
        driver.step()
    first = next(n for n, rows in enumerate(driver.steps) if len(rows) == most)
    paced = driver.steps[first : driver.steps_of("now")[-1]]
    assert len(paced) > 70
    assert {len(rows) for rows in paced} == {most}
    assert all("now" in rows for rows in paced)
    for rid in map(str, range(20)):
        numbers = [n for n in driver.steps_of(rid) if n >= first]
        assert max(b - a for a, b in pairwise(numbers)) <= LEAST_SHARE
    driver.run()
    assert len(driver.finishes) == 21  # nobody is left out for ever
    after = driver.steps[driver.steps_of("now")[-1] + 1 :]
    assert max(map(len, after)) == 20  # without the target all are in a step again


@pytest.mark.parametrize("lag", [0, 1])
def test_only_throughput_is_left_out(lag: int) -> None:
    driver = filled(8, 11.0, lag, plain=3)
    while "now" not in driver.finishes:
        driver.step()
    paced = driver.steps[20 : driver.steps_of("now")[-1]]
    assert all({"now", "8", "9", "10"} <= rows.keys() and len(rows) == 5 for rows in paced)


def test_prompts_beside_it_fit_into_the_target_and_get_on_if_it_cannot_be_met() -> None:
    """They would have had 2.6 times what the rows take: 28 tokens beside one row."""
    for tpot_ms, expected in ((20.0, 9), (11.0, 4), (1000.0, 28)):
        driver = WatchedDriver(max_running_requests=4, max_total_tokens=4000)
        driver.core.measure(COSTS)
        hints = Hints(perf="latency", tpot_ms=tpot_ms)
        driver.add("now", [500, 1], max_new=1000, hints=hints)
        driver.step()
        driver.add("long", [number % 900 for number in range(1000)], max_new=1)
        for _ in range(5):
            driver.step()
        assert [rows["long"] for rows in driver.steps[1:6]] == [expected] * 5


def test_no_memory_is_held_by_those_that_are_left_out_when_it_is_short() -> None:
    """The one with the target gets on, and takes what they have."""
    driver = filled(6, 5.0, 1, length=90, max_total_tokens=120)
    driver.run()
    assert len(driver.finishes) == 7
    assert driver.core.state.counters.retracted > 0
    assert {finish.type for finish in driver.finishes.values()} == {"length"}
