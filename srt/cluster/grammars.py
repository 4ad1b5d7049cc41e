"""Messages for a node's schedulers, held back until the compiled grammars that they name are there.

A compiled grammar is a file in the ring's directory. A node has a directory of its own, so its
agent asks the hub for each file that a message needs and that it does not have. What follows a
message that waits, for the same scheduler, waits too: an abort must not overtake its request.
"""

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from srt.ring.socket import Blob

log = logging.getLogger(__name__)

CACHE_BYTES = 512 * 2**20
_WAIT_S = 5.0  # the scheduler asks the front for a grammar that has not come

Frames = Sequence[Blob]


class GrammarFiles:
    """The compiled grammars of a node in `folder`, the least recently used removed first."""

    def __init__(self, folder: Path, limit: int = CACHE_BYTES) -> None:
        self._folder, self._limit = folder, limit
        folder.mkdir(mode=0o700, exist_ok=True)

    def has(self, key: str) -> bool:
        """Whether the file is there; then it was used now."""
        with suppress(OSError):
            os.utime(self._folder / key)
            return True
        return False

    def remove(self, key: str) -> None:
        """Remove what was damaged."""
        (self._folder / key).unlink(missing_ok=True)

    def add(self, key: str, data: Blob, digest: bytes) -> None:
        """Write the file, unless its hash is another one."""
        if hashlib.sha256(data).digest() != digest:
            log.warning("the grammar %s has come damaged", key)
            return
        new = self._folder / f".{key}.new"
        with suppress(OSError):  # a full disk: the scheduler says that it is missing
            new.write_bytes(data)
            new.replace(self._folder / key)
        self._shrink()

    def _shrink(self) -> None:
        sizes = {path: path.stat() for path in self._folder.iterdir()}
        excess = sum(stat.st_size for stat in sizes.values()) - self._limit
        oldest = sorted(sizes, key=lambda path: sizes[path].st_mtime)
        for path in oldest[:-1]:
            if excess <= 0:
                return
            excess -= sizes[path].st_size
            path.unlink(missing_ok=True)


class HeldMessages:
    """Of each scheduler, by its place, in their order. `ask` asks for a grammar, `send` sends on.
    Times in s."""

    def __init__(self, ask: Callable[[str], object], send: Callable[[int, Frames], object]) -> None:
        self._ask, self._send = ask, send
        self._queues: dict[int, deque[tuple[str, Frames]]] = {}
        self._asked: dict[str, float] = {}  # when

    def add(self, place: int, frames: Frames, needed: str, now: float) -> None:
        """Send a message on, once the grammar `needed` ("": none) has come."""
        queue = self._queues.setdefault(place, deque())
        if needed and needed not in self._asked:
            self._asked[needed] = now
            self._ask(needed)
        if needed or queue:
            queue.append((needed, frames))
        else:
            self._send(place, frames)

    def came(self, key: str) -> None:
        """A grammar has come, or does not exist."""
        self._asked.pop(key, None)
        self._go_on()

    def expire(self, now: float) -> None:
        """Give up what has not come in time."""
        for key in [key for key, since in self._asked.items() if now - since > _WAIT_S]:
            log.warning("the grammar %s has not come within %g s", key, _WAIT_S)
            self.came(key)

    def drop(self, place: int) -> None:
        """The place's scheduler has ended: nothing more is for it."""
        self._queues.pop(place, None)

    def _go_on(self) -> None:
        for place, queue in self._queues.items():
            for frames in _ready(queue, self._asked):
                self._send(place, frames)


def _ready(queue: deque[tuple[str, Frames]], missing: dict[str, float]) -> Iterator[Frames]:
    while queue and queue[0][0] not in missing:
        yield queue.popleft()[1]
