"""The hub: the part of a ring that stands in for the schedulers of other machines.

Towards the ring it has the sockets that each of them would have; what comes there it carries to the
agent that has the place, and back. It tells the supervisor when an agent has taken a place, and
when a scheduler is lost. Its own end is that of all remote schedulers.
"""

import asyncio
import hashlib
import logging
import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq
from msgspec.structs import replace

from srt.args import places_of
from srt.cluster.door import Door, Peer
from srt.cluster.fingerprint import fingerprint, value_options
from srt.cluster.link import LinkLost, Seldom
from srt.cluster.node_args import told_options
from srt.cluster.places import Places
from srt.cluster.protocol import (
    PROTOCOL,
    Carry,
    Ended,
    GrammarReq,
    GrammarSent,
    Hello,
    Joined,
    JoinReq,
    Leave,
    Offer,
    Pong,
    Refused,
    Start,
    Way,
)
from srt.files.model_files import resolve_model
from srt.ring.actor import Actor
from srt.ring.crash_file import FILE_BYTES, blame_path, last_words_path
from srt.ring.inbox import Inbox
from srt.ring.places import send_now
from srt.ring.socket import Blob, RingSocket
from srt.version import version_of
from srt.wire.errors import quoted
from srt.wire.messages import encode
from srt.wire.ring_state import Heartbeat, PlaceNews, RingEvent, scheduler_part

log = logging.getLogger(__name__)

_KEY = re.compile("[0-9a-f]{64}")  # of a grammar
_KILLED = -9  # the status of a scheduler of which nothing more is known
_MAX_WORDS_BYTES = 2**20


