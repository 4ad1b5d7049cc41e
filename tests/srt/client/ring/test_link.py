"""A client's link to a ring whose processes stand still, say nonsense, or make its readers fail."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from srt.client.ring.link import RingLink
from srt.client.ring.silence import Silence
from srt.client.ring.sockets import open_dealer
from srt.ring.halted import pid_namespace
from srt.ring.places import LEASE_INTERVAL_S, QUIET_S, RING_LOST_S, Ring, bind, connect, send_now
from srt.ring.socket import RingContext, RingSocket
from srt.wire.errors import RingError
from srt.wire.messages import (
    Expired,
    Hello,
    Output,
    OutputBatch,
    RingMessage,
    Tokenized,
    TokenizeReq,
    Welcome,
    encode,
)
from srt.wire.ring_state import RingEvent
from tests.waiting import SOON_S

READY = RingEvent(1, True, False, {"tokenizer": "ready"})


class Peers:
    """The launcher, the detokenizer and the tokenizer of a ring, as a client meets them. Each Hello
    is answered while `answers`."""

    def __init__(self, ring: Ring) -> None:
        self._context = RingContext()
        self._events = bind(self._context, zmq.PUB, ring.events)
        self._back = bind(self._context, zmq.ROUTER, ring.back)
        self._front = bind(self._context, zmq.ROUTER, ring.front)
        self.answers = True
        self.clients: list[bytes] = []  # in the order of their first Hello

    async def greet(self) -> None:
        while True:
            client, data = await self._back.receive()
            if data == encode(Hello()) and self.answers:
                if client not in self.clients:
                    self.clients.append(client)
                send_now(self._back, Welcome(1), to=client)

    def publish(self, event: RingMessage | bytes = READY) -> None:
        self._events.send(event if isinstance(event, bytes) else encode(event))

    def say(self, message: RingMessage | bytes) -> None:
        """To the last client."""
        data = message if isinstance(message, bytes) else encode(message)
        self._back.send(self.clients[-1], data)

    def admit(self, message: RingMessage | bytes) -> None:
        """Say it to the last client on the front."""
        data = message if isinstance(message, bytes) else encode(message)
        self._front.send(self.clients[-1], data)

    def close(self) -> None:
        self._context.destroy()


class Owner:
    """What a link tells its owner; `defect` is raised once for outputs."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.lost: list[str] = []
        self.failed: list[BaseException] = []
        self.defect: Exception | None = None

    def on_outputs(self, outputs: list[Output]) -> None:
        if self.defect is not None:
            defect, self.defect = self.defect, None
            raise defect
        self.got += [output.rid for output in outputs]

    def on_lost(self, error: RingError) -> None:
        self.lost.append(str(error))


@asynccontextmanager
async def linked(
    directory: Path, *, ends_with_client: bool = False
) -> AsyncIterator[tuple[Peers, Owner, RingLink]]:
    """A link that is welcome in epoch 1."""
    ring, owner = Ring(directory), Owner()
    peers = Peers(ring)
    on_failure = owner.failed.append if ends_with_client else None
    link = RingLink(f"ipc://{directory}", owner.on_outputs, owner.on_lost, None, on_failure)
    greeting = asyncio.ensure_future(peers.greet())
    await link.start()
    try:
        await usable(peers, link)
        yield peers, owner, link
    finally:
        greeting.cancel()
        await link.close()
        peers.close()


async def usable(peers: Peers, link: RingLink) -> None:
    async with asyncio.timeout(SOON_S):
        while not link.is_ready:
            peers.publish()
            await asyncio.sleep(0.01)


async def until(link: RingLink, silent: list[str]) -> None:
    async with asyncio.timeout(SOON_S):
        while link.ring is None or link.ring.silent != silent:
            await asyncio.sleep(0.01)


