"""KV events: what is published, to real sockets, and what a subscriber with vLLM's structs makes of
it, also if it loses batches."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import zmq

from scheduler_proc.events import kv_events
from scheduler_proc.events.kv_events import KvEvents
from srt.args import ServerArgs
from srt.ring.inbox import Dropped
from srt.ring.socket import RingContext
from srt.tasks import TaskSet
from srt.wire.errors import ConfigError
from tests.scheduler_proc.kv_subscriber import (
    Block,
    Peers,
    Subscriber,
    block,
    chain,
    known,
    name,
    replayed,
)
from tests.waiting import SOON_S

Publish = Callable[..., KvEvents]


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.close()


@pytest.fixture
def events(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'events'}"


@pytest.fixture
def replay(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'replay'}"


@pytest_asyncio.fixture
async def publisher(events: str, replay: str) -> AsyncIterator[Publish]:
    """Makes publishers and starts them."""
    failures: list[BaseException] = []
    ring, tasks = RingContext(), TaskSet(failures.append)
    made: list[KvEvents] = []

    def make(replica: int = 0, **changes: Any) -> KvEvents:
        args = ServerArgs(**{"kv_events": events, "kv_events_replay": replay} | changes)
        made.append(KvEvents(args, replica, ring, tasks, Dropped()))
        made[-1].start()
        return made[-1]

    yield make
    await tasks.close()
    for one in made:
        one.close()
    ring.destroy()
    assert failures == []


async def joined(publisher: KvEvents, subscriber: Subscriber) -> Block:
    """Wait until what is published reaches the subscriber. Returns a block that it knows then."""
    first = block(range(64))
    async with asyncio.timeout(SOON_S):
        while not await subscriber.hears_at_once():
            publisher.publish(removed=[first.hash])
            publisher.publish(added=[first])
        while await subscriber.hears_at_once():
            await subscriber.take(*await subscriber.hear())
    return first


async def decoded(peers: Peers, replay: str) -> list[Any]:
    """All batches so far, as plain values."""
    async with asyncio.timeout(SOON_S):
        batches = await replayed(peers.connect(zmq.DEALER, replay), 0)
    return [msgspec.msgpack.decode(payload) for _, payload in batches]


async def test_batches_have_the_form_of_vllm(publisher: Publish, peers: Peers, replay: str) -> None:
    one = publisher(replica=2, kv_events=f"{replay}-events", kv_events_replay=replay)
    first, second = chain(7, 2)
    before = time.time()
    one.publish(added=[first, second])
    one.publish(removed=[second.hash])
    one.publish(cleared=True)
    batches = await decoded(peers, f"{replay}_dp2")
    assert all(before <= batch[0] <= time.time() for batch in batches)
    assert [batch[2] for batch in batches] == [2, 2, 2]
    assert batches[0][1] == [
        {"type": "AllBlocksCleared"},
        {
            "type": "BlockStored",
            "block_hashes": [name(first.hash), name(second.hash)],
            "parent_block_hash": None,
            "token_ids": [*range(7, 71), *range(8, 72)],
            "block_size": 64,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        },
    ]
    removed = {"type": "BlockRemoved", "block_hashes": [name(second.hash)]}
    assert batches[1][1] == [removed | {"medium": "GPU", "group_idx": 0}]
    assert batches[2][1] == [{"type": "AllBlocksCleared"}]


async def test_a_chain_is_one_event_and_its_fork_another(
    publisher: Publish, peers: Peers, replay: str
) -> None:
    one = publisher()
    trunk = chain(0, 3)
    fork = block(range(100, 164), trunk[0])
    other = block(range(200, 264))
    one.publish(added=[*trunk, fork, other])
    longer = block(range(300, 364), trunk[2])
    one.publish(added=[trunk[2], longer])  # what is known already is not published again
    stored = [
        (event["block_hashes"], event["parent_block_hash"])
        for batch in await decoded(peers, replay)
        for event in batch[1]
        if event["type"] == "BlockStored"
    ]
    assert stored == [
        ([name(b.hash) for b in trunk], None),
        ([name(fork.hash)], name(trunk[0].hash)),
        ([name(other.hash)], None),
        ([name(longer.hash)], name(trunk[2].hash)),
    ]


async def test_salted_blocks_are_unpublished(publisher: Publish, peers: Peers, replay: str) -> None:
    one = publisher()
    salted, plain = chain(0, 2, salt="mine"), chain(0, 2)
    one.publish(added=salted)
    one.publish(removed=[b.hash for b in salted])
    assert await decoded(peers, replay) == []
    one.publish(added=[salted[0], plain[0], salted[1], plain[1]])
    one.publish(removed=[salted[1].hash, plain[1].hash])
    (first, second) = [batch[1] for batch in await decoded(peers, replay)]
    assert [event["type"] for event in first] == ["AllBlocksCleared", "BlockStored"]
    assert first[1]["block_hashes"] == [name(b.hash) for b in plain]
    assert [event["block_hashes"] for event in second] == [[name(plain[1].hash)]]


async def test_a_flush_comes_first_in_its_batch(
    publisher: Publish, peers: Peers, replay: str
) -> None:
    one = publisher()
    blocks = chain(0, 2)
    one.publish(added=blocks)
    one.publish(added=blocks[:1], removed=[blocks[1].hash], cleared=True)
    last = (await decoded(peers, replay))[-1][1]
    assert [event["type"] for event in last] == ["AllBlocksCleared", "BlockStored"]


async def test_nothing_is_published_for_nothing(
    publisher: Publish, peers: Peers, replay: str
) -> None:
    one = publisher()
    one.publish()
    one.publish(removed=[b"?" * 16])
    assert await decoded(peers, replay) == []


async def test_a_new_publisher_says_that_it_has_nothing(
    publisher: Publish,
    peers: Peers,
    replay: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_events, "GREETING_S", 0.0)
    one = publisher()
    await asyncio.sleep(0.01)
    one.publish(added=chain(0, 1))
    kinds = [[e["type"] for e in batch[1]] for batch in await decoded(peers, replay)]
    assert kinds == [["AllBlocksCleared"], ["BlockStored"]]


async def test_a_subscriber_rebuilds_the_index_over_gaps(
    publisher: Publish, peers: Peers, events: str, replay: str
) -> None:
    """Random chains, removals of leaves and flushes; three of ten batches do not arrive."""
    one, subscriber, rng = publisher(), Subscriber(peers, events, replay), random.Random(20)
    cached: list[Block] = [await joined(one, subscriber)]
    for number in range(400):
        added: list[Block] = []
        removed, cleared = [], rng.random() < 0.02
        if cleared:
            cached.clear()
        for _ in range(rng.randrange(3)):  # leaves only, as the tree evicts
            parents = {b.parent for b in cached}
            leaf = rng.choice([b for b in cached if b.hash not in parents] or [None])
            if leaf is not None:
                cached.remove(leaf)
                removed.append(leaf.hash)
        for _ in range(rng.randrange(4)):
            parent = rng.choice([None, *cached])
            first = (1 + number) * 1000 + len(added)
            new = block(range(first, first + 64), parent, rng.choice(["", "", "mine"]))
            cached.append(new)
            added.append(new)
        one.publish(added, removed, cleared)
        if await subscriber.hears_at_once() and rng.random() < 0.3:
            await subscriber.hear()
    one.publish(cleared=True)
    cached = chain(5, 9)
    one.publish(added=[*cached, *chain(0, 3, salt="mine")])
    goal = one._history.next - 1
    async with asyncio.timeout(SOON_S):
        while subscriber.last < goal:
            await subscriber.take(*await subscriber.hear())
    assert subscriber.index == known(cached)
    assert (subscriber.replays > 0, subscriber.ranks) == (True, {0})


@pytest.mark.full
async def test_a_slow_subscriber_loses_batches_and_asks_for_them(
    publisher: Publish,
    peers: Peers,
    events: str,
    replay: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody reads while all is published: no call waits for that."""
    monkeypatch.setattr(kv_events, "QUEUE_BATCHES", 10)
    one, subscriber = publisher(), Subscriber(peers, events, replay)
    cached = [await joined(one, subscriber)]
    replays = subscriber.replays
    for number in range(3000):
        new = chain(1000 * (1 + number), 8)
        cached += new
        one.publish(added=new)
    async with asyncio.timeout(SOON_S):
        while await subscriber.hears_at_once():
            await subscriber.take(*await subscriber.hear())
        one.publish(removed=[cached.pop().hash])
        while subscriber.last < one._history.next - 1:
            await subscriber.take(*await subscriber.hear())
    assert subscriber.replays > replays
    assert subscriber.index == known(cached)


