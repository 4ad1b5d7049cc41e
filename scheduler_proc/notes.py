"""Whose constraint each thread is at, for the next scheduler: following one, or loading it, may
crash outside of any step. Notes are taken only after a loss, since each costs a little.
"""

import mmap
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

import msgspec
import numpy as np

from scheduler_proc.grammar.base import Grammar
from scheduler_proc.trials import Name

THREADS = 4  # that follow constraints or load them: the loop, the compute thread, the loader
SLOT_BYTES = 2048
_HEAD = struct.Struct("<QH")  # the thread's number, the note's length
_NOTHING = _HEAD.pack(0, 0)
# How the stacks of a crash name the thread that crashed.
_CRASHED = re.compile(r"^Current thread 0x([0-9a-f]+)", re.M)

Note = Name | str  # a request, or the key of a grammar
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class Notes:
    """In a part of a mapped file, from `at` on: a slot for each thread."""

    SIZE = THREADS * SLOT_BYTES

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._map, self._at = memory, at
        self._slots: dict[int, int] = {}  # by thread: where its slot begins
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forget those of the last process."""
        self._map[self._at : self._at + self.SIZE] = bytes(self.SIZE)

    def left(self, last_words: str) -> Note | None:
        """The note of the thread that has ended the last process, which its words name."""
        crashed = _CRASHED.search(last_words)
        if crashed is None:
            return None
        for at in range(self._at, self._at + self.SIZE, SLOT_BYTES):
            thread, length = _HEAD.unpack_from(self._map, at)
            if length and thread == int(crashed[1], 16):
                data = self._map[at + _HEAD.size : at + _HEAD.size + length]
                return msgspec.msgpack.decode(data, type=tuple[bytes, str] | str)
        return None

    @contextmanager
    def of(self, note: bytes) -> Iterator[None]:
        """Meanwhile this thread is at what `note`, which is packed, names. Not to be nested."""
        at = self._slot()
        self._map[at + _HEAD.size : at + _HEAD.size + len(note)] = note
        self._map[at : at + _HEAD.size] = _HEAD.pack(threading.get_ident(), len(note))
        try:
            yield
        finally:
            self._map[at : at + _HEAD.size] = _NOTHING

    def _slot(self) -> int:
        thread = threading.get_ident()
        at = self._slots.get(thread)
        if at is None:
            with self._lock:
                at = self._at + SLOT_BYTES * min(len(self._slots), THREADS - 1)
                self._slots[thread] = at
        return at


def named(thread: int) -> str:
    """A thread in last words."""
    return f"Current thread 0x{thread:x}"


def packed(note: Note) -> bytes:
    """A note as it is written; nothing if it is too long."""
    data = msgspec.msgpack.encode(note)
    return data if len(data) <= SLOT_BYTES - _HEAD.size else b""


class NotedGrammar:
    """A `Grammar` that passes every call on to another, with a note of the request `name`."""

    __slots__ = ("_grammar", "_note", "_notes")

    def __init__(self, grammar: Grammar, notes: Notes, note: bytes) -> None:
        self._grammar, self._notes, self._note = grammar, notes, note

    def _noted(self, call: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        with self._notes.of(self._note):
            return call(*arguments)

    def fill(self, row: np.ndarray) -> None:
        self._noted(self._grammar.fill, row)

    def accept(self, tokens: Sequence[int]) -> None:
        self._noted(self._grammar.accept, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._noted(self._grammar.rollback, num_tokens)

    def forced_bytes(self) -> bytes:
        return self._noted(self._grammar.forced_bytes)

    def is_accepting(self) -> bool:
        return self._noted(self._grammar.is_accepting)

    def is_terminated(self) -> bool:
        return self._noted(self._grammar.is_terminated)

    def is_free(self) -> bool:
        return self._noted(self._grammar.is_free)

    def fork(self) -> "NotedGrammar":
        forked = self._noted(self._grammar.fork)
        return NotedGrammar(forked, self._notes, self._note)
