"""What is noted of a trial while none of its steps runs, and while the next step begins."""

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler_proc.core.steps.step import Step
from srt.ring.crash_file import Left, Record, left_by, packed
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


class DiesOfSecondStep(Process):
    """Of planning it, without a note, as of an error in Python."""

    def __init__(self, directory: Path, incarnation: int, lag: int, rid: str) -> None:
        super().__init__(directory, incarnation, lag)
        decodes = self.driver.core._planner._decodes
        add = decodes._add

        def added(plan: Any, req: Any, victims: Any, proposal: Any = None) -> None:
            if req.key[1] == rid:
                self.blame.own_up("crashed", threading.get_ident())
                raise Deadly
            add(plan, req, victims, proposal)

        decodes._add = added  # type: ignore[method-assign]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("has_traffic", [False, True])
def test_one_that_crashes_after_a_step_of_others_is_found(
    tmp_path: Path, lag: int, has_traffic: bool
) -> None:
    """Those who are no suspects have steps between those of its trial, and their names are noted
    when it is planned again."""
    lives = Lives(tmp_path, {rid: [ord(rid), 1, 2] for rid in "abp"}, max_new=30)
    guilty = []
    for number in range(3):
        if has_traffic:
            lives.told[f"n{number}"] = []
            lives.relay.sends(request(f"n{number}", [50 + number, 1, 2], 30))
        lives.live(DiesOfSecondStep(tmp_path, lives.incarnation, lag, "p"))
        guilty.append(lives.next()[1])
    assert guilty == [[], [], [(CLIENT, "p")]]
    lives.live(DiesOfSecondStep(tmp_path, lives.incarnation, lag, "p"))
    assert lives.ended == ["p"] and lives.open == []
    for rid in "ab":
        assert lives.told[rid] == reference_output([ord(rid), 1, 2], 30)


def test_one_that_has_passed_is_not_guilty_of_what_others_do_later(tmp_path: Path) -> None:
    """A crash while its trial went on counts until it has passed."""
    lives = Lives(tmp_path, {"p": [1, 2]})
    name, words = (CLIENT, "p"), "crashed\nCurrent thread 0x"
    record = Record([], on_trial=name, loop=10)
    on_trial = Left(record, words + "a")
    for incarnation, left in (
        (2, on_trial),
        (3, Left(Record(cleared=[name]), "crashed")),
        (4, on_trial),
        (5, Left(record)),  # killed from outside
        (6, Left(record, words + "b")),  # in the step of the others
    ):
        assert lives.relay.loses(incarnation, left) == []
        lives.relay.next_one(incarnation)
    assert lives.relay.loses(7, on_trial) == [name]
