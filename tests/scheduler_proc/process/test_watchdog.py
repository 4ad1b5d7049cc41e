"""Who hangs, and for how long: the watch with a clock of its own, and a process that is ended."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scheduler_proc.process.watchdog import LATE_S, LOOK_S, LoopProbe, Watch, shape_of
from srt.ring.actor import EXIT_HANG
from tests.scheduler_proc.driver import Driver
from tests.waiting import SOON_S

ROOT = Path(__file__).parents[3]


class Clocked:
    """A watch of a "step" and a "loop", whose time is `now`."""

    def __init__(self, limit_s: float) -> None:
        self.now = 100.0
        self.at: dict[str, object | None] = {"step": None, "loop": None}
        self.hangs: list[tuple[str, float]] = []
        doing = {name: lambda name=name: self.at[name] for name in self.at}
        self.watch = Watch(limit_s, doing, lambda name: self.hangs.append((name, self.now)))

    def run(self, seconds: float, every: float = LOOK_S) -> None:
        """Time passes, with a look now and then."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += every
            self.watch.look(self.now)


def test_a_step_that_lasts_is_told_of_within_two_looks() -> None:
    clocked = Clocked(10.0)
    clocked.run(50.0)
    clocked.at["step"] = object()
    began = clocked.now
    clocked.run(9.9)
    assert clocked.hangs == []
    clocked.run(0.6)
    ((name, when),) = clocked.hangs
    assert name == "step" and 10.0 <= when - began <= 10.0 + 2 * LOOK_S


def test_many_short_steps_are_none_that_hangs() -> None:
    clocked = Clocked(1.0)
    for _ in range(200):
        clocked.at["step"] = object()
        clocked.run(LOOK_S)
    clocked.at["step"] = None
    clocked.run(20.0)
    assert clocked.hangs == []


def test_one_of_two_may_hang_while_the_other_works() -> None:
    clocked = Clocked(1.0)
    clocked.at["loop"] = object()
    for _ in range(10):
        clocked.at["step"] = object()
        clocked.run(LOOK_S)
    assert [name for name, _ in clocked.hangs] == ["loop"]


@pytest.mark.parametrize("pauses", [1, 9])
def test_time_in_which_nothing_ran_does_not_count(pauses: int) -> None:
    """The process was stopped, or the machine slept: a look counts for no more than usual."""
    clocked = Clocked(10.0)
    clocked.at["step"] = object()
    for _ in range(pauses):
        clocked.run(3600.0, every=3600.0)
    clocked.run(9.0 - pauses * LOOK_S)
    assert clocked.hangs == []
    clocked.run(2.0)
    assert len(clocked.hangs) == 1


def test_looks_on_a_busy_machine_come_late_and_count() -> None:
    clocked = Clocked(10.0)
    clocked.at["step"] = object()
    clocked.run(10.0 + 2 * LATE_S, every=0.9 * LATE_S)
    assert len(clocked.hangs) == 1


async def test_a_loop_that_answers_is_not_at_anything_for_long() -> None:
    probe = LoopProbe(asyncio.get_running_loop())
    first = probe()
    assert probe() is first  # asked, and not answered: this test is what the loop is at
    await asyncio.sleep(0)
    assert probe() is not first


def test_a_loop_that_has_been_closed_does_not_hang() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert LoopProbe(loop)() is None


def test_the_watch_looks_by_itself_while_python_code_never_ends() -> None:
    ended = threading.Event()
    Watch(0.01, {"a step": lambda: "it"}, lambda name: ended.set()).start()
    deadline = time.monotonic() + SOON_S
    while not ended.is_set():
        assert time.monotonic() < deadline


def test_the_shape_says_whose_rows_a_step_has() -> None:
    driver = Driver(max_total_tokens=400)
    driver.add("a", [1, 2, 3], 5)
    driver.step()
    driver.add("b", [1, 2, 3, 4], 5)
    plan = driver.core.prepare(0.0)
    assert plan is not None
    step = driver.core.seal(plan)
    assert step is not None
    assert shape_of(step) == "2 rows, 2 tokens, 1 decodes (a: 1 after 3; b: 1 after 3)"


HANGING = """
import threading, time
from scheduler_proc.process.watchdog import Watch, end_process

def never_returns():
    {hang}

threading.Thread(target=never_returns, name="compute", daemon=True).start()
Watch(0.3, {{"a step": lambda: "it"}}, lambda name: end_process(name, None, {numbers})).start()
time.sleep(600)
"""


@pytest.mark.parametrize(
    "hang", [pytest.param("time.sleep(600)", marks=pytest.mark.full), "while True: pass"]
)
@pytest.mark.parametrize(
    "numbers",
    [
        "lambda: {'num_running_reqs': 3}",
        pytest.param("lambda: time.sleep(600)", marks=pytest.mark.full),
    ],
)
def test_a_process_that_hangs_ends_with_all_stacks(hang: str, numbers: str) -> None:
    """In native code that waits and in Python code, and even if the report itself hangs."""
    code = HANGING.format(hang=hang, numbers=numbers)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SOON_S
    )
    assert done.returncode == (1 if "sleep" in numbers else EXIT_HANG)
    assert "in never_returns" in done.stderr and "in end_process" in done.stderr
    assert "a step hangs" in done.stderr
    assert ("'num_running_reqs': 3" in done.stderr) == ("running" in numbers)
