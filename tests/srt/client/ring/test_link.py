"""A client's link to a ring whose processes stand still, say nonsense, or make its readers fail."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from srt.client.ring.link import RingLink
from srt.client.ring.silence import Silence
from srt.ring.places import LEASE_INTERVAL_S, QUIET_S, RING_LOST_S, Ring, bind, send_now
from srt.ring.socket import RingContext
from srt.wire.errors import RingError
from srt.wire.messages import Hello, Output, OutputBatch, RingMessage, Welcome, encode
from srt.wire.ring_state import RingEvent
from tests.waiting import SOON_S

READY = RingEvent(1, True, False, {"tokenizer": "ready"})


class Peers:
    """The launcher and the detokenizer of a ring, as a client meets them. Each Hello is answered
    while `answers`."""

    def __init__(self, ring: Ring) -> None:
        self._context = RingContext()
        self._events = bind(self._context, zmq.PUB, ring.events)
        self._back = bind(self._context, zmq.ROUTER, ring.back)
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
    """One whose directory is gone at once."""
    directory = tmp_path / "ring"
    directory.mkdir()
    async with linked(directory) as (peers, owner, link):
        if is_removed:
            shutil.rmtree(directory)
        peers.answers = is_removed
        async with asyncio.timeout(SOON_S):
            while link.ring is not None:
                await asyncio.sleep(0.01)
        assert owner.lost == ["the server cannot be reached"]
        with pytest.raises(RingError, match="cannot be reached"):
            await link.until_usable()


async def test_what_cannot_be_decoded_is_dropped(tmp_path: Path) -> None:
    event = encode(RingEvent(1, True, False, {}))
    async with linked(tmp_path) as (peers, owner, link):
        peers.publish(event.replace(b"RingEvent", b"RingEvenX"))
        peers.say(b"\xc1")
        peers.say(output("a"))
        async with asyncio.timeout(SOON_S):
            while owner.got != ["a"] or link.dropped.count < 2:
                await asyncio.sleep(0.01)
        assert owner.lost == [] and link.is_ready and peers.clients == [link.identity]


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
