"""What hints change in placement: nothing without them, classes apart, groups by seconds, prompts
ahead of time."""

import hashlib
import random

import numpy as np
import pytest

from srt.block_hash import BLOCK, hashes_of, seed_of
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import CacheEvents, ReplicaLoad, TokenizedReq
from tokenizer_proc.routing.apart import BUSY_S, Apart
from tokenizer_proc.routing.part_of import NOTHING, PartOf, part_of
from tokenizer_proc.routing.policy import View, ends_first
from tokenizer_proc.routing.router import Router

LATENCY, THROUGHPUT = PartOf("latency"), PartOf("throughput")
SEED = seed_of("model", "")


def blocks(first_id: int, count: int) -> list[bytes]:
    """The hashes of a prompt of its own."""
    ids = np.arange(first_id, first_id + count * BLOCK, dtype=np.int32)
    return hashes_of(ids.tobytes(), SEED)


def started(replicas: int, rows: int = 64, policy: str = "cache-aware") -> Router:
    """A router whose replicas have incarnations from `replicas` on, and empty trees."""
    router = Router(replicas, policy, seed=1, rows=rows)
    for replica in range(replicas):
        router.started(replica, replicas + replica)
        assert router.events(CacheEvents(replicas + replica, 0, is_snapshot=True))
        report(router, replica, replicas, 0)
    return router


def report(router: Router, replica: int, replicas: int, received: int, uncomputed: int = 0) -> None:
    """A replica has this to do, and so many tokens' room."""
    load = ReplicaLoad(
        replicas + replica,
        received,
        uncomputed=uncomputed,
        free=10_000,
        prompt_token_s=0.001,
        request_s=0.1,
    )
    router.load(load)


def place(
    router: Router,
    prompt: list[bytes],
    part: PartOf = NOTHING,
    among: tuple[int, ...] = (0, 1),
    key: object = None,
) -> int:
    key = object() if key is None else key
    return router.place(key, prompt, len(prompt) * BLOCK + 10, among, part=part)


def test_without_hints_the_decisions_are_those_of_the_router_that_knew_none() -> None:
    """Random traffic; the digest is of the router before it read hints."""
    chosen = []
    for seed in range(6):
        rng = random.Random(seed)
        replicas = 2 + seed
        router, here = Router(replicas, seed=1), [*range(replicas)]
        for replica in here:
            router.started(replica, replicas + replica)
            router.events(CacheEvents(replicas + replica, 0, is_snapshot=True))
        prompts = [blocks(100_000 * i, 12) for i in range(6)]
        seqs, received = [0] * replicas, [0] * replicas
        placed: list[int] = []
        for number in range(150):
            prompt = rng.choice(prompts)[: rng.randint(0, 12)] + blocks(number * 1000 + 7, 1)
            among = sorted(rng.sample(here, rng.randint(1, replicas)))
            tokens, requests = len(prompt) * BLOCK + rng.randint(0, 63), rng.choice((1, 1, 1, 4))
            replica = router.place(number, prompt, tokens, among, requests)
            chosen.append(replica)
            placed.append(number)
            received[replica] += requests
            if rng.random() < 0.7:
                router.ended(placed.pop(rng.randrange(len(placed))))
            if rng.random() < 0.3:
                seqs[replica] += 1
                router.events(CacheEvents(replicas + replica, seqs[replica], prompt))
            if rng.random() < 0.3:
                token_s, request_s = rng.uniform(9e-4, 1e-3), rng.uniform(0.2, 0.21)
                uncomputed = rng.randrange(500)
                load = ReplicaLoad(
                    replicas + replica,
                    received[replica],
                    uncomputed=uncomputed,
                    prompt_token_s=token_s,
                    request_s=request_s,
                )
                router.load(load)
    assert hashlib.sha256(bytes(chosen)).hexdigest()[:16] == "4f2647c9df32ef49"


# ---- hints as the router reads them --------------------------------------------------------------


def req(hints: Hints | None) -> TokenizedReq:
    sampling = FilledParams(max_new_tokens=1)
    return TokenizedReq(b"a", "1", 0, pack_ids([1]), sampling, caller="key", hints=hints)


def test_what_is_read_of_hints() -> None:
    assert part_of(req(None), 5.0) == NOTHING
    assert part_of(req(Hints(app="a", depth=3)), 5.0) == PartOf(at_s=5.0)
    grouped = part_of(req(Hints(app="a", perf="latency", group="g", group_size=3)), 5.0)
    assert grouped == PartOf("latency", ("key", "a", "g"), at_s=5.0)
    assert part_of(req(Hints(group="alone", group_size=1)), 0.0).group is None
    lowered = part_of(req(Hints(perf="throughput", is_lowered=True)), 0.0)
    assert lowered.perf == ""  # beyond its caller's share: as one without a class
    assert part_of(req(Hints(is_ahead=True)), 0.0).is_ahead


