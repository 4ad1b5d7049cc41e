"""What the supervisor counts for operators: the parts that were lost, by how, and the time in which
requests had no scheduler."""

import time
from collections import Counter

from srt.ring.actor import EXIT_HANG


class Losses:
    """Of one server, since its start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self.pause_s = 0.0  # of all pauses that are over
        self._paused_at: float | None = None

    def add(self, part: str, status: int, *, was_silent: bool) -> None:
        """A part has ended with `status`, as a Popen's `wait` gives it."""
        by_itself = "signal" if status < 0 else "exit"
        is_hang = was_silent or status == EXIT_HANG
        self._counts[part, "hang" if is_hang else by_itself] += 1

    def pause(self) -> None:
        """There is no scheduler from now on."""
        self._paused_at = self._paused_at or time.monotonic()

    def go_on(self) -> None:
        """There is one."""
        if self._paused_at is not None:
            self.pause_s += time.monotonic() - self._paused_at
            self._paused_at = None

    @property
    def counts(self) -> list[tuple[str, str, int]]:
        """Each part, kind ("signal", "exit", "hang") and number."""
        return [(part, kind, count) for (part, kind), count in sorted(self._counts.items())]
