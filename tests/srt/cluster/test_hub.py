"""The hub between a ring and agents: places, what it carries, who is let in, who is lost."""

import asyncio
import random
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from srt.args import ServerArgs
from srt.cluster import door, hub, link
from srt.cluster.agent import Connection, Refusal
from srt.cluster.door import Peer, address_in
from srt.cluster.hub import HubActor
from srt.cluster.keys import allow, load_keys, make_keys, remove
from srt.cluster.link import Link, LinkLost
from srt.cluster.protocol import (
    PROTOCOL,
    AgentMessage,
    Carry,
    Ended,
    Hello,
    JoinReq,
    Leave,
    Start,
    Way,
)
from srt.ring.crash_file import blame_path, last_words_path
from srt.ring.places import bind, connect, create_ring, send_now
from srt.ring.socket import RingContext
from srt.wire.messages import decoder
from srt.wire.ring_state import CtlMessage, PlaceNews, RingEvent
from tests.waiting import SOON_S


class Head:
    """A hub in a ring of which this test is the rest. `detokenizer` gets what it carries up."""

    def __init__(self, directory: Path, **options: Any) -> None:
        args = ServerArgs(no_http=True, ring_dir=str(directory), dp=1, remote_replicas=2, **options)
        self.ring = create_ring(args)
        self.context = RingContext()
        self._events = bind(self.context, zmq.XPUB, self.ring.events)
        self._ctl = bind(self.context, zmq.PULL, self.ring.ctl)
        self.detokenizer = bind(self.context, zmq.PULL, self.ring.detokenizer)
        self.scheduler = connect(self.context, zmq.PUSH, self.ring.scheduler(2))
        self.hub = HubActor(self.ring, 1, [3, 4, 5])
        self._decode = decoder(CtlMessage).decode

    def agent(self, keys: Any = None) -> Connection:
        """A connection that has not said anything."""
        return Connection(self.context, address_in(self.ring.directory), keys)

    async def news(self) -> PlaceNews:
        """The next news of a place."""
        while True:
            message = self._decode((await self._ctl.receive())[0])
            if isinstance(message, PlaceNews):
                return message

    def publish(self, *incarnations: int) -> None:
        send_now(self._events, RingEvent(1, True, False, {}, incarnations=[*incarnations]))


@asynccontextmanager
async def running_head(directory: Path, **options: Any) -> AsyncIterator[Head]:
    head = Head(directory, **options)
    running = asyncio.create_task(head.hub.run())
    try:
        async with asyncio.timeout(SOON_S):
            while not address_in(directory):
                await asyncio.sleep(0.01)
            yield head
    finally:
        head.hub.request_stop()
        await running
        head.context.destroy()


@pytest.fixture
async def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Head]:
    monkeypatch.setattr(hub, "fingerprint", lambda *_: "f")
    async with running_head(tmp_path / "ring", cluster_insecure=True) as head:
        yield head


async def next_of(agent: Connection, kind: type) -> Any:
    """The next message of this kind, and the frames behind it."""
    while True:
        message, frames = await agent.receive()
        if isinstance(message, kind):
            return message, [*map(bytes, frames)]


async def test_a_place_from_an_agent_to_the_next(head: Head) -> None:
    agent = head.agent()
    offer = await agent.greet()
    assert (offer.places, offer.fingerprint) == (3, "f") and "api_key" not in offer.options
    assert (await agent.join(JoinReq("f", 1, "node", [2]))).places == [2]
    taken = await head.news()
    assert (taken.part, taken.is_taken, taken.lost) == ("scheduler.2", True, 0)
    assert (await next_of(agent, Start))[0] == Start(2, 1, [3, 4, 5])

    head.scheduler.send(b"down", bytes(100))
    assert await next_of(agent, Carry) == (Carry(Way.SCHEDULER, 2), [b"down", bytes(100)])
    agent.link.send(Carry(Way.DETOKENIZER, 1), [b"of a place that it does not have"])
    agent.link.send(Carry(Way.DETOKENIZER, 2), [b"up"])
    assert await head.detokenizer.receive() == [b"up"]

    agent.link.send(Ended(2, 5, 11, was_silent=True), [zlib.compress(b"guilty"), b"words"])
    lost = await head.news()
    assert (lost.is_taken, lost.lost, lost.status, lost.was_silent) == (True, 5, 11, True)
    directory = head.ring.directory
    assert blame_path(directory, 5).read_bytes() == b"guilty"
    assert last_words_path(directory, 5).read_bytes() == b"words"
    agent.link.send(Carry(Way.DETOKENIZER, 2), [b"of a scheduler that is lost"])
    head.publish(3, 4, 8)
    assert (await next_of(agent, Start))[0] == Start(2, 1, [3, 4, 8])
    # Records of another scheduler are not this one's to leave.
    agent.link.send(Ended(2, 7, 11), [zlib.compress(b"guilty"), b"words"])
    assert (await head.news()).lost == 8 and not blame_path(directory, 7).exists()
    head.publish(3, 4, 11)
    assert (await next_of(agent, Start))[0] == Start(2, 1, [3, 4, 11])
    agent.link.send(Carry(Way.DETOKENIZER, 2), [b"again"])
    assert await head.detokenizer.receive() == [b"again"]

    agent.link.send(Leave())
    left = await head.news()
    assert (left.is_taken, left.lost) == (False, 11) and "was stopped" in left.reason
    other = head.agent()  # which had both places before, and gets them
    await other.greet()
    assert (await other.join(JoinReq("f", 2, places=[1, 2]))).places == [1, 2]
    assert (await next_of(other, Start))[0].place == 1  # the other one's has been lost with 11
    head.publish(3, 4, 14)
    assert (await next_of(other, Start))[0] == Start(2, 1, [3, 4, 14])


