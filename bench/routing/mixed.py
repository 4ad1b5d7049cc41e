"""Chats and map-reduces at once on two replicas, placed by the router and by hand, on the clock of
`Fleet`.

Each client repeats its program until a time; what counts is how long a turn of a chat takes, and a
map-reduce from its first request to its last answer. Chats have the class `latency`, the calls of a
map-reduce `throughput` and its maps are a group, as `Objectives` has it.
"""

from collections.abc import Generator
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from bench.hit_rate.families import OUTPUT_TOKEN, VOCAB
from bench.routing.fleet import Fleet, Setting
from bench.routing.shapes import answer
from srt.benchmark.workloads import Node, Workload
from srt.wire.hints import Hints, PerfClass

THINKING_S = 0.5
TURNS, ASKED, ANSWERED = 6, 120, 64  # turns of a chat, tokens of each
MAPS, MAP_TOKENS, MAP_ANSWER = 16, 400, 50
HEAD = 200  # tokens that all maps of one begin with
UNTIL_S = 120.0
POOL = 131_072  # tokens
LATENCY: PerfClass = "latency"
THROUGHPUT: PerfClass = "throughput"

# A client yields requests that it makes at once, with their prompts, or the seconds that it waits.
# It goes on when all have ended.
Requests = list[tuple[np.ndarray, Node]]
Client = Generator[Requests | float, None, None]


class Times(NamedTuple):
    """Mean seconds of a chat's turn and of a map-reduce, and how many there were of each."""

    turn_s: float
    map_reduce_s: float
    turns: int
    map_reduces: int

    def over(self, others: "Times") -> tuple[float, float]:
        """The seconds of each, over these."""
        return self.turn_s / others.turn_s, self.map_reduce_s / others.map_reduce_s


class ByHand(NamedTuple):
    """The replicas that the client chooses for each kind; None is the router's choice."""

    chats: int | None = None
    map_reduces: int | None = None


class MixedFleet(Fleet):
    """`by_hand` says where each kind goes. Without `hinted`, requests have no hints."""

    def __init__(
        self, mix: "Mix", setting: Setting, by_hand: ByHand, hinted: bool, seed: int = 0
    ) -> None:
        super().__init__(Workload("mixed", 1, []), setting)
        self._mix, self._until_s = mix, 0.0
        self._by_hand, self._hinted = by_hand, hinted
        self._rng = np.random.default_rng(seed)
        self._clients: dict[str, Client] = {}  # by rid
        self._left: dict[Client, int] = {}
        self._taken: dict[str, list[float]] = {LATENCY: [], THROUGHPUT: []}

    def times(self, until_s: float) -> Times:
        """Run all clients, whose first requests come in turns, until none begins anew."""
        self._until_s = until_s
        clients = [self._chat(i) for i in range(self._mix.chats)]
        clients += [self._map_reduce(i) for i in range(self._mix.map_reduces)]
        for number, client in enumerate(clients):
            self._at(0.3 * number, partial(self._go_on, client))
        self.run()
        turns, programs = self._taken[LATENCY], self._taken[THROUGHPUT]
        return Times(mean(turns), mean(programs), len(turns), len(programs))

    def _chat(self, number: int) -> Client:
        fields = self._fields(LATENCY, self._by_hand.chats, Hints(app=f"chat {number}"))
        while self._now < self._until_s:
            said = self._text(0)
            for _ in range(TURNS):
                said, began = np.concatenate((said, self._text(ASKED))), self._now
                yield [(said, Node("", ANSWERED, fields=fields))]
                self._taken[LATENCY].append(self._now - began)
                said = np.concatenate((said, answer(ANSWERED)))
                yield THINKING_S

    def _map_reduce(self, number: int) -> Client:
        while self._now < self._until_s:
            began, head = self._now, self._text(HEAD)
            app = Hints(app=f"map-reduce {number} {began}", depth=1)
            group = Hints(app=app.app, group="maps", group_size=MAPS, depth=1)
            wish = self._by_hand.map_reduces
            fields = self._fields(THROUGHPUT, wish, group)
            parts = [np.concatenate((head, self._text(MAP_TOKENS - HEAD))) for _ in range(MAPS)]
            yield [(part, Node("", MAP_ANSWER, fields=fields)) for part in parts]
            prompt = np.concatenate((self._text(20), answer(MAPS * MAP_ANSWER)))
            yield [(prompt, Node("", MAP_ANSWER, fields=self._fields(THROUGHPUT, wish, app)))]
            self._taken[THROUGHPUT].append(self._now - began)

    def _fields(self, perf: PerfClass, wish: int | None, hints: Hints) -> dict[str, Any]:
        """Further fields of a request's body."""
        fields: dict[str, Any] = {} if wish is None else {"routed_replica": wish}
        return fields | ({"hints": replace(hints, perf=perf)} if self._hinted else {})

    def _text(self, tokens: int) -> np.ndarray:
        """int32 [tokens]: a text of its own."""
        return self._rng.integers(OUTPUT_TOKEN + 1, VOCAB, tokens, dtype=np.int32)

    def _go_on(self, client: Client) -> None:
        """Have a client do what comes next, if anything does."""
        asked = next(client, None)
        if isinstance(asked, float):
            self._at(asked, partial(self._go_on, client))
        elif asked is not None:
            self._left[client] = len(asked)
            for prompt, node in asked:
                self._clients[self._send(node, prompt)] = client

    def _ended(self, rid: str) -> None:
        self._router.ended(rid)
        del self._open[rid]
        self._ended_s = self._now
        client = self._clients.pop(rid)
        self._left[client] -= 1
        if not self._left[client]:
            self._go_on(client)


HINTED, BY_HAND = "router", "hand: each kind has a replica"
WAYS = {
    HINTED: (ByHand(), True),
    "router, no hints": (ByHand(), False),
    BY_HAND: (ByHand(chats=0, map_reduces=1), True),
}
MIXED_BAR = 1.15  # of the times by hand


class Mix(NamedTuple):
    """So many clients of each kind."""

    chats: int
    map_reduces: int

    def times(self, seed: int = 0, until_s: float = UNTIL_S) -> dict[str, Times]:
        """The times of each way."""
        setting = Setting(2, "cache-aware", POOL)
        return {
            name: MixedFleet(self, setting, by_hand, hinted, seed).times(until_s)
            for name, (by_hand, hinted) in WAYS.items()
        }


MIXES = [Mix(2, 1), Mix(6, 2), Mix(12, 2), Mix(16, 1), Mix(3, 4)]
