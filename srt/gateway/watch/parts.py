"""What the server's processes take of the machine, read where Linux shows it."""

import os
import time
from pathlib import Path
from typing import Any

from srt.wire.ring_state import RingEvent

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Parts:
    """Measures between one call and the next."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last: dict[int, tuple[float, float]] = {}  # by process: when, and its CPU time

    def look(self, ring: RingEvent) -> list[dict[str, Any]]:
        """For each part its name and state, the cores that it used since the last call, its memory
        in bytes (both null where they are not known), and how often it was lost."""
        losses: dict[str, int] = {}
        for part, _, count in ring.losses:
            losses[part] = losses.get(part, 0) + count
        last, self._last = self._last, {}
        found = []
        for name, state in ({"launcher": "ready"} | ring.parts).items():
            pid = ring.pids.get(name, 0)
            row = {"name": name, "state": state, "losses": losses.get(name, 0)}
            found.append(row | self._use(pid, last.get(pid)))
        return found

    def _use(self, pid: int, last: tuple[float, float] | None) -> dict[str, Any]:
        try:
            # The name, which stands in brackets, may hold spaces.
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return {"cpu": None, "rss": None}
        now, used_s = time.monotonic(), (int(fields[11]) + int(fields[12])) / _TICKS
        self._last[pid] = now, used_s
        cpu = None
        if last is not None and now > last[0]:
            cpu = round(max(0.0, used_s - last[1]) / (now - last[0]), 3)
        return {"cpu": cpu, "rss": int(fields[21]) * _PAGE}