async def test_who_is_refused(head: Head) -> None:
    cases = [
        (JoinReq("f", 3), "2 are free, and the agent asks for 3", False),
        (JoinReq("f", 0), "asks for 0", False),
        (JoinReq("other\n", 1), "fingerprint is f, not 'other.n'", True),
        (Hello(PROTOCOL - 1, "0.1"), "'0.1' is older", True),
        (Hello(PROTOCOL + 1, "9"), "'9' is newer", True),
    ]
    for message, reason, is_final in cases:
        agent = head.agent()
        with pytest.raises(Refusal, match=reason) as refused:
            await agent.join(message)  # type: ignore[arg-type]
        assert refused.value.is_final == is_final
    agent = head.agent()
    assert (await agent.join(JoinReq("f", 2))).places == [1, 2]
    with pytest.raises(Refusal, match="0 are free"):
        await head.agent().join(JoinReq("f", 1))


async def test_strangers_disturb_nobody(head: Head) -> None:
    agent = head.agent()
    await agent.join(JoinReq("f", 2))
    rng = random.Random(0)
    host, port = address_in(head.ring.directory).removeprefix("tcp://").split(":")
    for size in (1, 64, 100_000):
        with socket.create_connection((host, int(port)), timeout=SOON_S) as raw:
            raw.sendall(rng.randbytes(size))
    stranger = head.agent()
    stranger.link.send(Carry(Way.DETOKENIZER, 1), [b"of a stranger"])
    with pytest.raises(LinkLost, match="not joined"):
        await stranger.receive()
    for frames in ([rng.randbytes(50)], [b""], [bytes(door.MAX_FRAME_BYTES)], [b"a", b"b"]):
        stranger._socket.send(*frames)
        with pytest.raises(LinkLost, match="not joined"):
            await stranger.receive()
    agent.link.send(Carry(Way.DETOKENIZER, 1), [b"up"])
    assert await head.detokenizer.receive() == [b"up"]
    many = [head.agent() for _ in range(20)]
    head_door = head.hub._door
    for each in many:
        await each.greet()
    assert len(head_door._strangers) == 20 and len(head_door.members) == 1


async def test_who_is_silent_is_lost(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PING_INTERVAL_S", 0.02)
    monkeypatch.setattr(link, "LOST_S", 0.1)
    agent = head.agent()
    await agent.join(JoinReq("f", 1))
    assert (await head.news()).is_taken
    lost = await head.news()
    assert (lost.part, lost.is_taken, lost.lost) == ("scheduler.1", False, 4)
    assert "nothing was heard" in lost.reason
    with pytest.raises(LinkLost, match="nothing was heard"):
        while True:
            await agent.receive()


async def test_a_key_that_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "fingerprint", lambda *_: "f")
    for name in ("heads", "nodes"):
        make_keys(tmp_path / name)
    heads, node = load_keys(tmp_path / "heads"), load_keys(tmp_path / "nodes")
    allow(tmp_path / "heads", node.public, "node")
    async with running_head(tmp_path / "ring", cluster_keys=str(tmp_path / "heads")) as head:
        agent = head.agent((node, heads.public))
        await agent.join(JoinReq("f", 1))
        assert (await head.news()).is_taken
        remove(tmp_path / "heads", "node")
        lost = await head.news()
        assert not lost.is_taken and "not allowed any more" in lost.reason
        assert head.hub._door.members == []


async def test_an_agent_that_is_gone_before_it_has_its_places(head: Head) -> None:
    """The last that is told of them is that they are free."""
    gone = Peer(b"gone", "", Link(lambda *frames: False, AgentMessage))
    head.hub._on_message(gone, JoinReq("f", 2), [])
    told = [await head.news() for _ in range(4)]
    assert [(news.part, news.is_taken) for news in told] == [
        *(("scheduler.1", True), ("scheduler.2", True)),
        *(("scheduler.1", False), ("scheduler.2", False)),
    ]
    assert head.hub._places.free == 2 and head.hub._door.members == []


async def test_a_flood_keeps_nobody_waiting(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent without end is read in turns with all else."""
    num_read = 0

    async def without_end() -> tuple[list[bytes], str]:
        nonlocal num_read
        num_read += 1
        if num_read > 10_000:
            await asyncio.sleep(SOON_S)
        return [b"somebody"], ""

    monkeypatch.setattr(head.hub._door._socket, "receive_from", without_end)
    reading = asyncio.create_task(head.hub._door._read())
    for _ in range(3):
        await asyncio.sleep(0)
    assert 0 < num_read < 1000
    reading.cancel()


# What a ZeroMQ socket without keys says before its first message.
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
_HANDSHAKE = _GREETING + bytes([4, len(_READY)]) + _READY


@pytest.mark.parametrize("says", [b"", _HANDSHAKE], ids=["nothing", "a handshake"])
async def test_a_machine_that_was_switched_off_keeps_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """Its connection is open as long as the hub does not close it."""
    monkeypatch.setattr(hub, "fingerprint", lambda *_: "f")
    monkeypatch.setattr(door, "_HANDSHAKE_MS" if not says else "_GONE_MS", 100)
    async with running_head(tmp_path / "ring", cluster_insecure=True) as head:
        host, port = address_in(head.ring.directory).removeprefix("tcp://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(says)
        heard = await reader.read()  # to its end
        assert heard.startswith(b"\xff") and (b"READY" in heard) == bool(says)
        writer.close()
