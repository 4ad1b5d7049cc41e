"""The seconds of some work at each replica, of which some are slower than others.

A replica's own figure is noisy: it says as much of the requests that the replica had lately. So it
counts as far as it was reported often, and differs from the others by more than chance. Replicas
that are equal all have the mean, to the bit.
"""

import math
from collections.abc import Iterable

import numpy as np

FEW = 20  # reports, with which a replica's own figure counts half
ALIKE = 1.2  # times the median, or less: that is noise
CLEAR = 1.4  # times: that is none


class Paces:
    """One figure of each of `replicas`, all of which are present at first; `default` is the mean
    before any was reported."""

    def __init__(self, replicas: int, default: float) -> None:
        self._default = default
        self._latest = np.full(replicas, np.nan)
        self._reports = np.zeros(replicas, np.int64)
        self._present = np.ones(replicas, bool)
        self._mean, self._own = default, np.full(replicas, default)

    @property
    def mean(self) -> float:
        """Seconds: the mean of those that are present and known, except for those that differ from
        the others."""
        return self._mean

    @property
    def own(self) -> np.ndarray:
        """float64 [replicas], seconds: each one's, shrunk towards the mean. That is also the figure
        of those that are not known or not present. Not to be changed."""
        return self._own

    def take(self, replica: int, seconds: float) -> None:
        """A report; 0 says nothing."""
        if seconds > 0.0:
            self._latest[replica] = seconds
            self._reports[replica] += 1
            self._sum_up()

    def keep(self, present: Iterable[int]) -> None:
        """Only these are present. The others are forgotten: another machine may come next."""
        self._present[:] = False
        self._present[[*present]] = True
        self._latest[~self._present] = np.nan
        self._reports[~self._present] = 0
        self._sum_up()

    def _sum_up(self) -> None:
        known = np.flatnonzero(~np.isnan(self._latest))
        latest, reports = self._latest[known], self._reports[known]
        if len(known) == 0:
            self._mean, share = self._default, latest
        else:
            logs = np.log(latest)
            clear = np.abs(logs - np.median(logs)) - math.log(ALIKE)
            is_alike = clear <= 0.0
            share = np.clip(clear / math.log(CLEAR / ALIKE), 0.0, 1.0) * reports / (reports + FEW)
            self._mean = float((latest[is_alike] if is_alike.any() else latest).mean())
        self._own = np.full(len(self._latest), self._mean)
        self._own[known] += share * (latest - self._mean)
