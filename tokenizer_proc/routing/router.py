"""Places requests: index, loads and a policy."""

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from srt.block_hash import BLOCK
from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from srt.wire.ring_state import replica_of
from tokenizer_proc.routing.demand import Demand
from tokenizer_proc.routing.index import Index
from tokenizer_proc.routing.load import Loads
from tokenizer_proc.routing.part_of import NOTHING, PartOf
from tokenizer_proc.routing.policy import View, ends_first, make_policy, round_robin


class _Placed(NamedTuple):
    replica: int
    life: int  # of the replica
    hashes: Sequence[bytes]
    requests: int
    part: PartOf


class _Life:
    """A replica from one start to the next. `ended` counts its requests that have ended, `late` are
    the prompts of those of them whose blocks' events may still come: until it reports so many. It
    has `reported` this number; one that is idle reports nothing any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = self.reported = 0
        self.late: deque[tuple[int, Sequence[bytes]]] = deque()


class Router:
    """Among `replicas`, each of which runs `rows` requests at once; `policy` is one of
    `--router-policy`, of which only `cache-aware` reads hints. Requests that belong together have
    one key, which is placed until it has `ended`."""

    def __init__(
        self, replicas: int, policy: str = "cache-aware", seed: int = -1, rows: int = 1
    ) -> None:
        self._replicas = replicas
        self.index = Index(replicas)
        self._loads = Loads(replicas, rows)
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
        part: PartOf = NOTHING,
    ) -> int:
        """One of the replicas `among` for as many `requests`, whose common prompt has these blocks
        and so many tokens."""
        matched = np.zeros(self._replicas, np.int64)
        self.index.match(hashes, matched)
        candidates = self._candidates(part, among)
        if len(candidates) == 1:
            chosen = int(candidates[0])
        else:
            chosen = self._choose(hashes, matched, candidates, part)
        self._chosen_at[chosen] = self._chosen_at.max() + 1
        self._placed[key] = _Placed(chosen, self._lives[chosen].number, hashes, requests, part)
        if not part.is_ahead:  # the call that it is for counts
            self._demand.add(hashes, part.group)
        self.index.send(chosen, hashes)
        self._loads.send(chosen, part, requests, max(1, tokens - BLOCK * int(matched[chosen])))
        return chosen

    def _candidates(self, part: PartOf, among: Sequence[int]) -> np.ndarray:
        """int64: those that exist, and to which a request of this class keeps."""
        present = self._loads.present
        if len(present) < self._replicas:
            among = [replica for replica in among if replica in present] or among
        is_apart = self.needs_blocks and part.perf
        return self._loads.apart.kept_to(part, among) if is_apart else np.array(among)

    def _choose(
        self, hashes: Sequence[bytes], matched: np.ndarray, among: np.ndarray, part: PartOf
    ) -> int:
        loads = self._loads
        throughput = loads.apart.throughput[among]
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
            throughput if part.perf == "latency" else np.zeros_like(throughput),
        )
        is_grouped = self.needs_blocks and part.group is not None
        costs = ends_first(view) if is_grouped else self._policy(view)
        best = np.flatnonzero(costs == costs.min())
        if self._ties_by_match:
            best = best[view.matched[best] == view.matched[best].max()]
        return int(among[best[np.argmin(self._chosen_at[among[best]])]])

    def keep(self, present: Iterable[int]) -> None:
        """Only these replicas exist: the others are not candidates, and count in no mean."""
        self._loads.keep(present)

    def ended(self, key: Hashable) -> None:
        """All requests of this key have ended, or their replica was lost; others are ignored."""
        placed = self._placed.pop(key, None)
        if placed is None:
            return
        replica = placed.replica
        self._loads.end(replica, placed.part, placed.requests)
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