def output(rid: str) -> OutputBatch:
    return OutputBatch(1, [Output(rid)])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waits are short."""
    monkeypatch.setattr("srt.client.ring.silence.QUIET_S", 0.1)
    monkeypatch.setattr("srt.client.ring.silence.RING_LOST_S", 0.3)
    monkeypatch.setattr("srt.client.ring.silence.LEASE_INTERVAL_S", 0.1)
    monkeypatch.setattr("srt.client.ring.link.LEASE_INTERVAL_S", 0.02)
    monkeypatch.setattr("srt.client.ring.link.COME_BACK_S", 0.1)


async def test_a_launcher_that_stands_still_ends_nothing(tmp_path: Path, hasty: None) -> None:
    """As long as parts are heard. The state of the ring names it, and no longer once it speaks."""
    async with linked(tmp_path) as (peers, owner, link):
        await until(link, ["launcher"])
        await asyncio.sleep(1.0)  # far longer than the ring may be silent
        assert owner.lost == [] and link.is_ready and peers.clients == [link.identity]
        peers.say(output("a"))
        async with asyncio.timeout(SOON_S):
            while owner.got != ["a"]:
                await asyncio.sleep(0.01)
        peers.publish()
        await until(link, [])


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_ring_of_which_nothing_is_heard_is_lost(
    tmp_path: Path, hasty: None, is_removed: bool
) -> None:
    """The front's answers do not count. One whose directory is gone is lost sooner, but not while
    the back is heard."""
    directory = tmp_path / "ring"
    directory.mkdir()
    async with linked(directory) as (peers, owner, link):
        if is_removed:
            shutil.rmtree(directory)
            await asyncio.sleep(0.5)
            assert owner.lost == [] and link.is_ready
        peers.answers = False
        async with asyncio.timeout(SOON_S):
            while link.ring is not None:
                peers.admit(Tokenized("x", 1, b""))
                await asyncio.sleep(0.01)
        assert owner.lost == ["the server cannot be reached"]
        with pytest.raises(RingError, match="cannot be reached"):
            await link.until_usable()


async def test_parts_that_end_behind_a_launcher_that_stands_still(
    tmp_path: Path, hasty: None
) -> None:
    """A stopped one is told as silent. Zombies on each request's way lose the ring."""
    with subprocess.Popen(["sleep", "600"]) as part:
        pids = {"tokenizer": part.pid, "scheduler": os.getpid()}
        states = dict.fromkeys(pids, "ready")
        event = RingEvent(1, True, False, states, pids=pids, pid_namespace=pid_namespace())
        async with linked(tmp_path) as (peers, owner, link):
            try:
                peers.publish(event)
                await until(link, ["launcher"])
                part.send_signal(signal.SIGSTOP)
                await until(link, ["launcher", "tokenizer"])
                assert owner.lost == [] and link.ring is not None and link.ring.stands_still
                part.send_signal(signal.SIGCONT)
                await until(link, ["launcher"])
                peers.publish(msgspec.structs.replace(event, pid_namespace=1))
                await until(link, [])
                await until(link, ["launcher"])
                part.kill()
                await asyncio.sleep(0.5)
                assert owner.lost == []  # the numbers mean other processes
                peers.publish(event)
                async with asyncio.timeout(SOON_S):
                    while link.ring is not None:
                        await asyncio.sleep(0.01)
            finally:
                part.kill()
            why = "tokenizer has ended, and the server's launcher stands still"
            await asyncio.sleep(0.5)
            assert owner.lost == [why] and link.ring is None
            await usable(peers, link)


async def test_an_event_that_cannot_be_decoded_is_dropped(tmp_path: Path) -> None:
    event = encode(RingEvent(1, True, False, {}))
    async with linked(tmp_path) as (peers, owner, link):
        peers.publish(event.replace(b"RingEvent", b"RingEvenX"))
        peers.say(output("a"))
        async with asyncio.timeout(SOON_S):
            while owner.got != ["a"] or link.dropped.count < 1:
                await asyncio.sleep(0.01)
        assert owner.lost == [] and link.is_ready and peers.clients == [link.identity]


@pytest.mark.parametrize("ends_with_client", [False, True])
@pytest.mark.parametrize("by_front", [False, True])
async def test_an_output_that_cannot_be_decoded_loses_all(
    tmp_path: Path, hasty: None, by_front: bool, ends_with_client: bool
) -> None:
    """A text that goes on without it would be wrong. The link is made anew, a part's too."""
    async with linked(tmp_path, ends_with_client=ends_with_client) as (peers, owner, link):
        (peers.admit if by_front else peers.say)(b"\xc1")
        peers.say(output("a"))
        async with asyncio.timeout(SOON_S):
            while not owner.lost:
                await asyncio.sleep(0.01)
        assert "could not be understood: is this client of" in owner.lost[0]
        assert link.dropped.count == 1 and link.ring is None and owner.failed == []
        await usable(peers, link)
        assert peers.clients[1:] == [link.identity]


