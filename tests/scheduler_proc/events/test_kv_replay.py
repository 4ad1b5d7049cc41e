"""Subscribers that ask for batches again: bounded answers, slow readers, malformed requests."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
import zmq

from scheduler_proc.events import kv_replay
from scheduler_proc.events.kv_replay import PORTION_BATCHES, History, Replays
from srt.ring.inbox import Dropped
from srt.ring.places import open_socket
from srt.ring.socket import RingContext
from srt.tasks import TaskSet
from tests.scheduler_proc.kv_subscriber import (
    END_SEQ,
    Peers,
    answers,
    ask,
    replayed,
)
from tests.waiting import SOON_S


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.close()


class Served(NamedTuple):
    """What answers at `address`."""

    address: str
    history: History
    replays: Replays
    dropped: Dropped
    tasks: TaskSet

    def start(self) -> None:
        self.tasks.start(self.replays.take_requests())
        self.tasks.start(self.replays.answer())


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Not started yet."""
    failures: list[BaseException] = []
    ring, tasks = RingContext(), TaskSet(failures.append)
    history, dropped, address = History(10_000), Dropped(), f"ipc://{tmp_path / 'replay'}"
    router = open_socket(ring, zmq.ROUTER)
    router.set(zmq.SNDHWM, 10)
    router.set(zmq.MAXMSGSIZE, 1024)
    router.bind(address)
    replays = Replays(router, b"kv-events", history, dropped)
    yield Served(address, history, replays, dropped, tasks)
    await tasks.close()
    ring.destroy()
    assert failures == []


def fill(history: History, count: int, size: int = 8) -> None:
    for _ in range(count):
        history.add(history.next.to_bytes(size, "big"))


def expected(start: int, end: int, size: int = 8) -> list[tuple[int, bytes]]:
    return [(seq, seq.to_bytes(size, "big")) for seq in range(start, end)]


def test_only_the_last_batches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(5)
    fill(history, 12)
    assert (history.first, history.next) == (7, 12)
    assert [history[seq] for seq in range(7, 12)] == [p for _, p in expected(7, 12)]
    monkeypatch.setattr(kv_replay, "KEPT_BYTES", 20)
    history.add(b"x" * 8)
    assert (history.first, history.next) == (11, 13)
    history.add(b"x" * 21)  # alone above the bound
    assert (history.first, history.next) == (14, 14)


async def test_an_answer_begins_where_asked_and_ends(served: Served, peers: Peers) -> None:
    served.start()
    client = peers.connect(zmq.DEALER, served.address)
    async with asyncio.timeout(SOON_S):
        assert await replayed(client, 0) == []
        fill(served.history, 100)
        assert await replayed(client, 0) == expected(0, 100)
        assert await replayed(client, 97) == expected(97, 100)
        assert await replayed(client, 100) == []
        assert await replayed(client, 2**64 - 1) == []


async def test_what_is_no_longer_kept_is_left_out(served: Served, peers: Peers) -> None:
    served.start()
    fill(served.history, 10_050)
    client = peers.connect(zmq.DEALER, served.address)
    async with asyncio.timeout(SOON_S):
        assert await replayed(client, 3) == expected(50, 10_050)


async def test_malformed_requests_are_ignored(served: Served, peers: Peers) -> None:
    served.start()
    fill(served.history, 3)
    client, eight = peers.connect(zmq.DEALER, served.address), bytes(8)
    bad = [[eight], [b"", b""], [b"", bytes(7)], [b"", bytes(9)], [b"x", eight], [b"", eight, b""]]
    for frames in bad:
        await client.send_multipart(frames)
    large = peers.connect(zmq.DEALER, served.address)
    await large.send_multipart([b"", bytes(2000)])
    async with asyncio.timeout(SOON_S):
        assert await replayed(client, 0) == expected(0, 3)
    assert served.dropped.count == len(bad)


