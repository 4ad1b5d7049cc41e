"""The time to a first token beside a flood of the class throughput, in simulated time."""

import random
from collections.abc import Callable
from statistics import median

import pytest

from scheduler_proc.core.steps.step_target import StepCosts
from srt.wire.hints import Hints
from tests.scheduler_proc.core.sharing.watched import WatchedDriver

COSTS = StepCosts(base_s=0.010, row_s=0.001, token_s=0.001, draft_s=0.001)
ROWS, PROMPT = 8, 128


class Clocked:
    """A core whose steps take what they cost, each planned while the one before runs."""

    def __init__(self) -> None:
        sizes = {"max_running_requests": ROWS, "max_total_tokens": 8000}
        self.driver = WatchedDriver(lag=1, check=False, max_wait_s=0.05, **sizes)
        self.driver.core.measure(COSTS)
        self.rng = random.Random(1)
        self.step_s = 0.0  # of the step that runs

    def prompt(self, length: int) -> list[int]:
        return [self.rng.randrange(900) for _ in range(length)]

    def step(self) -> None:
        """To the end of the step that runs; the next one begins."""
        driver, before = self.driver, len(self.driver.steps)
        driver.now += self.step_s
        driver.step()
        driver.now -= 0.01  # the driver's own
        new = driver.steps[before:]
        self.step_s = COSTS.base_s + sum(COSTS.token_s * sum(rows.values()) for rows in new)
        self.step_s = self.step_s if new else 0.0

    def first_token_s(self, rid: str) -> float:
        """Of a request for latency that comes while a step runs whose successor is planned."""
        driver = self.driver
        came_s = driver.now + self.step_s * self.rng.random()
        if self.step_s:
            self.step()
        driver.add(rid, self.prompt(PROMPT), max_new=8, hints=Hints(perf="latency"), caller="t")
        before, length = len(driver.steps), 0
        while length < PROMPT:
            self.step()
            length = sum(rows.get(rid, 0) for rows in driver.steps[before:])
        return driver.now + self.step_s - came_s


@pytest.mark.parametrize(
    ("flood", "length", "step_s"),
    [
        (300, 8, median),
        (100, 200, max),  # steps of prompts only are long
        pytest.param(1000, 8, median, marks=pytest.mark.full),
        pytest.param(1000, 60, max, marks=pytest.mark.full),
    ],
)
def test_the_first_token_comes_soon_in_a_flood_which_ends(
    flood: int, length: int, step_s: Callable[[list[float]], float]
) -> None:
    """However long the flood has waited: at most twice the time on an idle server, and a step."""
    clocked = Clocked()
    driver = clocked.driver
    idle_s = clocked.first_token_s("idle")
    driver.run()
    hints = Hints(perf="throughput")
    for number in range(flood):
        driver.add(f"t{number}", clocked.prompt(length), max_new=4, hints=hints, caller="t")
    steps, number = [], 0
    while len(driver.finishes) == 1:  # the first steps have prompts only, and are long
        clocked.step()
    while len(driver.finishes) < 0.9 * flood:
        for _ in range(6):
            clocked.step()
            steps.append(clocked.step_s)
        found_s = clocked.first_token_s(f"now{number}")
        bound_s = 2 * idle_s + step_s(steps)
        assert found_s <= bound_s, (number, found_s, bound_s, idle_s)
        number += 1
    driver.run()
    assert number > 5 and len(driver.finishes) == 1 + flood + number
