"""What is noted of a trial while none of its steps runs, and while the next step begins."""

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler_proc.step import Step
from srt.ring.blame_file import Record, left_by, packed
from srt.wire.ring_messages import Reported
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.lives import CLIENT, Deadly, Lives, Process, request


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_crash_between_the_steps_of_a_trial_is_its_own(
    tmp_path: Path, steps: int, crashes: bool
) -> None:
    """As of native code that plans the next one. Its second step ends the trial."""
    lives = Lives(tmp_path, {"r": [1, 2, 3]})
    for life_steps in (1, steps):
        process = Process(tmp_path, lives.incarnation)
        assert all(map(process.add, lives.relay.requests_taken()))
        for _ in range(life_steps):
            process.driver.step()
        if crashes and lives.incarnation == 2:
            process.blame.own_up("crashed")
        _, guilty = lives.next()
    assert bool(guilty) == (crashes and steps == 1)


def test_a_step_that_begins_while_a_trial_is_noted_as_ended(tmp_path: Path) -> None:
    """The compute thread goes from one to the other: the suspect has ended meanwhile."""
    process = Process(tmp_path)
    blame, driver = process.blame, process.driver
    process.add(replace(request("a", [1, 2, 3]), reported=Reported(is_suspect=True)))
    process.add(request("b", [4, 5, 6]))
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
    record = left_by(tmp_path, 1).record
    assert record.running == [(CLIENT, "b")] and record.cleared == [(CLIENT, "a")]


def _sealed(driver: Driver) -> Step:
    plan = driver.core.prepare(0.0)
    step = None if plan is None else driver.core.seal(plan)
    assert step is not None
    return step


class DiesOfPlanning(Process):
    """Of a request's first step, before that runs; notes of it are left."""

    def __init__(self, directory: Path, incarnation: int, rid: str) -> None:
        super().__init__(directory, incarnation)
        planner = self.driver.core._planner
        extend = planner._extend

        def extended(plan: Any, req: Any, budget: int) -> int:
            if req.key[1] != rid:
                return extend(plan, req, budget)
            if self.blame.notes is not None:
                self._held = self.blame.notes.of(packed(req.key))
                self._held.__enter__()
            self.blame.own_up("crashed", threading.get_ident())
            raise Deadly

        planner._extend = extended  # type: ignore[method-assign]


def test_one_that_crashes_while_it_is_planned_is_found(tmp_path: Path) -> None:
    """Before its first step: once without a note, and once with."""
    lives = Lives(tmp_path, {rid: [ord(rid), 1, 2] for rid in "abp"})
    guilty = []
    for _ in range(2):
        lives.live(DiesOfPlanning(tmp_path, lives.incarnation, "p"))
        guilty.append(lives.next()[1])
    assert guilty == [[], [(CLIENT, "p")]]
    lives.live(DiesOfPlanning(tmp_path, lives.incarnation, "p"))
    assert lives.ended == ["p"] and lives.open == []
    for rid in "ab":
        assert lives.told[rid] == reference_output([ord(rid), 1, 2], 6)
