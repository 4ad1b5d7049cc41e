"""Malformed messages do no harm, on any kind of socket."""

import asyncio
import logging
import random
import typing
from pathlib import Path
from typing import Any

import pytest
import zmq

from srt.args import ServerArgs
from srt.ring import inbox
from srt.ring.actor import Actor
from srt.ring.inbox import Doubt, Dropped, Inbox
from srt.ring.places import Ring, connect
from srt.ring.supervisor import Supervisor
from srt.wire import messages, program_messages, ring_messages
from srt.wire.messages import RingMessage, encode
from srt.wire.ring_state import Heartbeat, RingEvent, TokenizerFacts
from srt.wire.sampling import SamplingParams
from tests.waiting import SOON_S

UNIONS = {
    "front": messages.FrontMessage,
    "back": messages.BackMessage,
    "scheduler": ring_messages.SchedulerMessage,
    "detokenizer": ring_messages.DetokenizerMessage,
    "compiler": ring_messages.CompilerRequest,
    "compiled": ring_messages.CompilerMessage,
    "credits": ring_messages.FrontNews,
    "programs": program_messages.ProgramsQuestion,
    "ctl": Heartbeat,
    "events": RingEvent,
}
GOOD: list[RingMessage] = [
    messages.GenerateReq("r", 1, sampling=SamplingParams(stop=["x"]), text="hello"),
    Heartbeat("scheduler", 7, 1, facts=TokenizerFacts(10, {}, "hermes")),
    RingEvent(1, True, False, {"scheduler": "ready"}),
    ring_messages.TokenBatch(1, [1], [2], b"12345678"),
]


def garbage(rng: random.Random) -> list[bytes]:
    """Frames of one message: random bytes, or a good message cut short, changed or in pieces."""
    data = bytearray(encode(rng.choice(GOOD)))
    how = rng.randrange(4)
    if how == 0:
        return [rng.randbytes(rng.randrange(60))]
    if how == 1:
        return [bytes(data[: rng.randrange(len(data))])]
    if how == 2:
        data[rng.randrange(len(data))] = rng.randrange(256)
        return [bytes(data)]
    cut = rng.randrange(len(data))
    return [bytes(data[:cut]), bytes(data[cut:])]


@pytest.mark.parametrize("name", UNIONS)
def test_only_messages_of_the_union_come_through(name: str) -> None:
    union, dropped, rng = UNIONS[name], Dropped(), random.Random(name)
    inbox = Inbox(union, name, dropped)
    kinds = typing.get_args(union) or (union,)
    count = 2000
    taken = [inbox.message(garbage(rng)) for _ in range(count)]
    assert all(message is None or isinstance(message, kinds) for message in taken)
    assert dropped.count == sum(message is None for message in taken) > count // 2


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox(Heartbeat, "ctl", Dropped())
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            assert inbox.message([b"\xc1"]) is None
    assert [record.getMessage() for record in caplog.records] == [
        "dropped a malformed message on ctl (1 so far)"
    ]


class Part(Actor):
    """A part with a socket of each kind."""

    name = "scheduler"

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring, 1, [1])
        self.taken: list[Any] = []

    async def start(self) -> None:
        self.receive(self.bind(zmq.PULL, self.ring.scheduler(0)), Heartbeat, self.taken.append)
        clients = self.bind(zmq.ROUTER, self.ring.front)
        self.receive_from_clients(clients, Heartbeat, lambda _, beat: self.taken.append(beat))

    def new_epoch(self) -> None:
        pass


async def test_a_part_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ring, "read_args", lambda _: ServerArgs())
    ring, rng, good = Ring(tmp_path), random.Random(1), Heartbeat("it", 7, 1)
    part = Part(ring)
    running = asyncio.ensure_future(part.run())
    peers = [
        connect(part.context, zmq.PUSH, ring.scheduler(0)),
        connect(part.context, zmq.DEALER, ring.front),
    ]
    async with asyncio.timeout(SOON_S):
        for peer in peers:
            for frames in [garbage(rng) for _ in range(50)]:
                assert peer.send(*frames)
            assert peer.send(encode(good))
        while part.taken.count(good) < 2:
            assert not running.done()
            await asyncio.sleep(0.01)
        assert part.dropped.count > 50
        part.request_stop()
        await running


async def test_the_supervisor_lives_on(tmp_path: Path) -> None:
    supervisor = Supervisor(ServerArgs(no_http=True, ring_dir=str(tmp_path / "ring")))
    rng, frames = random.Random(2), asyncio.Queue[list[bytes]]()

    class Ctl:
        receive = frames.get

    for _ in range(200):
        frames.put_nowait(garbage(rng))
    listening = asyncio.ensure_future(supervisor._listen(typing.cast(Any, Ctl())))
    async with asyncio.timeout(SOON_S):
        while not frames.empty():
            await asyncio.sleep(0)
    assert not listening.done()
    listening.cancel()
    assert supervisor._event().dropped > 100
    child = supervisor._children["scheduler"]
    child.beat = Heartbeat("scheduler", 7, 1, dropped=1000)
    assert supervisor._event().dropped > 1100
    supervisor._context.destroy()


def test_what_the_supervisor_does_not_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that takes a scheduler for real that does not exist ends; one that heard of it early
    does not, nor one that was stopped and finds old events."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    heard = Doubt()
    heard.hear([1, 5], [1, 5])
    heard.hear([4, 5], [1, 5])  # a new scheduler spoke before the event
    now += inbox._PATIENCE_S + 1
    heard.hear([4, 5], [4, 5])
    heard.hear([4, 99], [4, 5])
    now += inbox._PATIENCE_S + 1  # stopped
    for _ in range(10):
        heard.hear([4, 99], [4, 5])
        now += 1
    heard.hear([4, 99], [4, 5])
    now += 1
    with pytest.raises(RuntimeError, match=r"no such scheduler: \[4, 99\]"):
        heard.hear([4, 99], [4, 5])
