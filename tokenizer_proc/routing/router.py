"""Places requests: index, loads and a policy."""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from srt.block_hash import BLOCK
from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from srt.wire.ring_state import replica_of
from tokenizer_proc.routing.index import Index
from tokenizer_proc.routing.load import Loads
from tokenizer_proc.routing.policy import View, make_policy, round_robin

RECENT = 64  # at least this many requests are remembered, and at most twice as many


class Demand:
    """Counts for each block of a prompt how many of the requests that were placed lately have it,
    in two halves: the older one is forgotten when the newer one is full.

    Requests in flight alone would not do: of a tree of prompts, they may all have the same root at
    one time, and none a moment later, while a prefix that everybody uses is worth a copy
    everywhere.
    """

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


class _Placed(NamedTuple):
    replica: int
    life: int  # of the replica
    hashes: Sequence[bytes]
    requests: int


class _Life:
    """A replica from one start to the next. `ended` counts its requests that have ended, `late` are
    the prompts of those of them whose blocks' events may still come: until it reports so many. It
    has `reported` this number; one that is idle reports nothing any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = self.reported = 0
        self.late: deque[tuple[int, Sequence[bytes]]] = deque()


class Router:
    """Among `replicas`; `policy` is one of `--router-policy`. Requests that belong together have
    one key, which is placed until it has `ended`."""

    def __init__(self, replicas: int, policy: str = "cache-aware", seed: int = -1) -> None:
        self._replicas = replicas
        self.index = Index(replicas)
        self._loads = Loads(replicas)
        self._policy = make_policy(policy, seed)
        self.needs_blocks = policy == "cache-aware"
        self._ties_by_match = self._policy is not round_robin
        self._placed: dict[Hashable, _Placed] = {}
        self._demand = Demand()
        self._lives = [_Life(0) for _ in range(replicas)]
        self._chosen_at = np.zeros(replicas, np.int64)  # which was chosen later has more

    def place(
        self,
        key: Hashable,
        hashes: Sequence[bytes],
        tokens: int,
        among: Sequence[int],
        requests: int = 1,
    ) -> int:
        """One of the replicas `among` for as many `requests`, whose common prompt has these blocks
        and so many tokens."""
        matched = np.zeros(self._replicas, np.int64)
        self.index.match(hashes, matched)
        chosen = among[0] if len(among) == 1 else self._choose(hashes, matched, np.array(among))
        self._chosen_at[chosen] = self._chosen_at.max() + 1
        self._placed[key] = _Placed(chosen, self._lives[chosen].number, hashes, requests)
        self._demand.add(hashes)
        self.index.send(chosen, hashes)
        self._loads.send(chosen, requests, max(1, tokens - BLOCK * int(matched[chosen])))
        return chosen

    def _choose(self, hashes: Sequence[bytes], matched: np.ndarray, among: np.ndarray) -> int:
        loads = self._loads
        view = View(
            matched[among],
            loads.backlog[among],
            loads.in_flight[among],
            loads.token_s.own[among],
            loads.request_s.own[among],
            loads.token_s.mean,
            loads.request_s.mean,
            self._demand.of(hashes),
            self._demand.total,
        )
        costs = self._policy(view)
        best = np.flatnonzero(costs == costs.min())
        if self._ties_by_match:
            best = best[view.matched[best] == view.matched[best].max()]
        return int(among[best[np.argmin(self._chosen_at[among[best]])]])

    def ended(self, key: Hashable) -> None:
        """All requests of this key have ended, or their replica was lost; others are ignored."""
        placed = self._placed.pop(key, None)
        if placed is None:
            return
        replica = placed.replica
        self._loads.end(replica, placed.requests)
        life = self._lives[replica]
        if placed.life == life.number:
            life.ended += placed.requests
            life.late.append((life.ended, placed.hashes))
            self._drop_late(replica, life.reported)
        else:
            self.index.end(replica, placed.hashes)

    def clear(self) -> None:
        """All requests have ended."""
        for key in [*self._placed]:
            self.ended(key)
        for replica in range(self._replicas):
            self._begin_life(replica)

    def started(self, replica: int, incarnation: int) -> None:
        """Its scheduler has a new incarnation: what is cached there tells the next snapshot."""
        self._begin_life(replica)
        self.index.start(replica, incarnation)
        self._loads.start(replica, incarnation)

    def lost(self, replica: int) -> None:
        """Its scheduler has gone, and its tree."""
        self.started(replica, -1)

    def load(self, load: ReplicaLoad) -> None:
        """What a scheduler reports of itself."""
        replica = replica_of(load.incarnation, self._replicas)
        if self._loads.take(replica, load):
            life = self._lives[replica]
            life.reported = load.received - load.running - load.waiting
            self._drop_late(replica, life.reported)

    def _begin_life(self, replica: int) -> None:
        life = self._lives[replica]
        self._drop_late(replica, life.ended)
        self._lives[replica] = _Life(life.number + 1)

    def _drop_late(self, replica: int, ended: int) -> None:
        """The events of so many requests have come."""
        late = self._lives[replica].late
        while late and late[0][0] <= ended:
            self.index.end(replica, late.popleft()[1])

    def events(self, events: CacheEvents) -> bool:
        """What has changed in a tree. False if something before it was missed: the caller is to ask
        for a snapshot."""
        return self.index.take(replica_of(events.incarnation, self._replicas), events)
