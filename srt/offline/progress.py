"""A progress bar: one line on stderr that counts."""

import sys
import time

MIN_INTERVAL_S = 0.1  # between two drawings


class ProgressBar:
    """Counts to `total`; says nothing if that is 0. `unit` is what is counted."""

    def __init__(self, total: int, unit: str = "") -> None:
        self._total, self._unit = total, unit
        self._done = 0
        self._began = time.monotonic()
        self._drawn = float("-inf")

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        now = time.monotonic()
        if self._total and (self._done == self._total or now - self._drawn >= MIN_INTERVAL_S):
            self._drawn = now
            rate = self._done / max(now - self._began, 1e-9)
            unit = f" {self._unit}" if self._unit else ""
            sys.stderr.write(f"\r{self._done}/{self._total}{unit}, {rate:.1f}/s")
            sys.stderr.flush()

    def end(self) -> None:
        """The work is done: end the line."""
        if self._total:
            sys.stderr.write("\n")
            sys.stderr.flush()
