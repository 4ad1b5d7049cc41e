"""What is noted of a trial while none of its steps runs, and while the next step begins."""

import threading
from pathlib import Path

import pytest

from scheduler_proc.blame import BlameFile, Record
from scheduler_proc.step import Step
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.test_blame import Process, left_by


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_crash_between_the_steps_of_a_trial_is_its_own(
    tmp_path: Path, steps: int, crashes: bool
) -> None:
    """As of native code that plans the next one. Its second step ends the trial."""
    process = Process(tmp_path / "blame")
    assert process.add("r", [1, 2, 3])
    process.driver.step()
    process = Process(tmp_path / "blame")
    assert process.add("r", [1, 2, 3])
    for _ in range(steps):
        process.driver.step()
    if crashes:
        process.blame.own_up("crashed")
    process = Process(tmp_path / "blame")
    assert process.add("r", [1, 2, 3]) == (not crashes or steps == 2)


def test_a_step_that_begins_while_a_trial_is_noted_as_ended(tmp_path: Path) -> None:
    """The compute thread goes from one to the other: the suspect has ended meanwhile."""
    left_by(tmp_path / "blame", Record([(b"c", "a")]))
    process = Process(tmp_path / "blame")
    blame, driver = process.blame, process.driver
    process.add("a", [1, 2, 3])
    process.add("b", [4, 5, 6])
    trial = _sealed(driver)
    blame.begin(trial)
    driver.abort("a")
    beginning = threading.Thread(target=blame.begin, args=[_sealed(driver)])
    write = blame._file.write

    def slow(record: Record) -> None:
        if threading.current_thread() is not beginning:
            beginning.start()
            beginning.join(0.1)  # it waits, if it is to
        write(record)

    blame._file.write = slow  # type: ignore[method-assign]
    blame.end(trial)
    beginning.join()
    assert BlameFile(tmp_path / "blame").read().running == [(b"c", "b")]


def _sealed(driver: Driver) -> Step:
    plan = driver.core.prepare(0.0)
    step = None if plan is None else driver.core.seal(plan)
    assert step is not None
    return step