@pytest.mark.full
async def test_others_are_answered_while_one_does_not_read(served: Served, peers: Peers) -> None:
    """And that one misses nothing when it reads at last."""
    served.start()
    fill(served.history, 3000, size=1000)
    slow, quick = (peers.connect(zmq.DEALER, served.address) for _ in range(2))
    await ask(slow, 0)
    async with asyncio.timeout(SOON_S):
        assert await replayed(quick, 0) == expected(0, 3000, size=1000)
        assert await answers(slow) == expected(0, 3000, size=1000)


async def test_the_loop_runs_between_the_portions_of_an_answer(
    served: Served, peers: Peers
) -> None:
    served.start()
    fill(served.history, 2000)
    turns, sent_in_a_turn, sent = 0, 0, 0

    async def count() -> None:
        nonlocal turns, sent_in_a_turn, sent
        while True:
            turns += 1
            replay = next(iter(served.replays._replays.values()), None)
            if replay is not None:
                sent_in_a_turn = max(sent_in_a_turn, replay.next - sent)
                sent = replay.next
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    client = peers.connect(zmq.DEALER, served.address)
    async with asyncio.timeout(SOON_S):
        assert len(await replayed(client, 0)) == 2000
    counting.cancel()
    assert 0 < sent_in_a_turn <= 2 * PORTION_BATCHES
    assert turns >= 2000 / PORTION_BATCHES


async def test_the_loop_runs_between_requests(served: Served, peers: Peers) -> None:
    """Also if they come faster than they are taken."""
    client, turns = peers.connect(zmq.DEALER, served.address), 0
    for _ in range(2000):
        await client.send(b"malformed")
    await ask(client, 0)
    served.start()
    answering = asyncio.ensure_future(answers(client))
    async with asyncio.timeout(SOON_S):
        while not answering.done():
            turns += 1
            await asyncio.sleep(0)
    assert (await answering, served.dropped.count) == ([], 2000)
    assert turns >= 1000


async def test_who_asks_again_gets_one_answer_from_the_earlier_place(
    served: Served, peers: Peers
) -> None:
    fill(served.history, 20)
    client = peers.connect(zmq.DEALER, served.address)
    for start in (7, 3, 5):
        await ask(client, start)
    await client.send(b"malformed")
    served.tasks.start(served.replays.take_requests())
    async with asyncio.timeout(SOON_S):
        while served.dropped.count == 0:  # until all that came before it has been taken
            await asyncio.sleep(0.01)
        served.tasks.start(served.replays.answer())
        assert await answers(client) == expected(3, 20)
        assert await replayed(client, 19) == expected(19, 20)


async def test_who_reads_nothing_is_given_up(
    served: Served, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free again: there are only so many."""
    monkeypatch.setattr(kv_replay, "MAX_REPLAYS", 1)
    monkeypatch.setattr(kv_replay, "GIVE_UP_S", SOON_S)
    served.start()
    fill(served.history, 3000, size=1000)
    stuck, other = (peers.connect(zmq.DEALER, served.address) for _ in range(2))
    async with asyncio.timeout(SOON_S):
        await ask(stuck, 0)
        while not served.replays._replays:
            await asyncio.sleep(0.01)
        await ask(other, 2990)
        assert not await other.poll(100)
        monkeypatch.setattr(kv_replay, "GIVE_UP_S", 0.0)
        while served.replays._replays:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(kv_replay, "GIVE_UP_S", SOON_S)
        assert await replayed(other, 2990) == expected(2990, 3000, size=1000)
        empty, _, seq, _ = await stuck.recv_multipart()
    assert (empty, seq != END_SEQ) == (b"", True)


async def test_who_has_left_is_given_up(
    served: Served, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_replay, "GIVE_UP_S", 0.0)
    served.start()
    fill(served.history, 3000, size=1000)
    client = peers.connect(zmq.DEALER, served.address)
    async with asyncio.timeout(SOON_S):
        await ask(client, 0)
        while not served.replays._replays:
            await asyncio.sleep(0)
        client.close(linger=0)
        while served.replays._replays:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(kv_replay, "GIVE_UP_S", SOON_S)
        assert len(await replayed(peers.connect(zmq.DEALER, served.address), 2000)) == 1000
