"""What a scheduler leaves, however it ends, to tell whose requests it was at: two files in the
ring's directory, named by its incarnation. The scheduler writes them, and the front reads them when
it is lost.

One is mapped, and has a record, and notes of its threads. The record has two slots, written in
turn, each with a number and a checksum: a process that is killed while it writes leaves the record
before. The other has its last words: one that is killed from outside leaves none, so a crash can be
told from that.
"""

import faulthandler
import mmap
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

SLOT_BYTES = 1024 * 1024
NOTE_BYTES = 2048
THREADS = 4  # that follow constraints or load them: the loop, the compute thread, the loader
_HEAD = struct.Struct("<QII")  # the record's number (from 1 on), its length, its checksum
_NOTE_HEAD = struct.Struct("<QH")  # the thread's number, the note's length
_NO_NOTE = _NOTE_HEAD.pack(0, 0)
_NOTES_AT = 2 * SLOT_BYTES
FILE_BYTES = _NOTES_AT + THREADS * NOTE_BYTES
# How the stacks of a crash name the thread that crashed.
_CRASHED = re.compile(r"^Current thread 0x([0-9a-f]+)", re.M)

Name = tuple[bytes, str]  # of a request: its client and its rid
Note = Name | str  # a request, or the key of a grammar


class Record(Struct, frozen=True, array_like=True):
    """The requests of the step that runs, or was the last to; whether it is a trial, that is not
    over; whether it is between two steps of the trial, when only a crash counts; the suspects that
    have passed their trials; and whose trial goes on if this is a step of others. `loop` is the
    thread that plans."""

    running: list[Name] = []
    is_trial: bool = False
    is_between: bool = False
    cleared: list[Name] = []
    on_trial: Name | None = None
    loop: int = 0


class Left(NamedTuple):
    """All that a scheduler has left; `note` tells what the thread that has crashed was at."""

    record: Record = Record()
    last_words: str = ""
    note: Note | None = None

    @property
    def is_of_loop(self) -> bool:
        """Whether the thread that plans has crashed, not one that runs a step."""
        return self.record.loop != 0 and _crashed(self.last_words) == self.record.loop


class BlameFile:
    """The mapped file. A new one has an empty record."""

    def __init__(self, path: Path) -> None:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
            self._map = mmap.mmap(file.fileno(), FILE_BYTES)
        self.notes = Notes(self._map)
        self._number = max(self._slots(), default=0)

    def read(self) -> Record:
        """The newest whole record."""
        slots = self._slots()
        return msgspec.msgpack.decode(slots[max(slots)], type=Record) if slots else Record()

    def write(self, record: Record) -> None:
        """Replace the record. One that is too long is written without names."""
        data = msgspec.msgpack.encode(record)
        if len(data) > SLOT_BYTES - _HEAD.size:
            data = msgspec.msgpack.encode(Record())
        self._number += 1
        at = self._number % 2 * SLOT_BYTES
        begin = at + _HEAD.size
        self._map[begin : begin + len(data)] = data
        self._map[at:begin] = _HEAD.pack(self._number, len(data), _checksum(self._number, data))

    def _slots(self) -> dict[int, bytes]:
        """The records that are whole, by their numbers."""
        found = {}
        for at in (0, SLOT_BYTES):
            number, length, checksum = _HEAD.unpack_from(self._map, at)
            begin = at + _HEAD.size
            data = self._map[begin : min(begin + length, at + SLOT_BYTES)]
            if number > 0 and _checksum(number, data) == checksum:
                found[number] = data
        return found


class Notes:
    """Whose constraint each thread is at, following it or loading it: a slot for each thread."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._map = memory
        self._slots: dict[int, int] = {}  # by thread: where its slot begins
        self._lock = threading.Lock()

    def left(self, last_words: str) -> Note | None:
        """The note of the thread that has ended the process, which its words name."""
        crashed = _crashed(last_words)
        if crashed is None:
            return None
        for at in range(_NOTES_AT, FILE_BYTES, NOTE_BYTES):
            thread, length = _NOTE_HEAD.unpack_from(self._map, at)
            if length and thread == crashed:
                begin = at + _NOTE_HEAD.size
                data = self._map[begin : begin + length]
                return msgspec.msgpack.decode(data, type=tuple[bytes, str] | str)
        return None

    @contextmanager
    def of(self, note: bytes) -> Iterator[None]:
        """Meanwhile this thread is at what `note`, which is packed, names. Not to be nested."""
        at = self._slot()
        begin = at + _NOTE_HEAD.size
        self._map[begin : begin + len(note)] = note
        self._map[at:begin] = _NOTE_HEAD.pack(threading.get_ident(), len(note))
        try:
            yield
        finally:
            self._map[at:begin] = _NO_NOTE

    def _slot(self) -> int:
        thread = threading.get_ident()
        at = self._slots.get(thread)
        if at is None:
            with self._lock:
                at = _NOTES_AT + NOTE_BYTES * min(len(self._slots), THREADS - 1)
                self._slots[thread] = at
        return at


def packed(note: Note) -> bytes:
    """A note as it is written; nothing if it is too long."""
    data = msgspec.msgpack.encode(note)
    return data if len(data) <= NOTE_BYTES - _NOTE_HEAD.size else b""


class LastWords:
    """What a process that ends by its own doing, by a crash, an error or a hang, leaves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(b"")

    def listen(self) -> None:
        """If a signal such as SIGSEGV ends this process, leave the stacks of all threads."""
        faulthandler.enable(open(self._path, "a"))  # noqa: SIM115

    def write(self, text: str, thread: int | None = None) -> None:
        """Leave this, and which thread is the cause."""
        with open(self._path, "a") as file:
            file.write(text if thread is None else f"{text}\nCurrent thread 0x{thread:x}")

    def move(self, path: Path) -> None:
        """Leave them under another name from now on."""
        self._path.rename(path)
        self._path = path


def blame_path(directory: Path, incarnation: int) -> Path:
    """Where the scheduler of this incarnation has its record."""
    return directory / f"blame.{incarnation}"


def last_words_path(directory: Path, incarnation: int) -> Path:
    """Where it has its last words."""
    return directory / f"last_words.{incarnation}"


def left_by(directory: Path, incarnation: int) -> Left:
    """What the scheduler of this incarnation, which has ended, has left. Nothing, if it had not
    begun."""
    path, words = blame_path(directory, incarnation), last_words_path(directory, incarnation)
    if not path.exists() or path.stat().st_size < FILE_BYTES:
        return Left()
    file = BlameFile(path)
    last_words = words.read_text(errors="replace") if words.exists() else ""
    return Left(file.read(), last_words, file.notes.left(last_words))


def forget_before(directory: Path, incarnation: int, replicas: int) -> None:
    """Remove what the replica's schedulers before this incarnation have left."""
    for path in [*directory.glob("blame.*"), *directory.glob("last_words.*")]:
        number = int(path.suffix[1:])
        if number % replicas == incarnation % replicas and number < incarnation:
            path.unlink(missing_ok=True)


def _crashed(last_words: str) -> int | None:
    """The thread that they name."""
    found = _CRASHED.search(last_words)
    return None if found is None else int(found[1], 16)


def _checksum(number: int, data: bytes) -> int:
    return zlib.crc32(data, number & 0xFFFFFFFF)
