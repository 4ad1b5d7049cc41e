"""How far something is that counts bytes: a bar on a terminal, elsewhere a line now and then."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

_LINE_EVERY_S = 5.0
_BAR_AFTER_S = 1.0
_GUESS_AFTER = 0.05  # of all: before that the time that is left would be a wild guess
_BAR_WITHOUT_TIME = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}]"
_GIB, _MIB = 2**30, 2**20


def shown(num_bytes: int) -> str:
    """A size, as people read it."""
    if num_bytes >= _GIB:
        return f"{num_bytes / _GIB:.1f} GiB"
    return f"{num_bytes / _MIB:.1f} MiB"


class Progress:
    """Of `total` bytes (negative: unknown), counted by several threads. Use it in `with`. What is
    done in a second shows nothing."""

    def __init__(self, name: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._total, self._clock = name, total, clock
        self._done = self._since_start = 0
        self._started = self._said = clock()
        self._lock = threading.Lock()
        self._has_ended = False
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._total if self._total >= 0 else None,
                desc=self._name,
                unit="B",
                unit_scale=True,
                unit_divisor=1024,
                delay=_BAR_AFTER_S,
                leave=False,
                bar_format=None if self._total < 0 else _BAR_WITHOUT_TIME,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def have(self, num_bytes: int) -> None:
        """So many were there already; negative: they were not, after all."""
        self._count(num_bytes, 0)

    def add(self, num_bytes: int) -> None:
        """So many have arrived. Raises InterruptedError if it was ended: the threads that count
        are to stop."""
        self._count(num_bytes, num_bytes)
        if self._has_ended:
            raise InterruptedError("stopped")

    def end(self) -> None:
        """Stop those who count."""
        self._has_ended = True

    def _count(self, num_bytes: int, arrived: int) -> None:
        with self._lock:
            self._done += num_bytes
            self._since_start += arrived
            if self._bar is not None:
                if self._done >= _GUESS_AFTER * self._total:
                    self._bar.bar_format = None
                self._bar.update(num_bytes)
            elif self._clock() - self._said >= _LINE_EVERY_S:
                self._said = self._clock()
                self._say()

    def _say(self) -> None:
        rate = self._since_start / max(self._said - self._started, 1e-9)
        of_all, left = "", ""
        if self._total >= 0:
            share = 100 * self._done / max(self._total, 1)
            of_all = f" of {shown(self._total)} ({share:.0f} %)"
            if rate > 0 and self._done >= _GUESS_AFTER * self._total:
                left = f", {(self._total - self._done) / rate:.0f} s left"
        log.info("%s: %s%s, %s/s%s", self._name, shown(self._done), of_all, shown(int(rate)), left)
