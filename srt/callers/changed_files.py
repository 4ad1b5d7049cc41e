"""Whether files have changed since they were read, and are not still being written."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
_Stamp = tuple[int, int, int] | None


class ChangedFiles:
    """The files at `paths`, which count as read when this is made."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [Path(path) for path in paths]
        self._read = self._last = self._stamps()

    def take(self, read: Callable[[], _T]) -> _T | None:
        """What `read` makes of files that have changed: one was written or replaced, and is the
        same as at the last call, and after reading. None if there is nothing new. What `read`
        raises is passed on, once for a change."""
        before, self._last = self._last, self._stamps()
        if self._last == self._read or self._last != before:
            return None
        try:
            found = read()
        except Exception:
            self._read = self._last
            raise
        if self._stamps() != self._last:
            return None
        self._read = self._last
        return found

    def _stamps(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> _Stamp:
    """A value that changes with a file and its permissions; None if there is no file."""
    with suppress(OSError):
        found = path.stat()
        return found.st_ctime_ns, found.st_size, found.st_ino
    return None
