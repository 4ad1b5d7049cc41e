"""Percentiles of the last minute, from what Prometheus's histograms count anyway."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from prometheus_client import Histogram

WINDOW_S = 60.0
_SHARES = (0.5, 0.99)

Counts = list[tuple[float, float]]  # upper bounds in seconds, and how many were at most that


class Window:
    """What `histogram` has counted in the last WINDOW_S, as far as somebody asked."""

    def __init__(self, histogram: Histogram, clock: Callable[[], float] = time.monotonic) -> None:
        self._histogram, self._clock = histogram, clock
        self._seen: deque[tuple[float, Counts]] = deque()

    def percentiles(self) -> list[float] | None:
        """p50 and p99 in seconds, each within its bucket by rule of three; None where nothing was
        counted since the first call of the window."""
        now, counts = self._clock(), self._counts()
        while self._seen and self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        self._seen.append((now, counts))
        before = self._seen[0][1]
        gained = [(bound, n - m) for (bound, n), (_, m) in zip(counts, before, strict=True)]
        if not gained or gained[-1][1] <= 0:
            return None
        return [_at(gained, share) for share in _SHARES]

    def _counts(self) -> Counts:
        (metric,) = self._histogram.collect()
        samples = [each for each in metric.samples if each.name.endswith("_bucket")]
        return [(float(each.labels["le"]), each.value) for each in samples]


def _at(counts: Sequence[tuple[float, float]], share: float) -> float:
    """The value that `share` of what was counted does not exceed; the last finite bound where it is
    beyond that."""
    wanted = share * counts[-1][1]
    for (low, below), (high, upto) in pairwise([(0.0, 0.0), *counts]):
        if upto >= wanted:
            if high == float("inf"):
                return low
            return low + (high - low) * (wanted - below) / (upto - below)
    raise AssertionError("the last bucket holds all")