@pytest.mark.parametrize("ends_with_client", [False, True])
async def test_sockets_that_cannot_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_with_client: bool
) -> None:
    """The link of a part ends it; another comes back. What was opened before is closed."""
    monkeypatch.setattr("srt.client.ring.link.COME_BACK_S", 0.1)
    fails, opened = [True], []

    def connected(context: RingContext, kind: int, address: str) -> RingSocket:
        opened.append(connect(context, kind, address))
        return opened[-1]

    def dealer(context: RingContext, address: str, identity: bytes) -> RingSocket:
        if fails and fails.pop():
            raise zmq.ZMQError(errno.EMFILE)
        return open_dealer(context, address, identity)

    async with linked(tmp_path, ends_with_client=ends_with_client) as (peers, owner, link):
        monkeypatch.setattr("srt.client.ring.sockets.connect", connected)
        monkeypatch.setattr("srt.client.ring.sockets.open_dealer", dealer)
        peers.say(Expired())
        async with asyncio.timeout(SOON_S):
            while not opened:
                await asyncio.sleep(0.01)
        assert opened[0].closed and len(owner.lost) == 1 and link.ring is None
        with pytest.raises(RingError, match="cannot be reached"):
            await link.ask(TokenizeReq("x", 1, text="x"))
        if ends_with_client:
            assert isinstance(owner.failed[0], zmq.ZMQError)
            await asyncio.sleep(0.3)
            assert len(opened) == 1
        else:
            await usable(peers, link)
            assert owner.failed == [] and len(owner.lost) == 1


async def test_another_server_in_the_same_directory(tmp_path: Path) -> None:
    """It may be in the same epoch."""
    async with linked(tmp_path) as (peers, owner, link):
        told: list[RingEvent | None] = []
        link.listeners.append(told.append)
        again = msgspec.structs.replace(READY, instance="another")
        peers.publish(again)
        async with asyncio.timeout(SOON_S):
            while not owner.lost or not link.is_ready:
                await asyncio.sleep(0.01)
        assert owner.lost == ["the server has ended, and another one has started in its place"]
        assert [each for each in told if each != READY] == [None, again]


async def test_a_link_whose_reader_fails_is_made_anew(tmp_path: Path, hasty: None) -> None:
    async with linked(tmp_path) as (peers, owner, link):
        owner.defect = KeyError("x")
        peers.say(output("a"))
        async with asyncio.timeout(SOON_S):
            while not owner.lost:
                await asyncio.sleep(0.01)
        assert owner.lost == ["the client failed (its log says why)"] and link.ring is None
        await usable(peers, link)
        assert len(peers.clients) == 2 and peers.clients[1] == link.identity
        peers.say(output("b"))
        async with asyncio.timeout(SOON_S):
            while owner.got != ["b"]:
                await asyncio.sleep(0.01)


async def test_the_link_of_a_part_ends_it(tmp_path: Path, hasty: None) -> None:
    """The supervisor starts another."""
    async with linked(tmp_path, ends_with_client=True) as (peers, owner, link):
        owner.defect = KeyError("x")
        peers.say(output("a"))
        async with asyncio.timeout(SOON_S):
            while not owner.failed:
                await asyncio.sleep(0.01)
        assert isinstance(owner.failed[0], KeyError) and link.ring is None
        await asyncio.sleep(0.3)
        assert link.ring is None and len(peers.clients) == 1


def test_how_long_a_ring_may_be_silent() -> None:
    """The launcher's silence is told first; what parts say delays the end of the ring."""
    silence = Silence()
    assert silence.patience_s == QUIET_S and not silence.is_of_launcher
    silence.part_spoke()
    silence.launcher_was_silent()
    assert silence.is_of_launcher and silence.patience_s == LEASE_INTERVAL_S
    waits = 0
    while not silence.is_of_all:
        silence.launcher_was_silent()
        waits += 1
    assert waits == RING_LOST_S / LEASE_INTERVAL_S
    silence.part_spoke()
    silence.launcher_was_silent()
    assert silence.is_of_launcher and not silence.is_of_all
    silence.launcher_spoke()
    assert not silence.is_of_launcher and silence.patience_s == QUIET_S
