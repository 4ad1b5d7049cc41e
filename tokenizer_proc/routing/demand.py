"""How many of the requests that were placed lately have each block of a prompt.

Requests in flight alone would not do: of a tree of prompts, they may all have the same root at one
time, and none a moment later, while a prefix that everybody uses is worth a copy everywhere.
"""

from collections.abc import Sequence

import numpy as np

RECENT = 64  # at least so many requests are remembered, and at most twice as many


class Demand:
    """Counts in two halves, of which the older is forgotten when the newer is full."""

    def __init__(self) -> None:
        self._newer: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self._num_newer = self._num_older = 0

    @property
    def total(self) -> int:
        """How many requests are remembered."""
        return self._num_newer + self._num_older

    def add(self, hashes: Sequence[bytes]) -> None:
        """A request with these blocks is placed."""
        if self._num_newer == RECENT:
            self._older, self._newer = self._newer, {}
            self._num_older, self._num_newer = self._num_newer, 0
        self._num_newer += 1
        counts = self._newer
        for name in hashes:
            counts[name] = counts.get(name, 0) + 1

    def of(self, hashes: Sequence[bytes]) -> np.ndarray:
        """int64 [blocks]: how many of those requests have each of the blocks."""
        newer, older = self._newer, self._older
        counts = [newer.get(name, 0) + older.get(name, 0) for name in hashes]
        return np.array(counts, np.int64)
