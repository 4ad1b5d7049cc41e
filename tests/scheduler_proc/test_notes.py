"""A constraint that ends its scheduler outside of any step is found, and nobody else."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from scheduler_proc.last_words import LastWords

from scheduler_proc.blame import Blame, BlameFile, Record
from scheduler_proc.notes import SLOT_BYTES, named, packed
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.state import SchedulerConfig
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import SamplingParams
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.test_blame import Deadly, Process, left_by

A, B = (b"c", "a"), (b"c", "b")

CRASH = """
import ctypes, sys, threading
from pathlib import Path
from scheduler_proc.blame import BlameFile, Record
from scheduler_proc.last_words import LastWords
from scheduler_proc.notes import packed
path = Path(sys.argv[1])
words = LastWords(path.with_name("last_words"))
words.listen()
file = BlameFile(path)
file.write(Record([(b"c", "a")], is_trial=True))
def load():
    with file.notes.of(packed("key")):
        held.set()
        if sys.argv[2] == "loader":
            ctypes.string_at(1)
        threading.Event().wait()
held = threading.Event()
threading.Thread(target=load, daemon=True).start()
held.wait()
if sys.argv[2] == "loader":
    threading.Event().wait()
ctypes.string_at(1)
"""


def a_core() -> Scheduler:
    return Scheduler(SchedulerConfig(100, 100, 100))


def request(name: tuple[bytes, str], grammar: str = "") -> TokenizedReq:
    return TokenizedReq(*name, 0, pack_ids([1]), SamplingParams(), grammar=grammar)


@pytest.mark.parametrize("crashes", ["loader", "step"])
def test_the_thread_that_crashes_tells_who_is_guilty(tmp_path: Path, crashes: str) -> None:
    """While one is on trial, a grammar is loaded for another."""
    path = tmp_path / "blame"
    done = subprocess.run([sys.executable, "-c", CRASH, str(path), crashes], check=False)
    assert done.returncode < 0
    blame = Blame(path, a_core(), LastWords(path.with_name("last_words")))
    assert blame.has_new_guilty
    in_loader = crashes == "loader"
    assert blame.takes(request(A)) != in_loader
    assert blame.takes(request(B, "key")) == in_loader
    assert not blame.takes(request(B, "other"))
    left = BlameFile(path).read()
    assert left.suspects == ([A] if in_loader else []) and left.grammars == ["key"] * in_loader


def test_a_grammar_stays_guilty_for_later_schedulers(tmp_path: Path) -> None:
    path = tmp_path / "blame"
    left_by(path, Record(grammars=["key"]))
    for _ in range(2):
        blame = Blame(path, a_core(), LastWords(path.with_name("last_words")))
        assert blame.takes(request(A, "key")) and blame.takes(request(B, "key"))
        assert not blame.has_new_guilty
    blame.clear()
    assert not blame.takes(request(A, "key"))


def test_notes_are_taken_only_after_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "blame"
    assert Blame(path, a_core(), LastWords(path.with_name("last_words"))).notes is None
    left_by(path, Record([A]))
    assert Blame(path, a_core(), LastWords(path.with_name("last_words"))).notes is not None


def test_a_note_that_is_too_long_is_none(tmp_path: Path) -> None:
    notes = BlameFile(tmp_path / "blame").notes
    with notes.of(packed("x" * SLOT_BYTES)):
        assert notes.left(named(0)) is None


class DiesOfPlanning(Process):
    """Of a request's first step, before that runs; notes of it are left."""

    def __init__(self, path: Path, rid: str) -> None:
        super().__init__(path)
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
    told: dict[str, list[int]] = {rid: [] for rid in "abp"}
    open_ = set(told)
    for _ in range(2):
        process = DiesOfPlanning(tmp_path / "blame", "p")
        assert all(process.add(rid, [ord(rid), 1, 2], told[rid]) for rid in sorted(open_))
        with pytest.raises(Deadly):
            process.driver.run()
        for rid, ids in process.driver.outputs.items():
            told[rid] += ids
        open_ -= process.driver.finishes.keys()
    process = DiesOfPlanning(tmp_path / "blame", "p")
    added = {rid for rid in open_ if process.add(rid, [ord(rid), 1, 2], told[rid])}
    assert added == open_ - {"p"}
    process.driver.run()
    for rid in "ab":
        assert told[rid] + process.driver.outputs.get(rid, []) == reference_output(
            [ord(rid), 1, 2], 6
        )
