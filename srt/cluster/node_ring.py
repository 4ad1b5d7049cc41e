"""The ring of a node: a directory with the sockets that its schedulers know, and what goes through
them. The other ends of all are the head's, by the agent's connection."""

import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import zmq

from srt.args import ServerArgs
from srt.cluster.clock import rewrite
from srt.cluster.grammars import GrammarFiles, HeldMessages
from srt.cluster.protocol import Way
from srt.ring.inbox import Dropped, Inbox
from srt.ring.places import Ring, bind, connect, create_ring
from srt.ring.socket import Blob, RingContext, RingSocket
from srt.wire.messages import encode
from srt.wire.ring_messages import (
    DetokenizerMessage,
    FrontNews,
    GrammarMade,
    SchedulerMessage,
    TokenizedReq,
)
from srt.wire.ring_state import Heartbeat, RingEvent, replica_of

Offset = Callable[[], float]  # by how many seconds the head's clock is ahead of this machine's


class Upward:
    """What the schedulers say. `send` gets it with the head's times, with the way and the place;
    `beat` says of which place's scheduler a heartbeat is, None: of none. The ring has `total`
    places."""

    def __init__(
        self,
        ring: Ring,
        context: RingContext,
        total: int,
        send: Callable[[Way, int, Sequence[Blob]], object],
        offset: Offset,
    ) -> None:
        self.beat: Callable[[Heartbeat], int | None] = lambda beat: None
        self._total, self._send, self._offset = total, send, offset
        self._dropped = Dropped()
        self._detokenizer = bind(context, zmq.PULL, ring.detokenizer)
        self._credits = bind(context, zmq.PULL, ring.credits)
        self._ctl = bind(context, zmq.PULL, ring.ctl)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run meanwhile."""
        return [
            self._read(Way.DETOKENIZER, self._detokenizer, DetokenizerMessage),
            self._read(Way.CREDITS, self._credits, FrontNews),
            self._read_ctl(),
        ]

    async def _read(self, way: Way, socket: RingSocket, union: Any) -> None:
        inbox = Inbox(union, "a socket of the ring", self._dropped)
        while True:
            frames = await socket.receive()
            message = inbox.message(frames)
            incarnation = getattr(message, "incarnation", None)
            if incarnation is None:
                continue
            moved = rewrite(message, self._offset())
            if moved is not message:
                frames[0] = encode(moved)
            self._send(way, replica_of(incarnation, self._total), frames)

    async def _read_ctl(self) -> None:
        inbox = Inbox(Heartbeat, "ctl", self._dropped)
        while True:
            frames = await self._ctl.receive()
            beat = inbox.message(frames)
            place = None if beat is None else self.beat(beat)
            if place is not None:
                self._send(Way.CTL, place, frames)


class Downward:
    """What the schedulers at `places` are told. `ask` asks the head for a grammar; `on_full` is
    called with the place of a scheduler that does not read."""

    def __init__(
        self,
        ring: Ring,
        context: RingContext,
        places: Sequence[int],
        ask: Callable[[str], object],
        offset: Offset,
    ) -> None:
        self.on_full: Callable[[int], object] = lambda place: None
        self._offset, dropped = offset, Dropped()
        self._inbox = Inbox(SchedulerMessage, "the head's connection", dropped)
        self._events = bind(context, zmq.XPUB, ring.events)
        self._events.set(zmq.XPUB_VERBOSE, 1)
        self._event_inbox = Inbox(RingEvent, "the head's connection", dropped)
        self._last_event: bytes | None = None
        self._schedulers = {
            place: connect(context, zmq.PUSH, ring.scheduler(place)) for place in places
        }
        self._files = GrammarFiles(ring.grammars)
        self.held = HeldMessages(ask, self._send)

    async def greet(self) -> None:
        """Publish the ring's state whenever a scheduler subscribes."""
        while True:
            await self._events.receive()
            if self._last_event is not None:
                self._events.send(self._last_event)

    def publish(self, frames: Sequence[Blob]) -> RingEvent | None:
        """Publish the ring's state; None if it cannot be understood."""
        data = bytes(frames[0])
        event: RingEvent | None = self._event_inbox.message([data])
        if event is not None:
            self._last_event = data
            self._events.send(data)
        return event

    def take(self, place: int, frames: Sequence[Blob]) -> None:
        """Send a message on to the scheduler at `place`, with this machine's times, once the
        grammar that it needs is here."""
        received: list[Any] = [bytes(frames[0]), *frames[1:]]
        message = self._inbox.message(received)
        if message is None or place not in self._schedulers:
            return
        moved = rewrite(message, -self._offset())
        if moved is not message:
            received[0] = encode(moved)
        needed = ""
        if isinstance(message, TokenizedReq) and message.grammar:
            needed = "" if self._files.has(message.grammar) else message.grammar
        elif isinstance(message, GrammarMade) and message.error is None:
            self._files.remove(message.key)
            needed = message.key
        self.held.add(place, received, needed, time.monotonic())

    def add_grammar(self, key: str, data: Blob, digest: bytes) -> None:
        """A grammar has come; without data the head has none of this key."""
        if data:
            self._files.add(key, data, digest)
        self.held.came(key)

    def _send(self, place: int, frames: Sequence[Blob]) -> None:
        if not self._schedulers[place].send(*frames):
            self.on_full(place)


class NodeRing:
    """For the schedulers at `places`, of `total` that the ring has; the rest is as of `Upward` and
    `Downward`. Raises ConfigError if the directory cannot be made."""

    def __init__(
        self,
        args: ServerArgs,
        places: Sequence[int],
        total: int,
        *,
        send: Callable[[Way, int, Sequence[Blob]], object],
        ask: Callable[[str], object],
        offset: Offset,
    ) -> None:
        self.ring = create_ring(args)
        self._context = RingContext()
        self.up = Upward(self.ring, self._context, total, send, offset)
        self.down = Downward(self.ring, self._context, places, ask, offset)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run while the ring is there."""
        return [*self.up.loops(), self.down.greet()]

    def close(self) -> None:
        """Close the sockets, and remove the directory."""
        self._context.destroy()
        shutil.rmtree(self.ring.directory, ignore_errors=True)
