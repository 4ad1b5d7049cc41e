"""The router: what it knows of the trees, and where it places requests."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.memory.block_hashes import all_hashes
from scheduler_proc.process.load_reports import CacheNews
from srt.block_hash import BLOCK, hashes_of, seed_of
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from srt.wire.ring_state import next_incarnation
from tests.running.profiles import examples
from tests.scheduler_proc.driver import Driver
from tokenizer_proc.routing.index import ASK_AGAIN
from tokenizer_proc.routing.router import Router

SEED = seed_of("model", "")


def blocks(first_id: int, count: int) -> list[bytes]:
    """The hashes of a prompt of its own."""
    ids = np.arange(first_id, first_id + count * BLOCK, dtype=np.int32)
    return hashes_of(ids.tobytes(), SEED)


def started(replicas: int, policy: str = "cache-aware") -> Router:
    """A router whose replicas have incarnations from `replicas` on, and empty trees."""
    router = Router(replicas, policy, seed=1)
    for replica in range(replicas):
        router.started(replica, replicas + replica)
        assert router.events(CacheEvents(replicas + replica, 0, is_snapshot=True))
    return router


# ---- the index -----------------------------------------------------------------------------------


class Fleet:
    """Real cores, and a network that loses, repeats and delays what they tell the router."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.rng, self.replicas = rng, replicas
        self.router = Router(replicas)
        self.incarnations = [replicas + i for i in range(replicas)]
        self.asked: set[int] = set()  # snapshots that the router wants, by incarnation
        self.sent: list[CacheEvents] = []
        self.late: list[CacheEvents] = []
        for replica in range(replicas):
            self.router.started(replica, self.incarnations[replica])
        self.drivers = [self.new_driver() for _ in range(replicas)]
        self.news = [CacheNews(driver.core) for driver in self.drivers]
        self.next_rid = 0
        for replica in range(replicas):
            self.start(replica)

    def new_driver(self) -> Driver:
        return Driver(max_total_tokens=600, block_model="model", max_running_requests=4)

    def start(self, replica: int) -> None:
        """The replica has its present incarnation, and is asked for its blocks."""
        number = self.incarnations[replica]
        self.drivers[replica].core.incarnation = number
        self.router.started(replica, number)
        self.asked.add(number)

    def add(self, replica: int) -> None:
        """A prompt of several blocks that others share."""
        length = self.rng.randint(1, 4) * BLOCK + self.rng.randint(0, 20)
        prompt = [self.rng.randrange(4) * (i % 97 == 0) + i % 7 for i in range(length)]
        self.drivers[replica].add(f"r{self.next_rid}", prompt, self.rng.randint(1, 70))
        self.next_rid += 1

    def tell(self, replica: int) -> None:
        """What the actor sends after a step."""
        core, number = self.drivers[replica].core, self.incarnations[replica]
        if number in self.asked:
            self.asked.discard(number)
            self.news[replica].ask()
        hashes = core.state.memory.cache.hashes
        assert hashes is not None
        events = self.news[replica].tell(hashes.take())
        if events is not None:
            self.sent.append(events)

    def restart(self, replica: int) -> None:
        """Its scheduler dies: an empty tree, and a sequence that begins anew."""
        self.incarnations[replica] = next_incarnation(self.incarnations, replica)
        self.router.lost(replica)
        self.drivers[replica] = self.new_driver()
        self.news[replica] = CacheNews(self.drivers[replica].core)
        self.start(replica)

    def new_epoch(self) -> None:
        """The front is lost: the trees stay, the router is new or knows no request."""
        for replica in range(self.replicas):
            self.incarnations[replica] = next_incarnation(self.incarnations, replica)
        if self.rng.random() < 0.5:
            self.router = Router(self.replicas)
        self.router.clear()
        self.asked.clear()
        for replica, driver in enumerate(self.drivers):
            driver.core.reset(self.incarnations[replica])
            self.news[replica].reset()
            self.start(replica)

    def deliver(self, *, reliably: bool = False) -> None:
        sent, self.sent = self.sent, []
        if reliably:
            sent, self.late = [*self.late, *sent], []
        for events in sent:
            luck = 1.0 if reliably else self.rng.random()
            if luck < 0.1:
                continue
            if luck < 0.2:
                self.late.append(events)
                continue
            for _ in range(2 if luck < 0.3 else 1):
                if not self.router.events(events):
                    self.asked.add(events.incarnation)

    def settle(self) -> None:
        """Everything arrives; a scheduler whose loss of a message nobody noticed tells more."""
        for turn in range(ASK_AGAIN + 2):
            for replica, driver in enumerate(self.drivers):
                driver.add(f"s{self.next_rid}", [turn, self.next_rid % 199, *range(BLOCK)])
                self.next_rid += 1
                driver.run()
                self.tell(replica)
            self.deliver(reliably=True)

    def check(self) -> None:
        for replica, driver in enumerate(self.drivers):
            assert self.router.index.blocks(replica) == set(
                all_hashes(driver.core.state.memory.cache.nodes())
            )


