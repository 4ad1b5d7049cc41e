"""Requests that end their schedulers are found, and nobody else is ended."""

from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step import Row
from scheduler_proc.crash.journal import Blame
from srt.ring.crash_file import BlameFile, Record, blame_path, left_by
from srt.wire.ring_messages import Reported
from tests.scheduler_proc.fake_executor import VOCAB, reference_output
from tests.scheduler_proc.lives import CLIENT, Lives, Process, live, request

EIGHT = {f"r{i}": [i, *range(5)] for i in range(8)}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("bad", [(), (0,), (5,), (3, 4), (0, 9)])
def test_those_that_end_their_process_are_found_and_nobody_else(
    tmp_path: Path, lag: int, bad: tuple[int, ...], crashes: bool
) -> None:
    """One death in company, and one for each of them; two, if they may have been killed."""
    prompts = {f"r{i}": [i, *range(5)] for i in range(10)}
    guilty = [f"r{i}" for i in bad]
    kills = lambda row: row.req.key[1] in guilty  # noqa: E731
    outputs, ended, deaths = live(tmp_path, prompts, kills, lag, crashes=crashes)
    assert ended == guilty
    good = {rid: prompt for rid, prompt in prompts.items() if rid not in ended}
    assert outputs == {rid: reference_output(prompt, 6) for rid, prompt in good.items()}
    assert deaths == len(bad) * (1 if crashes else 2) + bool(bad)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("length", [7, 8, 40])
def test_one_that_kills_at_a_later_token_is_found_too(
    tmp_path: Path, lag: int, length: int
) -> None:
    """Its tokens are held back at first, so that its first trial ends before the fatal one."""

    def kills(row: Row) -> bool:
        return row.req.key[1] == "r3" and row.start <= length < row.start + row.extend_len

    outputs, ended, deaths = live(tmp_path, EIGHT, kills, lag, max_new=60)
    assert ended == ["r3"] and deaths <= 3
    expected = {rid: reference_output(prompt, 60) for rid, prompt in EIGHT.items()}
    assert outputs == {rid: ids for rid, ids in expected.items() if rid != "r3"}


@pytest.mark.parametrize("lag", [0, 1])
def test_who_kills_once_may_go_on(tmp_path: Path, lag: int) -> None:
    """As a decode kills that, with the prompt, is computed in another way at the next attempt."""

    def kills(row: Row) -> bool:
        return row.req.key[1] == "r3" and row.is_decode and row.start == 40

    outputs, ended, deaths = live(tmp_path, EIGHT, kills, lag, max_new=60)
    assert deaths <= 3
    expected = {rid: reference_output(prompt, 60) for rid, prompt in EIGHT.items()}
    assert outputs == {rid: ids for rid, ids in expected.items() if rid not in ended}
    assert set(ended) <= {"r3"}


@pytest.mark.parametrize("lag", [0, 1])
def test_what_kills_only_in_company_goes_on_at_each_life(tmp_path: Path, lag: int) -> None:
    """Alone it shows nothing. Each life brings all further, so that they come to their ends."""
    in_company = count()

    def kills(row: Row) -> bool:
        return row.is_decode and row.req.key[1] == "r3" and next(in_company) % 9 == 8

    outputs, ended, deaths = live(tmp_path, EIGHT, kills, lag, max_new=60)
    assert deaths > 1 and ended == []
    assert outputs == {rid: reference_output(prompt, 60) for rid, prompt in EIGHT.items()}


@pytest.mark.parametrize("lag", [0, 1])
def test_who_was_killed_from_outside_goes_on_after_its_trial(tmp_path: Path, lag: int) -> None:
    """A batch of one in its ordinary step, however often."""
    lives = Lives(tmp_path, {"r": [1, 2, 3]}, max_new=30)
    for _ in range(4):
        process = Process(tmp_path, lives.incarnation, lag)
        assert all(map(process.add, lives.relay.requests_taken()))
        while len(process.batches) < 4:
            process.driver.step()
        lives.take(process)
        assert lives.next()[1] == []
    lives.live(Process(tmp_path, lives.incarnation, lag))
    assert lives.told["r"] == reference_output([1, 2, 3], 30)


def test_nobody_is_to_blame_between_the_steps_of_a_trial(tmp_path: Path) -> None:
    lives = Lives(tmp_path, {"r": [1, 2, 3]})
    for _ in range(5):
        process = Process(tmp_path, lives.incarnation)
        assert all(map(process.add, lives.relay.requests_taken()))
        process.driver.step()
        lives.take(process)
        assert lives.next()[1] == []
    lives.live(Process(tmp_path, lives.incarnation))
    assert lives.told["r"] == reference_output([1, 2, 3], 6)


def blame_of(directory: Path, *, is_wary: bool = False) -> tuple[Blame, Scheduler]:
    core = Scheduler(SchedulerConfig(400, 100, VOCAB))
    return Blame(directory, 1, core, is_wary=is_wary), core


def test_the_named_are_suspects(tmp_path: Path) -> None:
    """Rows that failed when nothing is clear; whoever ran last is not one of them."""
    blame, _ = blame_of(tmp_path)
    blame.accuse([(CLIENT, "a"), (CLIENT, "b")])
    assert left_by(tmp_path, 1).record == Record([(CLIENT, "a"), (CLIENT, "b")])


def test_suspects_and_the_guilty_come_marked(tmp_path: Path) -> None:
    """From the first of them on, notes are taken."""
    blame, core = blame_of(tmp_path)
    marked = {"a": Reported(), "b": Reported(is_suspect=True), "c": Reported(is_guilty=True)}
    taken = {}
    for rid, reported in marked.items():
        taken[rid] = blame.takes(replace(request(rid, [1]), reported=reported))
    assert taken == {"a": False, "b": False, "c": True}
    assert core.state.trials.suspects == {(CLIENT, "b")} and blame.has_ended_guilty
    assert blame.notes is not None


@pytest.mark.parametrize("is_wary", [False, True])
def test_notes_are_taken_only_after_a_loss(tmp_path: Path, is_wary: bool) -> None:
    assert (blame_of(tmp_path, is_wary=is_wary)[0].notes is not None) == is_wary


def test_a_new_epoch_gives_its_files_another_name(tmp_path: Path) -> None:
    blame, _ = blame_of(tmp_path)
    blame.move(3)
    blame.accuse([(CLIENT, "a")])
    blame.own_up("it ends")
    left = left_by(tmp_path, 3)
    assert (left.record.running, left.last_words) == ([(CLIENT, "a")], "it ends")
    assert not blame_path(tmp_path, 1).exists()


def test_nothing_is_written_while_the_same_requests_run(tmp_path: Path) -> None:
    process = Process(tmp_path)
    for i in range(3):
        process.add(request(f"r{i}", [i, 2, 3], max_new=20))
    written = []
    for _ in range(20):
        process.driver.step()
        written.append(BlameFile(blame_path(tmp_path, 1))._number)
    assert len(set(written)) == 1
    assert left_by(tmp_path, 1).record.running == [(CLIENT, f"r{i}") for i in range(3)]
