"""What a scheduler leaves to the next one: which requests its last step was for, and whether that
was a trial (`Trials`). Others are suspects; that of a trial is guilty if the scheduler has crashed.
If it was killed, by somebody or for want of memory, it is so at the second time. After a
loss the next scheduler also notes whose constraint it follows or loads (`Notes`): if it crashes
there, that one is guilty, and nobody else.

It is written to a mapped file in the ring's directory, which keeps it however the process ends. The
file has two slots, written in turn, each with a number and a checksum: a process that is killed
while it writes leaves the record before.
"""

import logging
import mmap
import os
import struct
import threading
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
from msgspec import Struct

from scheduler_proc.last_words import LastWords
from scheduler_proc.notes import Note, Notes, named, packed
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.step import Step
from scheduler_proc.trials import Name
from srt.wire.errors import UNAVAILABLE, ErrorInfo
from srt.wire.ring_messages import TokenizedReq

log = logging.getLogger(__name__)

SLOT_BYTES = 1024 * 1024
MAX_NAMES = 1024  # of suspects, and of the guilty; some may never come back
_HEAD = struct.Struct("<QII")  # the record's number (from 1 on), its length, its checksum

GUILTY = ErrorInfo(
    UNAVAILABLE, "the scheduler was lost when it ran nothing but this request", retryable=True
)


class Record(Struct, frozen=True, array_like=True):
    """The requests of the step that runs, or was the last to; whether it is a trial, that is not
    over; the suspects and the guilty that have not been dealt with; of the suspects those in whose
    trials a scheduler was killed; whether it is between two steps of the trial, when only a
    crash counts; and the grammars that are guilty."""

    running: list[Name] = []
    is_trial: bool = False
    suspects: list[Name] = []
    guilty: list[Name] = []
    killed: list[Name] = []
    is_between: bool = False
    grammars: list[str] = []

    def judged(self, has_crashed: bool, note: Note | None = None) -> "Record":
        """The record of the next scheduler, before its first step; `note` tells who is guilty, if
        that is known."""
        suspects, guilty, killed = [*self.running, *self.suspects], self.guilty, self.killed
        grammars = self.grammars
        if isinstance(note, str):
            grammars = [*dict.fromkeys([note, *grammars])][:MAX_NAMES]
        elif note is not None:
            guilty = [*dict.fromkeys([note, *guilty])]
        elif self.is_trial:
            is_guilty = has_crashed or (not self.is_between and self.running[0] in killed)
            guilty = [*self.running, *guilty] if is_guilty else guilty
            killed = killed if self.is_between else [*self.running, *killed]
        suspects = [name for name in dict.fromkeys(suspects) if name not in guilty]
        killed = [name for name in dict.fromkeys(killed) if name in suspects]
        names = suspects[:MAX_NAMES], guilty[:MAX_NAMES], killed[:MAX_NAMES]
        return Record([], False, *names, grammars=grammars)


class BlameFile:
    """The mapped file. A new one has an empty record."""

    def __init__(self, path: Path) -> None:
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            size = 2 * SLOT_BYTES + Notes.SIZE
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
        self.notes = Notes(self._map, 2 * SLOT_BYTES)
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


class Blame:
    """Notes which requests of `core` run, for the next scheduler. Of those that the last one has
    left, the core gets the suspects; the guilty, of whom one may be new, are to be ended."""

    @classmethod
    def of_ring(cls, directory: Path, core: Scheduler) -> "Blame":
        """The one of this process, in the ring's directory."""
        last_words = LastWords(directory / "last_words")
        last_words.listen()
        return cls(directory / "blame", core, last_words)

    def __init__(self, path: Path, core: Scheduler, last_words: LastWords) -> None:
        self._last_words = last_words
        if last_words.found:
            log.error("the last scheduler's last words: %s", last_words.found)
        self._file = BlameFile(path)
        last, has_crashed = self._file.read(), last_words.found != ""
        note = self._file.notes.left(last_words.found)
        self._file.notes.clear()
        self._left = last.judged(has_crashed, note)
        is_wary = has_crashed or bool(self._left.suspects)
        self.notes = self._file.notes if is_wary else None  # that this process is to take
        self._guilty = dict.fromkeys(self._left.guilty)
        self._grammars = self._left.grammars
        self.has_new_guilty = self._left.guilty != last.guilty or self._grammars != last.grammars
        core.suspect(self._left.suspects)
        self._trials = core.trials
        self._trial: Step | None = None
        self._lock = threading.Lock()  # a step may begin while the one before is noted as ended
        self._noted: tuple[list[int], frozenset[Name], int] | None = None
        self._write([])
        if last.running:
            what = "in a trial" if last.is_trial else "in or after a step"
            names = ", ".join(map(spelled, last.running))
            log.warning("the last scheduler was lost %s of these requests: %s", what, names)

    def takes(self, req: TokenizedReq) -> bool:
        """Whether the request is guilty: it is to be ended, and is forgotten here."""
        name = (req.client, req.rid)
        if name in self._guilty:
            del self._guilty[name]
        elif req.grammar not in self._grammars:
            return False
        log.error("request %s is ended: a scheduler died when it ran only this", spelled(name))
        return True

    def accuse(self, names: list[Name]) -> None:
        """Leave these as suspects, as if the last step had been theirs."""
        self._trial = None
        self._write(names)

    def own_up(self, why: str, thread: int | None = None) -> None:
        """This process ends by its own doing, or that of one of its threads."""
        self._last_words.write(why if thread is None else f"{why}\n{named(thread)}")

    def note_grammar(self, key: str) -> AbstractContextManager[None]:
        """Lasts as long as this thread loads a grammar."""
        return nullcontext() if self.notes is None else self.notes.of(packed(key))

    def clear(self) -> None:
        """A new epoch: none of the guilty will come."""
        self._guilty.clear()
        self._grammars = []

    def end(self, step: Step) -> None:
        """The step is committed. If it was a trial's last, nobody is to blame for what comes now;
        if another follows, its planning may crash."""
        with self._lock:
            if step is self._trial:
                self._trial, name = None, step.rows[0].req.key
                is_over = name not in self._trials.suspects
                self._write([] if is_over else [name], is_between=not is_over)

    # ---- in the compute thread -----------------------------------------------------------------

    def begin(self, step: Step) -> None:
        """A step begins. Writes nothing while the same requests run."""
        handles, suspects = [row.req.handle for row in step.rows], self._trials.suspects
        with self._lock:
            if self._noted != (handles, suspects, len(self._guilty)):
                names = [row.req.key for row in step.rows]
                self._trial = step if len(names) == 1 and names[0] in suspects else None
                self._write(names)
                self._noted = (handles, suspects, len(self._guilty))

    def _write(self, running: list[Name], *, is_between: bool = False) -> None:
        left, open_ = self._left, self._trials.suspects
        suspects = [name for name in left.suspects if name in open_]
        killed = [name for name in left.killed if name in open_]
        is_trial, guilty = self._trial is not None or is_between, list(self._guilty)
        grammars = self._grammars
        self._file.write(Record(running, is_trial, suspects, guilty, killed, is_between, grammars))
        self._noted = None


def spelled(name: Name) -> str:
    """A request's client and rid, for the log."""
    return f"{name[0].hex()}/{name[1]}"


def _checksum(number: int, data: bytes) -> int:
    return zlib.crc32(data, number & 0xFFFFFFFF)
