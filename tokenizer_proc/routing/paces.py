"""The seconds of some work at each replica, of which some are slower than others.

What a replica reports of its requests says as much of these as of its speed, so the mean over all
counts, times how much slower the replica itself is: by what its steps take, as far as that was
reported often and differs from the others by more than chance. Replicas that are equal all have the
mean, to the bit.

Steps have different sizes where the work differs. What one of another size would take there is not
measured, and a line through its steps does not tell: but a larger step takes no less, and each
token of it no more. Within these bounds replicas are equal.
"""

import math
from collections.abc import Iterable

import numpy as np

FEW = 50  # reports, some seconds of work: then the square of `ALIKE` is noise, and half counts
ALIKE = 1.2  # times the middle, or less: that is noise
CLEAR = 1.4  # times: that is none


class Paces:
    """One figure of each of `replicas`, all of which are present at first; `default` is the mean
    before any was reported."""

    def __init__(self, replicas: int, default: float) -> None:
        self._default = default
        self._latest = np.full(replicas, np.nan)
        self._steps = np.full(replicas, np.nan)  # seconds
        self._sizes = np.ones(replicas)  # of these
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

    def take(self, replica: int, seconds: float, size: float, step_s: float) -> None:
        """A report of its requests, and of a step of `size` tokens. 0 says nothing, nor does one
        that is not present, and the same step as before nothing more of that."""
        if not self._present[replica]:
            return
        if seconds > 0.0:
            self._latest[replica] = seconds
        is_new = (size, step_s) != (self._sizes[replica], self._steps[replica])
        if size > 0.0 and step_s > 0.0 and is_new:
            self._sizes[replica], self._steps[replica] = size, step_s
            self._reports[replica] += 1
        self._sum_up()

    def keep(self, present: Iterable[int]) -> None:
        """Only these are present. The others are forgotten: another machine may come next."""
        self._present[:] = False
        self._present[[*present]] = True
        self._latest[~self._present] = self._steps[~self._present] = np.nan
        self._reports[~self._present] = 0
        self._sum_up()

    def _sum_up(self) -> None:
        slower, is_alike = np.ones(len(self._latest)), np.ones(len(self._latest), bool)
        known = np.flatnonzero(~np.isnan(self._steps))
        if len(known) > 1:
            off, reports = self._off(known), self._reports[known]
            clear = np.abs(off) - math.log(ALIKE) * (1.0 + FEW / reports)
            is_alike[known] = alike = (clear <= 0.0) | (not (clear <= 0.0).any())
            share = np.clip(clear / math.log(CLEAR / ALIKE), 0.0, 1.0) * reports / (reports + FEW)
            times = np.exp(off)
            slower[known] += share * (times / times[alike].mean() - 1.0)
        figures = self._latest[is_alike & ~np.isnan(self._latest)]
        self._mean = float(figures.mean()) if len(figures) else self._default
        self._own = self._mean * slower

    def _off(self, known: np.ndarray) -> np.ndarray:
        """float64 [known]: logarithms of how many times the middle a step takes there, at least: 0
        where it may be equal. All as for a step of the size in the middle."""
        sizes = np.log(self._sizes[known])
        sizes -= np.median(sizes)
        half = np.abs(sizes) / 2
        steps = np.log(self._steps[known]) - sizes / 2  # at most half more, or less
        steps -= np.median(np.concatenate((steps - half, steps + half)))
        off: np.ndarray = np.sign(steps) * np.maximum(0.0, np.abs(steps) - half)
        return off