async def test_the_subscriber_of_vllms_example_gets_an_answer(
    publisher: Publish, peers: Peers, replay: str
) -> None:
    """It asks with a REQ socket, which takes one batch of the answer."""
    one = publisher()
    for number in range(3):
        one.publish(added=chain(1000 * number, 1))
    client = peers.connect(zmq.REQ, replay)
    await client.send((1).to_bytes(8, "big"))
    async with asyncio.timeout(SOON_S):
        topic, seq, payload = await client.recv_multipart()
    assert (topic, int.from_bytes(seq, "big")) == (b"kv-events", 1)
    assert msgspec.msgpack.decode(payload)[1][0]["type"] == "BlockStored"


async def test_without_a_replay_address_nothing_is_kept(publisher: Publish) -> None:
    one = publisher(kv_events_replay="")
    one.publish(added=chain(0, 1))
    one.publish(cleared=True)
    assert (one._history.first, one._history.next) == (2, 2)


async def test_sockets_are_files_for_their_user_only(publisher: Publish, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "events"))  # as by a scheduler that was killed
    publisher()
    modes = [(tmp_path / file).stat().st_mode & 0o777 for file in ("events", "replay")]
    assert modes == [0o600, 0o600]


async def test_an_address_that_cannot_be_bound_is_named(publisher: Publish, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--kv-events: .*tcp://127.0.0.1:{port}: .*in use"):
            publisher(kv_events=f"tcp://localhost:{port}")
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ConfigError, match=rf"--kv-events-replay: .*ipc://{file}: .*not a socket"):
        publisher(kv_events_replay=f"ipc://{file}")
    assert file.read_text() == "precious"
    with pytest.raises(ConfigError, match=r"--kv-events: .*/none/events: .*No such file"):
        publisher(kv_events=f"ipc://{tmp_path}/none/events")


async def test_a_running_servers_socket_is_not_taken(publisher: Publish, tmp_path: Path) -> None:
    publisher(kv_events_replay="")
    with pytest.raises(ConfigError, match=r"--kv-events: .*another program listens there"):
        publisher(kv_events_replay="")
