"""What schedulers leave to the next: the file, however its writer ends, and who is found guilty."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_proc.last_words import LastWords

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.blame import MAX_NAMES, SLOT_BYTES, Blame, BlameFile, Record
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.state import SchedulerConfig
from scheduler_proc.step import Row, Step
from scheduler_proc.trials import Name
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import Reported, TokenizedReq
from srt.wire.sampling import SamplingParams
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import VOCAB, FakeExecutor, reference_output

NAMES = st.lists(st.tuples(st.binary(max_size=8), st.text(max_size=12)), max_size=5)
RECORDS = st.builds(Record, NAMES, st.booleans(), NAMES, NAMES, NAMES, st.booleans())


class Torn:
    """A mapping that only `changes` of the bytes that are written to reach: those with these
    numbers, in the order of writing."""

    def __init__(self, memory: Any, arrives: Any) -> None:
        self.memory, self.arrives, self.written = memory, arrives, 0

    def __setitem__(self, where: slice, data: bytes) -> None:
        for at, byte in enumerate(data, start=where.start):
            if self.arrives(self.written):
                self.memory[at] = byte
            self.written += 1


@given(st.lists(RECORDS, min_size=1, max_size=6), st.data())
def test_a_write_that_is_cut_anywhere_leaves_the_old_record_or_the_new_one(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], data: st.DataObject
) -> None:
    """Cut after any byte, or with only some of them written: a copy has no order of its own."""
    path = tmp_path_factory.mktemp("blame") / "blame"
    file = BlameFile(path)
    assert file.read() == Record()
    *whole, last = records
    for record in whole:
        file.write(record)
        assert file.read() == record
    if data.draw(st.booleans(), "in order"):
        cut = data.draw(st.integers(0, 400))
        arrives = lambda number: number < cut  # noqa: E731
    else:
        random = data.draw(st.randoms(use_true_random=False))
        arrives = lambda number: random.random() < 0.5  # noqa: E731
    file._map = Torn(file._map, arrives)  # type: ignore[assignment]
    file.write(last)
    following = BlameFile(path)
    assert following.read() in (last, whole[-1] if whole else Record())
    following.write(last)
    assert BlameFile(path).read() == last


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    file = BlameFile(tmp_path / "blame")
    file.write(Record([(b"c", "r")]))
    file.write(Record([(b"c", "x" * SLOT_BYTES)]))
    assert file.read() == Record()


EIGHT = {f"r{i}": [i, *range(5)] for i in range(8)}


class Deadly(Exception):
    """The process dies, at once."""


Kills = Callable[[Row], bool]


def blame_at(path: Path, core: Scheduler) -> Blame:
    return Blame(path, core, LastWords(path.with_name("last_words")))


class Process:
    """A scheduler over a blame file, whose executor dies of rows that `kills` tells."""

    def __init__(
        self,
        path: Path,
        lag: int = 0,
        kills: Kills = lambda row: False,
        crashes: bool = True,
    ) -> None:
        process = self

        class Executor(FakeExecutor):
            def run(self, batch: ForwardBatch) -> StepResult:
                assert process.step is not None
                rows = process.step.rows
                process.blame.begin(process.step)
                process.batches.append([row.req.key[1] for row in rows])
                if any(map(kills, rows)):
                    if crashes:
                        process.blame.own_up("crashed")
                    raise Deadly
                return super().run(batch)

        self.driver = Driver(lag, executor=Executor(4000, 4096), max_total_tokens=4000)
        self.blame = blame_at(path, self.driver.core)
        self.batches: list[list[str]] = []
        self.step: Step | None = None
        core = self.driver.core
        seal, commit = core.seal, core.commit

        def sealed(plan: Any) -> Any:
            self.step = seal(plan)
            return self.step

        def committed(step: Step, result: StepResult) -> None:
            commit(step, result)
            self.blame.end(step)

        core.seal, core.commit = sealed, committed  # type: ignore[method-assign]

    def add(self, rid: str, prompt: list[int], told: Sequence[int] = (), max_new: int = 6) -> bool:
        """Whether it is let in, to go on after what it has been `told`."""
        wire = TokenizedReq(
            b"c",
            rid,
            0,
            pack_ids(prompt),
            SamplingParams(max_new_tokens=max_new, temperature=0),
            reported=Reported(pack_ids(list(told))) if told else None,
        )
        if self.blame.takes(wire):
            return False
        self.driver.core.add(wire, self.driver.now)
        return True


class Lives(NamedTuple):
    """What became of requests: their outputs, who was ended as guilty, and how many schedulers
    died."""

    outputs: dict[str, list[int]]
    ended: list[str]
    deaths: int


def live(
    path: Path,
    prompts: dict[str, list[int]],
    kills: Kills,
    lag: int,
    max_new: int = 6,
    crashes: bool = True,
) -> Lives:
    """One scheduler after the other, each with all requests that have not ended, until all have."""
    told: dict[str, list[int]] = {rid: [] for rid in prompts}
    done: set[str] = set()
    ended: list[str] = []
    for deaths in range(50):
        process = Process(path, lag, kills, crashes)
        for rid, prompt in prompts.items():
            is_open = rid not in done and rid not in ended
            if is_open and not process.add(rid, prompt, told[rid], max_new):
                ended.append(rid)
        with suppress(Deadly):
            process.driver.run()
        for rid, ids in process.driver.outputs.items():
            told[rid] += ids
        done.update(process.driver.finishes)
        if len(done) + len(ended) == len(prompts):
            return Lives({rid: told[rid] for rid in prompts if rid in done}, ended, deaths)
    raise AssertionError("the processes die for ever")


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
    outputs, ended, deaths = live(tmp_path / "blame", prompts, kills, lag, crashes=crashes)
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

    outputs, ended, deaths = live(tmp_path / "blame", EIGHT, kills, lag, max_new=60)
    assert ended == ["r3"] and deaths <= 3
    expected = {rid: reference_output(prompt, 60) for rid, prompt in EIGHT.items()}
    assert outputs == {rid: ids for rid, ids in expected.items() if rid != "r3"}


@pytest.mark.parametrize("lag", [0, 1])
def test_who_kills_once_may_go_on(tmp_path: Path, lag: int) -> None:
    """As a decode kills that, with the prompt, is computed in another way at the next attempt."""

    def kills(row: Row) -> bool:
        return row.req.key[1] == "r3" and row.is_decode and row.start == 40

    outputs, ended, deaths = live(tmp_path / "blame", EIGHT, kills, lag, max_new=60)
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

    outputs, ended, deaths = live(tmp_path / "blame", EIGHT, kills, lag, max_new=60)
    assert deaths > 1 and ended == []
    assert outputs == {rid: reference_output(prompt, 60) for rid, prompt in EIGHT.items()}


@pytest.mark.parametrize("lag", [0, 1])
def test_who_was_killed_from_outside_goes_on_after_its_trial(tmp_path: Path, lag: int) -> None:
    """A batch of one in its ordinary step, however often."""
    for _ in range(4):
        process = Process(tmp_path / "blame", lag)
        assert process.add("r", [1, 2, 3])
        while len(process.batches) < 4:
            process.driver.step()
    process.driver.run()
    assert process.driver.outputs["r"] == reference_output([1, 2, 3], 6)


def test_nobody_is_to_blame_between_the_steps_of_a_trial(tmp_path: Path) -> None:
    for _ in range(5):
        process = Process(tmp_path / "blame")
        assert process.add("r", [1, 2, 3])
        process.driver.step()
    process.driver.run()
    assert process.driver.outputs["r"] == reference_output([1, 2, 3], 6)


def left_by(path: Path, record: Record) -> Blame:
    """After a crash that left this."""
    BlameFile(path).write(record)
    LastWords(path.with_name("last_words")).write("crashed")
    return blame_at(path, Scheduler(SchedulerConfig(400, 100, VOCAB)))


def test_who_has_not_come_back_stays_what_it_is(tmp_path: Path) -> None:
    """Over further losses, at which somebody else was alone in its trial."""
    a, b, c, d = names(4)
    left = Record([a], True, suspects=[a, b], guilty=[c])
    left_by(tmp_path / "blame", left)
    again = left_by(tmp_path / "blame", BlameFile(tmp_path / "blame").read())
    assert BlameFile(tmp_path / "blame").read() == Record([], False, [b], [a, c])
    assert [again.takes(request(name)) for name in (a, b, c, d)] == [True, False, True, False]
    assert [again.takes(request(name)) for name in (a, c)] == [False, False]
    assert not again.has_new_guilty


def test_only_a_death_in_a_trial_is_news(tmp_path: Path) -> None:
    (name,) = names(1)
    assert left_by(tmp_path / "blame", Record([name], True, [name])).has_new_guilty
    assert not left_by(tmp_path / "blame", Record([name], False, [])).has_new_guilty


def test_one_kill_in_a_trial_may_come_from_outside(tmp_path: Path) -> None:
    """The next trial clears it, or a second one ends it; another's trial between does not count."""
    a, b = names(2)
    path = tmp_path / "blame"
    BlameFile(path).write(Record([a], True, [a, b]))
    core = Scheduler(SchedulerConfig(400, 100, VOCAB))
    assert not blame_at(path, core).has_new_guilty and core.trials.suspects == {a, b}
    left = BlameFile(path).read()
    assert left == Record([], False, [a, b], [], [a])
    BlameFile(path).write(Record([b], True, [a, b], [], [a]))
    assert not blame_at(path, core).has_new_guilty
    left = BlameFile(path).read()
    assert (sorted(left.suspects), sorted(left.killed)) == ([a, b], [a, b])
    BlameFile(path).write(Record([b], True, [a, b], [], [a, b]))
    blame = blame_at(path, core)
    assert blame.has_new_guilty and blame.takes(request(b)) and not blame.takes(request(a))