# ---- classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [LATENCY, THROUGHPUT])
def test_one_class_alone_is_placed_as_without(part: PartOf) -> None:
    with_class, without = started(3), started(3)
    rng = random.Random(3)
    for number in range(200):
        prompt = blocks(1000 * rng.randrange(8), rng.randint(0, 12))
        among = (0, 1, 2)
        assert place(with_class, prompt, part, among, number) == place(
            without, prompt, NOTHING, among, number
        )
        if rng.random() < 0.8:
            ended = rng.randrange(number + 1)
            with_class.ended(ended)
            without.ended(ended)


def test_throughput_keeps_off_latency_while_another_has_room() -> None:
    router = started(2, rows=8)
    home = place(router, blocks(0, 4), LATENCY)
    flood = [place(router, blocks(10_000 * i, 4), THROUGHPUT) for i in range(1, 9)]
    assert flood == [1 - home] * 8
    spilled = [place(router, blocks(1_000_000 + 10_000 * i, 4), THROUGHPUT) for i in range(4)]
    assert home in spilled  # the rows of the other are taken


def test_a_replica_without_memory_has_no_room() -> None:
    router = started(2)
    home = place(router, blocks(0, 4), LATENCY)
    other = 1 - home
    assert place(router, blocks(10_000, 4), THROUGHPUT) == other
    report(router, other, 2, received=1, uncomputed=50_000)
    assert place(router, blocks(20_000, 4), THROUGHPUT) == home
    router.started(other, 4)
    assert router._loads.apart.kept_to(THROUGHPUT, (0, 1)).tolist() == [other]


def test_latency_goes_where_least_throughput_is_and_spreads_when_it_is_many() -> None:
    router = started(2)
    for i in range(4):
        place(router, blocks(10_000 * i, 1), THROUGHPUT, (0,))
        place(router, blocks(500_000 + 10_000 * i, 1), NOTHING, (1,))
    chats = [place(router, blocks(1_000_000 + 10_000 * i, 1), LATENCY) for i in range(24)]
    assert chats[:3] == [1] * 3 and 0 in chats
    assert chats.count(1) > chats.count(0)


def test_the_replicas_that_throughput_keeps_off() -> None:
    apart = Apart(4, rows=64)
    for replica in (0, 1):
        apart.add(replica, LATENCY, 3)
    assert apart.kept_to(THROUGHPUT, range(4)).tolist() == [2, 3]
    apart.add(0, THROUGHPUT, 9)  # there is more of it than of the other class
    assert apart.kept_to(THROUGHPUT, (0, 1)).tolist() == [0]
    assert apart.kept_to(LATENCY, range(4)).tolist() == [0, 1, 2, 3]


def test_classes_that_are_mixed_come_apart() -> None:
    router = started(2)
    for i in range(4):
        place(router, blocks(10_000 * i, 1), LATENCY, (i % 2,))
    maps = {place(router, blocks(100_000 + 10_000 * i, 1), THROUGHPUT) for i in range(12)}
    assert len(maps) == 1
    chats = [place(router, blocks(900_000 + 10_000 * i, 1), LATENCY) for i in range(3)]
    assert not maps & {*chats}


def test_a_class_is_busy_for_a_while_after_its_latest_request() -> None:
    """A chat's next turn comes when its reader has read."""
    router = started(2)
    home = place(router, blocks(0, 4), LATENCY._replace(at_s=100.0), key="turn")
    router.ended("turn")
    place(router, [], LATENCY._replace(at_s=50.0), (home,), key="goes on elsewhere")
    router.ended("goes on elsewhere")
    soon = [THROUGHPUT._replace(at_s=100.0 + BUSY_S / 2)] * 6
    later = [THROUGHPUT._replace(at_s=101.0 + BUSY_S)] * 6
    placed = [place(router, blocks(10_000 * i, 4), part) for i, part in enumerate(soon)]
    assert placed == [1 - home] * 6
    placed = [place(router, blocks(200_000 + 10_000 * i, 4), part) for i, part in enumerate(later)]
    assert home in placed


def test_of_many_replicas_latency_has_its_part() -> None:
    """One chat at each: a flood does not have to crowd together on one replica."""
    router = started(8)
    every = tuple(range(8))
    for i in every:
        place(router, blocks(10_000 * i, 1), LATENCY, (i,))
    flood = [place(router, blocks(200_000 + 1000 * i, 1), THROUGHPUT, every) for i in range(100)]
    assert 6 <= len({*flood}) < 8


# ---- groups --------------------------------------------------------------------------------------


