"""`Log`: the answers of a run, by the addresses of its calls, in memory or in a file."""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

from lang import loop
from lang.logs.address import Address, address_of
from lang.logs.entries import Entry
from lang.logs.log_file import Dropped, LogFile, LogIsBusy
from srt import forked

PATIENCE_S = 0.25  # a run's last answer is there a moment before the run is over
_POLL_S = 0.002


class Owner(Protocol):
    """The run that writes a log."""

    @property
    def is_over(self) -> bool: ...


class Log:
    """What each call of a run answered: of a run that was, and of one that goes on.

    With a `path` it is a file, which one run writes at a time, of all processes; it is made when a
    run begins to write it, and may be written by others when that is over. Without one it lives in
    memory. Iterating gives the entries in the order in which they were answered.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._file = None if path is None else LogFile(path)
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()
        self._owner: weakref.ref[Owner] | None = None
        forked.renew_in_children(self, Log._begin_in_child)
        if self._file is not None:
            self._take(self._file.read())

    def _begin_in_child(self) -> None:
        """The run that writes it is the parent's, and so is the file, which would stay locked."""
        self._lock, self._owner = threading.Lock(), None
        if self._file is not None:
            self._file.close()

    @property
    def path(self) -> Path | None:
        """The file, if it is one."""
        return None if self._file is None else self._file.path

    def __iter__(self) -> Iterator[Entry]:
        with self._lock:
            return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, address: Address | str) -> Entry | None:
        """The entry of a call, if there is one."""
        return self._entries.get(str(address))

    def copy(self, until: Address | str | None = None) -> "Log":
        """A log in memory with the entries that are there; with `until`, those that were answered
        before the call at that address. Raises ValueError if it has none."""
        made = Log()
        made._entries = self.before(until)
        return made

    def before(self, until: Address | str | None = None) -> dict[str, Entry]:
        """The same as entries by the addresses' texts."""
        with self._lock:
            entries = dict(self._entries)
        if until is None:
            return entries
        last = str(address_of(str(until)))
        if last not in entries:
            raise ValueError(f"until: the log has no call at {last}")
        names = list(entries)
        return {name: entries[name] for name in names[: names.index(last)]}

    # ---- written by a run ----------------------------------------------------------------------

    def begin(self, owner: Owner) -> None:
        """`owner` writes from now on. Raises LangError if another run does."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._begin(owner)
            except LogIsBusy:
                if loop.on_loop_thread() or time.monotonic() > end:
                    raise
            time.sleep(_POLL_S)

    def _begin(self, owner: Owner) -> None:
        with self._lock:
            before = None if self._owner is None else self._owner()
            if before is not None and before is not owner and not before.is_over:
                raise LogIsBusy("log: another run is writing it: a log is one run's at a time")
            if self._file is not None:
                self._file.close()
                self._entries.clear()
                self._take(self._file.open())
            self._owner = weakref.ref(owner)

    def add(self, entry: Entry) -> None:
        """Record an answered call. An effect is on the disk when this returns."""
        with self._lock:
            self._entries.pop(entry.at, None)  # the order is that of the answers
            self._entries[entry.at] = entry
            self._write(entry, durable=entry.kind == "effect")

    def drop(self, places: list[str]) -> None:
        """Take out the entries at these addresses."""
        with self._lock:
            known = [place for place in places if self._entries.pop(place, None) is not None]
            if known:
                self._write(Dropped(known), durable=True)

    def _write(self, line: Entry | Dropped, durable: bool) -> None:
        if self._file is None:
            return
        is_late = not self._file.is_open  # the run was over, and something of it still was not
        if is_late:
            self._file.open()
        try:
            self._file.append(line, durable=durable)
        finally:
            if is_late:
                self._file.close()

    def _take(self, lines: list[Entry | Dropped]) -> None:
        for line in lines:
            if isinstance(line, Dropped):
                for place in line.dropped:
                    self._entries.pop(place, None)
            else:
                self._entries.pop(line.at, None)
                self._entries[line.at] = line

    def end(self, owner: Owner) -> None:
        """`owner` has nothing more to write."""
        if self._owner is not None and self._owner() is owner:
            self.close()

    def close(self) -> None:
        """Let other processes write the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def __repr__(self) -> str:
        where = "in memory" if self._file is None else str(self._file.path)
        return f"Log({where}, {len(self)} calls)"


def log_of(given: "Log | str | os.PathLike[str] | None") -> Log | None:
    """The log that is given, or that of a path."""
    if given is None or isinstance(given, Log):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"log must be a Log or a path, not {given!r}")
    return Log(Path(given))