def test_the_named_are_the_next_ones_suspects(tmp_path: Path) -> None:
    """Rows that failed when nothing is clear; whoever ran last is not one of them."""
    a, b, c = names(3)
    blame = left_by(tmp_path / "blame", Record([c], True, [c]))
    blame.accuse([a, b])
    core = Scheduler(SchedulerConfig(400, 100, VOCAB))
    blame_at(tmp_path / "blame", core)
    assert core.trials.suspects == {a, b}


def test_what_never_comes_back_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "blame"
    for loss in range(5):
        left = BlameFile(path).read()
        running = [(b"c", f"{loss}-{i}") for i in range(MAX_NAMES // 2)]
        blame = left_by(path, Record(running, False, left.suspects, left.guilty))
        assert set(running) <= set(BlameFile(path).read().suspects)
    assert len(BlameFile(path).read().suspects) == MAX_NAMES
    blame.clear()


def names(count: int) -> list[Name]:
    return [(b"c", f"r{i}") for i in range(count)]


def request(name: Name) -> TokenizedReq:
    return TokenizedReq(*name, 0, pack_ids([1]), SamplingParams())


def test_nothing_is_written_while_the_same_requests_run(tmp_path: Path) -> None:
    process = Process(tmp_path / "blame")
    for i in range(3):
        process.add(f"r{i}", [i, 2, 3], max_new=20)
    written = []
    for _ in range(20):
        process.driver.step()
        written.append(BlameFile(tmp_path / "blame")._number)
    assert len(set(written)) == 1
    assert BlameFile(tmp_path / "blame").read().running == names(3)


CRASHING = """
import {imports}
from pathlib import Path
from scheduler_proc.last_words import LastWords
words = LastWords(Path("last_words"))
words.listen()
{crash}
"""


@pytest.mark.parametrize(
    ("crash", "words"),
    [
        ("ctypes.string_at(1)", "Segmentation fault"),
        ("os.abort()", "Aborted"),
        ("os.kill(os.getpid(), 9)", ""),
        ("os._exit(0)", ""),
        ("words.write('it hangs')", "it hangs"),
    ],
)
def test_only_a_process_that_crashes_has_last_words(tmp_path: Path, crash: str, words: str) -> None:
    code = CRASHING.format(imports="ctypes, os", crash=crash)
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=path, check=False)
    found = LastWords(tmp_path / "last_words").found
    assert words in found and bool(words) == bool(found)
    assert LastWords(tmp_path / "last_words").found == ""