def members(router: Router, head: int, count: int, group: object, own: int = 2) -> list[int]:
    """Where the members of a group go, which have `head` blocks in common and `own` of each."""
    first = random.Random(f"{head} {group}").randrange(1000) * 1_000_000
    prompts = [blocks(first, head) + blocks(first + 10_000 * i, own) for i in range(1, count + 1)]
    return [place(router, prompt, PartOf(group=group)) for prompt in prompts]


def test_a_group_stays_with_its_prefix_while_that_is_cheaper_than_waiting() -> None:
    router = started(2)
    head = blocks(0, 40)  # 2.5 s elsewhere; a request takes 0.1 s and its own block
    assert router.events(CacheEvents(2 + 1, 1, head))
    prompts = [head + blocks(1_000_000 + 10_000 * i, 1) for i in range(64)]
    placed = [place(router, prompt, PartOf(group="g")) for prompt in prompts]
    assert placed[:8] == [1] * 8
    assert 0 in placed  # the last one's end comes sooner
    assert placed.count(1) > placed.count(0) > 10


def test_a_group_counts_whom_its_prompts_delay_and_the_other_class() -> None:
    none = np.zeros(2, np.int64)
    has_prefix = View(
        matched=np.array([8, 0]),
        backlog=none,
        requests=np.array([10, 1]),
        token_s=np.full(2, 0.001),
        request_s=np.full(2, 0.1),
        mean_token_s=0.001,
        mean_request_s=0.1,
        wanted_by=np.zeros(8, np.int64),
        recent=0,
        others=none,
    )
    assert ends_first(has_prefix).argmin() == 0  # 0.5 s of a prompt delay each one there too
    assert ends_first(has_prefix._replace(requests=np.array([10, 0]))).argmin() == 1
    assert ends_first(has_prefix._replace(others=np.array([10, 0]))).argmin() == 1


def test_a_group_without_a_prefix_is_spread_evenly() -> None:
    placed = members(started(2), head=0, count=16, group="g", own=6)
    assert placed.count(0) == placed.count(1) == 8


def test_a_group_counts_the_work_of_others() -> None:
    router = started(2)
    report(router, 0, 2, received=0, uncomputed=5000)
    assert members(router, head=2, count=4, group="g") == [1] * 4


def test_the_prefix_of_a_group_is_wanted_once() -> None:
    """It is no prefix that everybody uses, though many have it."""
    router, alone = started(2), started(2)
    head = blocks(0, 4)
    for i in range(20):
        prompt = head + blocks(10_000 * (i + 1), 1)
        place(router, prompt, PartOf(group=("app", "g")))
        place(alone, prompt)
    assert router._demand.of(head).tolist() == [1] * 4
    assert alone._demand.of(head).tolist() == [20] * 4
    assert router._demand.of(blocks(10_000, 1)).tolist() == [1]  # its own count too
    place(router, head)
    assert router._demand.of(head).tolist() == [2] * 4


@pytest.mark.parametrize("policy", ["least-loaded", "round-robin", "random"])
def test_other_policies_read_no_hints(policy: str) -> None:
    hinted, plain = started(3, policy=policy), started(3, policy=policy)
    parts = [LATENCY, THROUGHPUT, PartOf(group="g")]
    for number in range(60):
        prompt, part = blocks(1000 * (number % 7), 3), parts[number % 3]
        among = (0, 1, 2)
        assert place(hinted, prompt, part, among) == place(plain, prompt, NOTHING, among)


# ---- ahead of time -------------------------------------------------------------------------------

AHEAD = PartOf(is_ahead=True)


def test_a_call_follows_the_prompts_that_were_computed_ahead_of_it() -> None:
    """Also if its head is one that many have, and others come and go meanwhile."""
    for seed in range(8):
        rng, router = random.Random(seed), started(2)
        head, own = blocks(0, 8), blocks(1_000_000 * (seed + 1), 10)
        for number in range(40):
            place(router, head + blocks(10_000 * (number + 1), 1), key=number)
            router.ended(number)
        homes = set()
        for piece in range(1, 11):
            homes.add(place(router, head + own[:piece], AHEAD, key=("ahead", piece)))
            if rng.random() < 0.5:
                router.ended(("ahead", piece))
            number = 100 + piece
            place(router, blocks(50_000 * number, 2), key=number)
            if rng.random() < 0.7:
                router.ended(number)
        assert len(homes) == 1
        assert {place(router, head + own)} == homes


def test_prompts_ahead_are_no_load_and_no_demand() -> None:
    router = started(2)
    home = place(router, blocks(0, 8), AHEAD, key="ahead")
    assert router._loads.in_flight.tolist() == [0, 0] == router._loads.backlog.tolist()
    assert router._demand.total == 0
    others = [place(router, blocks(10_000 * i, 1)) for i in range(1, 5)]
    assert others.count(home) == 2
    report(router, home, 2, received=3)
    router.ended("ahead")
    assert router._loads.in_flight.tolist() == [2, 2]