@settings(max_examples=examples(4))
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_the_index_is_what_the_trees_hold_when_events_have_arrived(
    seed: int, replicas: int
) -> None:
    """Random traffic in small pools, flushes, restarts; lost, late and repeated events."""
    rng = random.Random(seed)
    fleet = Fleet(replicas, rng)
    for _ in range(80):
        replica, action = rng.randrange(replicas), rng.random()
        if action < 0.3:
            fleet.add(replica)
        elif action < 0.8:
            fleet.drivers[replica].step()
            fleet.tell(replica)
        elif action < 0.9:
            fleet.deliver()
        elif action < 0.94:
            fleet.drivers[replica].run()
            assert fleet.drivers[replica].core.flush_cache()
            fleet.tell(replica)
        elif action < 0.97:
            fleet.restart(replica)
        elif action < 0.98:
            fleet.new_epoch()
        else:
            fleet.settle()
            fleet.check()
    fleet.settle()
    fleet.check()


def test_a_gap_is_told_once_and_ends_with_a_snapshot() -> None:
    router, names = Router(1), blocks(0, 4)
    router.started(0, 1)
    assert router.events(CacheEvents(1, 5, names[:1]))  # the snapshot is asked for
    assert router.events(CacheEvents(1, 6, names[:2], is_snapshot=True))
    assert router.events(CacheEvents(1, 7, names[2:3]))
    assert router.events(CacheEvents(1, 7, names[2:3])) and router.events(CacheEvents(1, 5))
    assert router.index.blocks(0) == set(names[:3])
    assert not router.events(CacheEvents(1, 9, names[3:]))
    assert router.events(CacheEvents(1, 10)) and router.index.blocks(0) == set()
    assert router.events(CacheEvents(1, 11, names, is_snapshot=True))
    assert router.index.blocks(0) == set(names)
    assert router.events(CacheEvents(0, 12, [], names)) and len(router.index.blocks(0)) == 4


# ---- placement -----------------------------------------------------------------------------------


def place(
    router: Router,
    hashes: Sequence[bytes],
    among: Sequence[int] = range(4),
    key: object = None,
) -> int:
    key = object() if key is None else key
    return router.place(key, hashes, len(hashes) * BLOCK + 10, list(among))


def test_a_burst_with_a_new_prefix_counts_what_was_sent() -> None:
    """Before any event: all but the first few find it where it was sent."""
    router = started(4)
    prefix = blocks(0, 8)
    others = [place(router, blocks(10_000 * i, 2)) for i in range(1, 9)]
    assert sorted(others) == [0, 0, 1, 1, 2, 2, 3, 3]
    first = place(router, prefix)
    assert place(router, prefix) == first


def test_a_hot_prefix_spreads() -> None:
    """One that all requests want is computed by each replica; they get equal shares."""
    router, prefix = started(4), blocks(0, 16)
    placed = [place(router, prefix) for _ in range(64)]
    counts = [placed.count(replica) for replica in range(4)]
    assert max(counts) <= 1.15 * 16


