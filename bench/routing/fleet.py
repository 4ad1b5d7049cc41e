"""Replicas, the router and one closed-loop client, on a clock that jumps from event to event."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

import numpy as np
from msgspec import structs

from bench.hit_rate.simulator import DEFAULTS, StepCost
from bench.routing.replica import MODEL, Replica
from bench.routing.shapes import Words, answer
from scheduler_proc.process.load_reports import REPORT_INTERVAL_S
from srt.benchmark.workloads import Node, Workload
from srt.block_hash import hashes_of, seed_of
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import CacheEvents, ReplicaLoad, TokenizedReq
from tokenizer_proc.routing.part_of import part_of
from tokenizer_proc.routing.router import Router

SEED = seed_of(MODEL, "")


@dataclass(frozen=True)
class Setting:
    """`pool` tokens in all; what replicas tell the router comes `delay_s` late. The last replica's
    steps take `slower` times as long as the others'."""

    replicas: int
    policy: str
    pool: int
    delay_s: float = 0.0
    cost: StepCost = field(default_factory=StepCost)
    slower: float = 1.0

    def costs(self) -> list[StepCost]:
        """Of each replica."""
        return [*[self.cost] * (self.replicas - 1), self.cost.times(self.slower)]


@dataclass
class Outcome:
    """Cached prompt tokens of all replicas, the seconds of the run, and each one's busy ones."""

    cached: int
    seconds: float
    busy_s: list[float]

    @property
    def busiest(self) -> float:
        """The busiest replica's seconds over the mean."""
        return max(self.busy_s) / (sum(self.busy_s) / len(self.busy_s))


class Fleet:
    """One run of a workload."""

    def __init__(self, workload: Workload, setting: Setting) -> None:
        replicas = setting.replicas
        self._setting = setting
        self._router = Router(replicas, setting.policy, 0, DEFAULTS.max_running_requests)
        pool = setting.pool // replicas
        self._replicas = [
            Replica(replicas + i, pool, cost) for i, cost in enumerate(setting.costs())
        ]
        self._now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._has_turn = [False] * replicas  # when its step ends, or at once
        self._words = Words()
        self._slots = workload.concurrency
        # Requests that wait for a place at the client: their nodes, and the text before it.
        self._ready: deque[tuple[Node, np.ndarray]] = deque()
        self._open: dict[str, tuple[Node, np.ndarray]] = {}  # by rid, with the whole prompt
        self._rids = count()
        for root in workload.roots:
            self._visit(root, np.empty(0, np.int32))

    def run(self) -> Outcome:
        """Run it to its end."""
        for number, replica in enumerate(self._replicas):
            self._router.started(number, replica.core.incarnation)
            self._tell(replica.news(0.0))
        self._send_ready()
        while self._events:
            self._now, _, act = heappop(self._events)
            act()
        assert not self._open and not self._ready, "requests are left over"
        cached = sum(replica.core.state.counters.cached_tokens for replica in self._replicas)
        return Outcome(cached, self._ended_s, [replica.busy_s for replica in self._replicas])

    def _at(self, delay_s: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self._now + delay_s, next(self._order), act))

    # ---- the client ----------------------------------------------------------------------------

    def _visit(self, node: Node, before: np.ndarray) -> None:
        prompt = np.concatenate((before, self._words.ids(node.text)))
        if node.out_tokens:
            self._ready.append((node, prompt))
        else:
            for child in node.children:
                self._visit(child, prompt)

    def _send_ready(self) -> None:
        while self._ready and self._slots > 0:
            self._slots -= 1
            self._send(*self._ready.popleft())

    def _ended(self, rid: str) -> None:
        self._router.ended(rid)
        node, prompt = self._open.pop(rid)
        self._slots += 1
        self._ended_s = self._now
        for child in node.children:
            self._visit(child, np.concatenate((prompt, answer(node.out_tokens))))
        self._send_ready()

    # ---- the front -----------------------------------------------------------------------------

    def _send(self, node: Node, prompt: np.ndarray) -> str:
        """Its rid."""
        rid, ids = str(next(self._rids)), pack_ids(prompt)
        self._open[rid] = node, prompt
        sampling = FilledParams(max_new_tokens=node.out_tokens, temperature=0.0)
        wire = TokenizedReq(b"client", rid, 0, ids, sampling, hints=node.fields.get("hints"))
        wish = node.fields.get("routed_replica")
        among = range(len(self._replicas)) if wish is None else [wish]
        hashes, part = hashes_of(ids, SEED), part_of(wire, self._now)
        number = self._router.place(rid, hashes, len(prompt), among, part=part)
        replica = self._replicas[number]
        replica.add(structs.replace(wire, incarnation=replica.core.incarnation), self._now)
        self._at(REPORT_INTERVAL_S, lambda: self._tell(replica.load(self._now)))
        if not self._has_turn[number]:
            self._has_turn[number] = True
            self._at(0.0, partial(self._turn, number))
        return rid

    def _tell(self, news: Iterator[CacheEvents | ReplicaLoad]) -> None:
        """Send the router what a replica has to say."""
        for message in news:
            self._at(self._setting.delay_s, partial(self._hear, message))

    def _hear(self, message: CacheEvents | ReplicaLoad) -> None:
        if isinstance(message, ReplicaLoad):
            self._router.load(message)
        else:
            assert self._router.events(message), "a gap"

    # ---- the replicas --------------------------------------------------------------------------

    def _turn(self, number: int) -> None:
        replica = self._replicas[number]
        seconds = replica.turn(self._now)
        self._has_turn[number] = seconds > 0.0
        self._tell(replica.news(self._now))
        for rid in replica.take_ended():
            self._at(0.0, partial(self._ended, rid))
        if seconds > 0.0:
            self._at(seconds, partial(self._turn, number))
