"""The ring of a node: a directory with the sockets that its schedulers know, and what goes through
them. The other ends of all are the head's, by the agent's connection."""

import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import zmq

from srt.args import ServerArgs
from srt.cluster.clock import rewrite
from srt.cluster.grammars import GrammarFiles, HeldMessages
from srt.cluster.protocol import Way
from srt.ring.inbox import Dropped, Inbox
from srt.ring.places import bind, connect, create_ring
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

log = logging.getLogger(__name__)

Up = Callable[[Way, int, Sequence[Blob]], object]


class NodeRing:
    """For the schedulers at `places`, of `total` that the ring has. `up` gets what they say.
    `offset_s` says how far the head's clock is ahead of this machine's. Raises ConfigError if the
    directory cannot be made."""

    def __init__(
        self,
        args: ServerArgs,
        places: Sequence[int],
        total: int,
        *,
        up: Up,
        ask_grammar: Callable[[str], object],
        offset_s: Callable[[], float],
    ) -> None:
        self.ring = create_ring(args)
        self.on_beat: Callable[[Heartbeat], int | None] = lambda beat: None
        self.on_full: Callable[[int], object] = lambda place: None
        self._total, self._up, self._offset_s = total, up, offset_s
        self._dropped = Dropped()
        self._down_inbox = Inbox(SchedulerMessage, "the head's connection", self._dropped)
        self._event_inbox = Inbox(RingEvent, "the head's connection", self._dropped)
        self._last_event: bytes | None = None
        self._context = RingContext()
        self._events = bind(self._context, zmq.XPUB, self.ring.events)
        self._events.set(zmq.XPUB_VERBOSE, 1)
        self._inbound = [
            (Way.DETOKENIZER, self._bound(self.ring.detokenizer), DetokenizerMessage),
            (Way.CREDITS, self._bound(self.ring.credits), FrontNews),
        ]
        self._ctl = self._bound(self.ring.ctl)
        self._schedulers = {
            place: connect(self._context, zmq.PUSH, self.ring.scheduler(place)) for place in places
        }
        self._files = GrammarFiles(self.ring.grammars)
        self.held = HeldMessages(ask_grammar, self._send_down)

    def _bound(self, address: str) -> RingSocket:
        return bind(self._context, zmq.PULL, address)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run while the ring is there."""
        reading = [self._read(way, socket, union) for way, socket, union in self._inbound]
        return [*reading, self._read_ctl(), self._greet()]

    # ---- from the schedulers -------------------------------------------------------------------

    async def _read(self, way: Way, socket: RingSocket, union: Any) -> None:
        inbox = Inbox(union, "a socket of the ring", self._dropped)
        while True:
            received = await socket.receive()
            message, frames = inbox.message(received), list[Blob](received)
            incarnation = getattr(message, "incarnation", None)
            if incarnation is None:
                continue
            moved = rewrite(message, self._offset_s())
            if moved is not message:
                frames[0] = encode(moved)
            self._up(way, replica_of(incarnation, self._total), frames)

    async def _read_ctl(self) -> None:
        inbox = Inbox(Heartbeat, "ctl", self._dropped)
        while True:
            frames = await self._ctl.receive()
            beat = inbox.message(frames)
            place = None if beat is None else self.on_beat(beat)
            if place is not None:
                self._up(Way.CTL, place, frames)

    async def _greet(self) -> None:
        """Publish the ring's state when a scheduler subscribes."""
        while True:
            await self._events.receive()
            if self._last_event is not None:
                self._events.send(self._last_event)

    # ---- to the schedulers ---------------------------------------------------------------------

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
        message = self._down_inbox.message(received)
        if message is None or place not in self._schedulers:
            return
        moved = rewrite(message, -self._offset_s())
        if moved is not message:
            frames = [encode(moved), *frames[1:]]
        needed = ""
        if isinstance(message, TokenizedReq) and message.grammar:
            needed = "" if self._files.has(message.grammar) else message.grammar
        elif isinstance(message, GrammarMade) and message.error is None:
            self._files.remove(message.key)
            needed = message.key
        self.held.add(place, frames, needed, time.monotonic())

    def add_grammar(self, key: str, data: Blob, digest: bytes) -> None:
        """A grammar has come; without data the head has none of this key."""
        if data:
            self._files.add(key, data, digest)
        self.held.came(key)

    def _send_down(self, place: int, frames: Sequence[Blob]) -> None:
        if not self._schedulers[place].send(*frames):
            self.on_full(place)

    def close(self) -> None:
        """Close the sockets, and remove the directory."""
        self._context.destroy()
        with suppress(OSError):
            shutil.rmtree(self.ring.directory)
