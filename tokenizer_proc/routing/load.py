"""How much each replica has to do: as it last reported, and what was sent to it since then."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from srt.wire.ring_messages import ReplicaLoad
from tokenizer_proc.routing.apart import Apart
from tokenizer_proc.routing.paces import Paces
from tokenizer_proc.routing.part_of import PartOf

# Before anything has been measured: only their ratio counts.
TOKEN_S, REQUEST_S = 0.001, 0.1


class Loads:
    """Of `replicas`, of which all are present at first, and of which each runs `rows` requests at
    once. What a request was sent with counts until a report counts the request."""

    def __init__(self, replicas: int, rows: int = 1) -> None:
        self.present = frozenset(range(replicas))
        self.in_flight = np.zeros(replicas, np.int64)  # requests, but not those ahead of time
        self.apart = Apart(replicas, rows)
        self._reported = np.zeros(replicas, np.int64)  # tokens to be computed
        self._sent = np.zeros(replicas, np.int64)  # tokens, not reported yet
        self.token_s = Paces(replicas, TOKEN_S)  # of a prompt token
        self.request_s = Paces(replicas, REQUEST_S)  # of a request beyond its prompt
        self._incarnations = [-1] * replicas
        self._num_sent = [0] * replicas
        self._unreported: list[deque[tuple[int, int]]] = [deque() for _ in range(replicas)]

    @property
    def backlog(self) -> np.ndarray:
        """int64 [replicas]: prompt tokens that have to be computed."""
        return self._reported + self._sent

    def keep(self, present: Iterable[int]) -> None:
        """Only these replicas exist: the others' figures are in no mean."""
        self.present = frozenset(present)
        self.token_s.keep(self.present)
        self.request_s.keep(self.present)

    def start(self, replica: int, incarnation: int) -> None:
        """Its scheduler has nothing to do. What was measured still holds."""
        self._incarnations[replica] = incarnation
        self._reported[replica] = self._sent[replica] = self._num_sent[replica] = 0
        self.apart.fill(replica, False)
        self._unreported[replica].clear()

    def send(self, replica: int, part: PartOf, requests: int, tokens: int) -> None:
        """Requests with so many tokens to be computed go to the replica. One that is ahead of time
        gives way to all others, so that it is no load."""
        self._num_sent[replica] += requests
        if not part.is_ahead:
            self._unreported[replica].append((self._num_sent[replica], tokens))
            self._sent[replica] += tokens
            self._count(replica, part, requests)

    def end(self, replica: int, part: PartOf, requests: int) -> None:
        """They have ended there."""
        if not part.is_ahead:
            self._count(replica, part, -requests)

    def take(self, replica: int, load: ReplicaLoad) -> bool:
        """A report. False if it is of another incarnation, which changes nothing."""
        if load.incarnation != self._incarnations[replica]:
            return False
        unreported = self._unreported[replica]
        while unreported and unreported[0][0] <= load.received:
            self._sent[replica] -= unreported.popleft()[1]
        self._reported[replica] = load.uncomputed
        is_full = load.free + load.evictable < max(1, load.uncomputed)
        self.apart.fill(replica, is_full)
        self.token_s.take(replica, load.prompt_token_s, load.extend_len, load.extend_s)
        self.request_s.take(replica, load.request_s, load.decode_len, load.decode_s)
        return True

    def _count(self, replica: int, part: PartOf, requests: int) -> None:
        self.apart.add(replica, part, requests)
        self.in_flight[replica] += requests