def test_a_chat_stays_where_it_is_though_others_wait_there() -> None:
    router = started(2)
    chats = [blocks(100_000 * i, 12) for i in range(8)]
    where = [place(router, chat, range(2), key=i) for i, chat in enumerate(chats)]
    for number, chat in enumerate(chats):
        router.ended(number)
        for replica in {where[number]}:
            events = CacheEvents(2 + replica, 1 + where[:number].count(replica), chat)
            assert router.events(events)
    for number in reversed(range(8)):
        longer = [*chats[number], *blocks(7_000_000 + number * 1000, 1)]
        assert place(router, longer, range(2)) == where[number]


def test_load_that_is_reported_late_is_counted_when_sent() -> None:
    """And is taken back when a report counts it: equal requests go in turns."""
    router = started(4)
    placed = [place(router, blocks(10_000 * i, 1 + i % 2)) for i in range(16)]
    assert sorted(placed) == sorted([*range(4)] * 4)
    for replica in range(4):
        router.load(ReplicaLoad(4 + replica, received=4, uncomputed=1000 * replica))
    assert place(router, []) == 0
    router.load(ReplicaLoad(3, received=4, uncomputed=10**9))  # of a scheduler that is lost
    assert place(router, []) in (0, 1)


def test_a_stuck_replica_with_an_empty_tree_gets_no_misses() -> None:
    """It has nothing cached, and a backlog that nobody works on."""
    router = started(2)
    router.load(ReplicaLoad(2, received=0, uncomputed=50_000))
    placed = [place(router, blocks(1_000_000 + 10_000 * i, 4), range(2)) for i in range(20)]
    assert placed == [1] * 20


def test_one_busy_worker_does_not_end_affinity_for_others() -> None:
    router, chat = started(3), blocks(0, 12)
    assert router.events(CacheEvents(3 + 1, 1, chat))
    router.load(ReplicaLoad(3 + 2, received=0, uncomputed=100_000))
    assert place(router, chat, range(3)) == 1


def test_a_restarted_replica_has_nothing() -> None:
    router, chat = started(2), blocks(0, 12)
    assert router.events(CacheEvents(2, 1, chat))
    assert place(router, chat, range(2), key="a") == 0
    router.ended("a")
    router.lost(0)
    router.started(0, 4)
    assert router.events(CacheEvents(2, 2, blocks(9_000, 1))) and not router.index.blocks(0)
    assert router.events(CacheEvents(4, 0, is_snapshot=True))
    assert place(router, blocks(5_000, 2), [0]) == 0


def test_ties_go_to_who_was_chosen_longest_ago() -> None:
    router = started(4)
    for key in range(8):
        assert place(router, [], key=key) == key % 4
        router.ended(key)


def test_what_has_ended_counts_no_more() -> None:
    router = started(2)
    for number in range(50):
        place(router, blocks(10_000 * number, 3), range(2), key=number)
    for number in range(50):
        router.ended(number)
        router.ended(number)
    router.clear()
    assert router.index._sent == {}
    assert router._loads.in_flight.tolist() == [0, 0]


@pytest.mark.parametrize("policy", ["cache-aware", "least-loaded", "round-robin", "random"])
def test_every_policy_keeps_to_the_candidates(policy: str) -> None:
    router = started(8, policy)
    rng = random.Random(1)
    for number in range(200):
        among = sorted(rng.sample(range(8), rng.randint(1, 8)))
        assert place(router, blocks(1000 * (number % 5), 2), among) in among


def test_round_robin_goes_round() -> None:
    router = started(3, "round-robin")
    prompts = [blocks(0, 3) for _ in range(6)]
    assert [place(router, prompt, range(3)) for prompt in prompts] == [0, 1, 2, 0, 1, 2]


def test_hashes_name_the_whole_prefix_and_its_salt() -> None:
    ids = pack_ids(list(range(3 * BLOCK + 5)))
    whole = hashes_of(ids, SEED)
    assert len(whole) == 3 and whole[:2] == hashes_of(ids[: 2 * 4 * BLOCK], SEED)
    assert hashes_of(ids[4 * BLOCK :], whole[0]) == whole[1:]
    changed = pack_ids([9, *range(1, 3 * BLOCK)])
    salted = hashes_of(ids, seed_of("model", "salt"))
    assert not {*hashes_of(changed, SEED), *salted} & {*whole}