class HubActor(Actor):
    """Carries between the ring and the agents."""

    name = "hub"

    async def start(self) -> None:
        args = self.args
        files = resolve_model(args.model, args.tokenizer)
        paths = files.path, files.text_path
        self._fingerprint = await asyncio.to_thread(fingerprint, *paths, value_options(args))
        self._total = places_of(args)
        numbers = range(args.dp, self._total)
        self._places: Places[Peer] = Places(numbers)
        self._beats = Inbox(Heartbeat, "the agents' connections", self.dropped)
        self._ways = {
            Way.DETOKENIZER: self.connect(zmq.PUSH, self.ring.detokenizer),
            Way.CREDITS: self.connect(zmq.PUSH, self.ring.credits),
            Way.CTL: self.connect(zmq.PUSH, self.ring.ctl),
        }
        self._refusals = Seldom(log)
        self._door = Door(self.context, args, self.ring.directory, self._on_message, self._lose)
        await self._door.open()
        for number in numbers:
            socket = self.bind(zmq.PULL, self.ring.scheduler(number))
            self.background(self._carry_down(number, socket))
        for loop in self._door.loops:
            self.background(loop)

    def new_epoch(self) -> None:
        self._places.renew(self.incarnations)

    def hear(self, event: RingEvent) -> None:
        data = encode(event)
        for peer in self._door.members:
            self._send(peer, Carry(Way.EVENTS), [data])
        self._start_schedulers()

    def _start_schedulers(self) -> None:
        for number, peer in self._places.start(self.incarnations):
            self._send(peer, Start(number, self.epoch, self.incarnations))

    async def _carry_down(self, number: int, socket: RingSocket) -> None:
        while True:
            frames = await socket.receive()
            peer = self._places.node_at(number)
            if peer is not None and self._places.is_of(number, peer):
                self._send(peer, Carry(Way.SCHEDULER, number), frames)

    def _send(self, peer: Peer, message: Any, frames: Sequence[Blob] = ()) -> None:
        """Send to an agent; one that cannot be sent to is lost."""
        try:
            peer.link.send(message, frames)
        except LinkLost as error:
            self._door.drop(peer, str(error))

    # ---- what agents say -----------------------------------------------------------------------

    def _on_message(self, peer: Peer, message: Any, frames: list[Blob]) -> None:
        if isinstance(message, Carry):
            self._carry_up(peer, message, frames)
        elif isinstance(message, Hello):
            self._greet(peer, message)
        elif isinstance(message, JoinReq):
            self._join(peer, message)
        elif isinstance(message, Ended):
            self._end(peer, message, frames)
        elif isinstance(message, GrammarReq):
            self._send_grammar(peer, message.key)
        elif isinstance(message, Leave):
            self._door.drop(peer, "its agent was stopped")
        elif not isinstance(message, Pong):
            self._door.drop(peer, f"it has sent {type(message).__name__}")

    def _greet(self, peer: Peer, hello: Hello) -> None:
        version, theirs = version_of(), quoted(hello.version)
        if hello.protocol != PROTOCOL:
            older = "older" if hello.protocol < PROTOCOL else "newer"
            reason = (
                f"the agent's srt {theirs} is {older} than the head's srt {version}: they "
                f"speak the protocols {hello.protocol} and {PROTOCOL}; install the same version"
            )
            self._refuse(peer, reason, is_final=True)
            return
        options = told_options(self.args)
        self._send(peer, Offer(PROTOCOL, options, self._fingerprint, self._total, version))

    def _join(self, peer: Peer, req: JoinReq) -> None:
        if req.fingerprint != self._fingerprint:
            theirs = quoted(req.fingerprint[:16])
            reason = (
                "the agent has another model, tokenizer or program than the head, whose "
                f"fingerprint is {self._fingerprint[:16]}, not {theirs}: --model "
                "names the directory or file of the same model on the node"
            )
            self._refuse(peer, reason, is_final=True)
            return
        free = self._places.free
        places = self._places.take(peer, req.replicas, req.places) if req.replicas > 0 else []
        if self.is_draining or not places:
            reason = (
                "the server is stopping"
                if self.is_draining
                else f"of the places for other machines' replicas {free} are free, and the agent "
                f"asks for {req.replicas}: --remote-replicas of the head says how many there are"
            )
            self._places.leave(peer)
            self._refuse(peer, reason)
            return
        self._door.admit(peer, req.name)
        log.info("%s has joined: replica %s", peer, ", ".join(map(str, places)))
        for number in places:  # before it is sent to: it may be gone, which is told then
            self._tell(number, is_taken=True)
        self._send(peer, Joined(places))
        self._start_schedulers()

    def _refuse(self, peer: Peer, reason: str, *, is_final: bool = False) -> None:
        self._refusals.warn("refused %s: %s", peer, reason)
        self._send(peer, Refused(reason, is_final))

    def _carry_up(self, peer: Peer, message: Carry, frames: list[Blob]) -> None:
        socket = self._ways.get(message.way)
        if socket is None or not frames or not self._places.is_of(message.place, peer):
            return  # a scheduler that is lost for the ring says nothing more
        if message.way is Way.CTL:
            self._take_beat(message.place, frames)
        elif not socket.send(*frames):
            raise RuntimeError(f"the {message.way.name.lower()} of the ring does not read")

    def _take_beat(self, number: int, frames: Sequence[Any]) -> None:
        """The supervisor knows the hub's process, not those of other machines."""
        beat = self._beats.message([bytes(frames[0])])
        if beat is not None and beat.part == scheduler_part(number, self._total):
            send_now(self._ways[Way.CTL], replace(beat, pid=os.getpid()))

    def _send_grammar(self, peer: Peer, key: str) -> None:
        data = b""
        if _KEY.fullmatch(key):
            with suppress(OSError):
                data = (self.ring.grammars / key).read_bytes()
        digest = hashlib.sha256(data).digest()
        self._send(peer, GrammarSent(key, bool(data), digest), [data])

    # ---- losses --------------------------------------------------------------------------------

    def _end(self, peer: Peer, ended: Ended, frames: list[Blob]) -> None:
        if not self._places.is_of(ended.place, peer):
            return
        lost = self._places.end(ended.place)
        # Of an epoch before nothing is in flight; and nobody leaves records of others' schedulers.
        if len(frames) == 2 and ended.incarnation == lost:
            self._leave_records(lost, bytes(frames[0]), bytes(frames[1]))
        self._tell(
            ended.place,
            is_taken=True,
            lost=lost,
            status=ended.status,
            was_silent=ended.was_silent,
            reason=f"it ended on {peer}",
        )

    def _leave_records(self, incarnation: int, record: bytes, words: bytes) -> None:
        """Write what a scheduler has left, for the front to read."""
        if not record:
            return
        with suppress(zlib.error, OSError):
            data = zlib.decompressobj().decompress(record, FILE_BYTES)
            _write(blame_path(self.ring.directory, incarnation), data)
            _write(last_words_path(self.ring.directory, incarnation), words[:_MAX_WORDS_BYTES])

    def _lose(self, peer: Peer, reason: str) -> None:
        """An agent is gone, with its schedulers."""
        log.warning("%s is lost: %s", peer, reason)
        why = f"{peer}: {reason}"
        for number, lost in self._places.leave(peer):
            self._tell(number, is_taken=False, lost=lost, status=_KILLED, reason=why)

    def _tell(self, number: int, *, is_taken: bool, **what: Any) -> None:
        part = scheduler_part(number, self._total)
        self.send(self._ways[Way.CTL], PlaceNews(part, os.getpid(), is_taken, **what))


def _write(path: Path, data: bytes) -> None:
    new = path.with_name(f"new.{path.name}")
    new.write_bytes(data)
    new.replace(path)
