"""How many of the requests that were placed lately have each block of a prompt."""

from collections.abc import Hashable, Sequence

import numpy as np

RECENT = 64  # at least this many requests are remembered, and at most twice as many


class Demand:
    """Counts for each block of a prompt how many of the requests that were placed lately have it,
    in two halves: the older one is forgotten when the newer one is full. The prefix that the
    requests of a group have in common counts once in a half: they are no more than one program's.

    Requests in flight alone would not do: of a tree of prompts, they may all have the same root at
    one time, and none a moment later, while a prefix that everybody uses is worth a copy
    everywhere.
    """

    def __init__(self) -> None:
        self._newer: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self._num_newer = self._num_older = 0
        self._prefixes: dict[Hashable, Sequence[bytes]] = {}  # in the newer half, by group

    @property
    def total(self) -> int:
        """How many requests are remembered."""
        return self._num_newer + self._num_older

    def add(self, hashes: Sequence[bytes], group: Hashable = None) -> None:
        """A request with these blocks is placed; `group` is the one that it is part of."""
        if self._num_newer == RECENT:
            self._older, self._newer, self._prefixes = self._newer, {}, {}
            self._num_older, self._num_newer = self._num_newer, 0
        self._num_newer += 1
        counts, known = self._newer, 0
        if group is not None:
            before = self._prefixes.get(group)
            known = 0 if before is None else _common(before, hashes)
            self._prefixes[group] = hashes if before is None else hashes[:known]
        for name in hashes[known:]:
            counts[name] = counts.get(name, 0) + 1

    def of(self, hashes: Sequence[bytes]) -> np.ndarray:
        """int64 [blocks]: how many of those requests have each of the blocks."""
        newer, older = self._newer, self._older
        counts = [newer.get(name, 0) + older.get(name, 0) for name in hashes]
        return np.array(counts, np.int64)


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """The number of blocks that both begin with."""
    most = min(len(one), len(other))
    return next((number for number in range(most) if one[number] != other[number]), most)
