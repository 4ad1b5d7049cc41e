"""What schedulers leave, however they end."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.ring.crash_file import (
    NOTE_BYTES,
    SLOT_BYTES,
    BlameFile,
    LastWords,
    Left,
    Record,
    blame_path,
    forget_before,
    last_words_path,
    left_by,
    packed,
)

NAMES = st.lists(st.tuples(st.binary(max_size=8), st.text(max_size=12)), max_size=5)
RECORDS = st.builds(Record, NAMES, st.booleans(), st.booleans(), NAMES)


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


def test_a_note_that_is_too_long_is_none(tmp_path: Path) -> None:
    notes = BlameFile(tmp_path / "blame").notes
    with notes.of(packed("x" * NOTE_BYTES)):
        assert notes.left("Current thread 0x0") is None


def test_a_scheduler_that_has_not_begun_leaves_nothing(tmp_path: Path) -> None:
    assert left_by(tmp_path, 3) == Left()
    blame_path(tmp_path, 3).write_bytes(b"")  # the disk was full
    assert left_by(tmp_path, 3) == Left()


def test_only_what_a_replica_has_left_before_is_removed(tmp_path: Path) -> None:
    for number in range(4, 10):
        BlameFile(blame_path(tmp_path, number)).write(Record([(b"c", str(number))]))
        LastWords(last_words_path(tmp_path, number)).write("it ends")
    forget_before(tmp_path, 8, 2)
    left = {number for number in range(4, 10) if left_by(tmp_path, number) != Left()}
    assert left == {5, 7, 8, 9}
    assert left_by(tmp_path, 8) == Left(Record([(b"c", "8")]), "it ends")


PRELUDE = """
import ctypes, os, sys, threading
from pathlib import Path
from srt.ring.crash_file import *
directory = Path(".")
words = LastWords(last_words_path(directory, 1))
words.listen()
file = BlameFile(blame_path(directory, 1))
file.write(Record([(b"c", "a")], is_trial=True))
"""


def left_after(tmp_path: Path, code: str) -> Left:
    """What a process with this code leaves."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", PRELUDE + code]
    subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    left = left_by(tmp_path, 1)
    assert left.record == Record([(b"c", "a")], is_trial=True)
    return left


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
    left = left_after(tmp_path, crash)
    assert words in left.last_words and bool(words) == bool(left.last_words)
    assert left.note is None


LOADS = """
def load():
    with file.notes.of(packed("key")):
        held.set()
        if {loader}:
            ctypes.string_at(1)
        threading.Event().wait()
held = threading.Event()
threading.Thread(target=load, daemon=True).start()
held.wait()
if {loader}:
    threading.Event().wait()
ctypes.string_at(1)
"""


@pytest.mark.parametrize("loader", [False, True])
def test_the_thread_that_crashes_tells_what_it_was_at(tmp_path: Path, loader: bool) -> None:
    """While one is on trial, a grammar is loaded for another."""
    left = left_after(tmp_path, LOADS.format(loader=loader))
    assert left.note == ("key" if loader else None)


def test_a_thread_may_be_named(tmp_path: Path) -> None:
    code = (
        'with file.notes.of(packed((b"c", "b"))):\n    words.write("hangs", threading.get_ident())'
    )
    code += "\n    os._exit(1)"
    assert left_after(tmp_path, code).note == (b"c", "b")
