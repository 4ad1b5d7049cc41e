"""Which replicas the requests of a class keep to.

The classes `latency` and `throughput` are apart only while both are busy. Requests of the
second keep off the replicas that have most of the first, as long as another one has room: what one
replica computes for many delays each step of the others there. How many replicas these are goes by
how much there is of each class. The first prefer replicas without the second at a cost
(`policy.MIXED`), so that they spread when they are too many for those that are left to them.
"""

from collections.abc import Sequence

import numpy as np

from tokenizer_proc.routing.part_of import PartOf

BUSY_S = 10.0  # after its latest request, a class still is: a chat's next turn may come


class Apart:
    """The requests of each class that are in flight at `replicas` which run `rows` at once."""

    def __init__(self, replicas: int, rows: int) -> None:
        self._rows = rows
        self.throughput = np.zeros(replicas, np.int64)  # requests
        self._latency = np.zeros(replicas, np.int64)
        self._latest_s = np.full(replicas, -np.inf)  # when one of `latency` was placed
        self._others = np.zeros(replicas, np.int64)
        self._is_full = np.zeros(replicas, bool)

    def add(self, replica: int, part: PartOf, requests: int) -> None:
        """So many more are in flight there, or fewer."""
        by_class = {"latency": self._latency, "throughput": self.throughput, "": self._others}
        by_class[part.perf][replica] += requests
        if part.perf == "latency" and requests > 0:
            self._latest_s[replica] = max(part.at_s, self._latest_s[replica])

    def fill(self, replica: int, is_full: bool) -> None:
        """Whether the prompts there need all memory that it has."""
        self._is_full[replica] = is_full

    def kept_to(self, part: PartOf, among: Sequence[int]) -> np.ndarray:
        """int64: those `among` the replicas from which one for this request is to be chosen."""
        replicas = np.array(among)
        is_busy = self._latest_s[replicas] > part.at_s - BUSY_S
        latency, throughput = self._latency[replicas], self.throughput[replicas]
        latency = np.maximum(latency, is_busy)
        total = int(latency.sum())
        if part.perf != "throughput" or not total:
            return replicas
        # By their shares of both: what is apart stays so, and what is mixed comes apart.
        shares = throughput / max(1, throughput.sum()) - latency / total
        count = len(replicas) * total // (total + int(throughput.sum()) + 1)
        kept_off = np.argsort(shares, kind="stable")[: min(len(replicas) - 1, max(1, count))]
        is_open = self._has_room(replicas)
        is_open[kept_off[latency[kept_off] > 0]] = False
        return replicas[is_open] if is_open.any() else replicas

    def _has_room(self, replicas: np.ndarray) -> np.ndarray:
        """bool [replicas]: where one would run at once, as far as is known."""
        running = (self.throughput + self._latency + self._others)[replicas]
        room: np.ndarray = (running < self._rows) & ~self._is_full[replicas]
        return room
