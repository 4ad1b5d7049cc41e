"""The agent of a node: `python -m srt agent` runs schedulers for the ring of another machine.

It connects to the hub of that ring, gets its arguments and places there, and starts schedulers in a
ring's directory of its own. When the connection is lost it ends them, since the ring goes on
without them, and joins anew.
"""

import asyncio
import logging
import signal
import socket
import time
import zlib
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq
from msgspec import Struct

from srt.cluster.clock import Offset
from srt.cluster.curve import Keys, connect_with
from srt.cluster.fingerprint import fingerprint, value_options
from srt.cluster.keys import load_head_key, load_keys, require_loopback
from srt.cluster.link import Link, LinkLost, Seldom
from srt.cluster.node_args import node_args
from srt.cluster.node_ring import NodeRing
from srt.cluster.protocol import (
    PING_INTERVAL_S,
    PROTOCOL,
    Carry,
    Ended,
    GrammarReq,
    GrammarSent,
    Hello,
    HubMessage,
    Joined,
    JoinReq,
    Leave,
    NodeMessage,
    Offer,
    Pong,
    Refused,
    Start,
    Unknown,
    Way,
)
from srt.cluster.schedulers import GivenUp, Schedulers
from srt.files.model_files import resolve_model
from srt.ring.crash_file import blame_path, last_words_path
from srt.ring.places import open_socket
from srt.ring.socket import Blob, RingContext
from srt.tasks import all_of
from srt.version import version_of
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

_HELLO_S = 1.0  # until the head answers
_SAY_S = 30.0  # that it does not
_REJOIN_S = 0.5
_REFUSED_S = 2.0
_MAX_WORDS_BYTES = 2**20


class AgentOptions(Struct, frozen=True):
    """What an agent is told at its start. `keys` is None with --insecure; `own` are fields of
    ServerArgs that the node has itself."""

    join: str
    keys: str | None
    replicas: int = 1
    own: dict[str, Any] = {}


class Refusal(Exception):
    """The head does not let this agent in."""

    def __init__(self, reason: str, is_final: bool) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Agent:
    """Joins again and again, until it is stopped or cannot run."""

    def __init__(self, options: AgentOptions) -> None:
        """Raises ConfigError for keys that cannot be used."""
        self._options = options
        self._keys: tuple[Keys, str] | None = None
        if options.keys is None:
            require_loopback(options.join)
        else:
            directory = Path(options.keys)
            self._keys = load_keys(directory), load_head_key(directory)
        self._places: list[int] = []  # the last ones

    async def run(self) -> int:
        """Run until a signal; returns the exit status. Raises ConfigError, GivenUp."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        stopping, refusals = asyncio.create_task(stop.wait()), Seldom(log)
        while not stop.is_set():
            membership = asyncio.create_task(self._join_once())
            await asyncio.wait([membership, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                membership.cancel()
                with suppress(asyncio.CancelledError, LinkLost, Refusal):
                    await membership
                break
            pause_s = _REJOIN_S
            try:
                await membership
            except LinkLost as error:
                log.warning("the head is lost: %s; joining anew", error)
            except Refusal as error:
                if error.is_final:
                    raise ConfigError(f"the head refuses this agent: {error}") from None
                refusals.warn("the head refuses this agent for now: %s", error)
                pause_s = _REFUSED_S
            await asyncio.wait([stopping], timeout=pause_s)
        return 0

    async def _join_once(self) -> None:
        context = RingContext()
        try:
            connection = Connection(context, self._options.join, self._keys)
            offer = await connection.greet()
            files_args, plan = node_args(
                offer.options, offer.places, self._options.replicas, self._options.own
            )
            files = resolve_model(files_args.model, files_args.tokenizer)
            found = await asyncio.to_thread(
                fingerprint, files.path, files.text_path, value_options(files_args)
            )
            joined = await connection.join(
                JoinReq(
                    found,
                    self._options.replicas,
                    socket.gethostname(),
                    places=self._places,
                )
            )
            if plan is not None:
                plan.log()
            self._places = joined.places
            log.info("joined %s: replica %s", self._options.join, ", ".join(map(str, self._places)))
            await Membership(connection, files_args, joined.places, offer.places).run()
        finally:
            context.destroy()


class Connection:
    """To a hub, by one socket."""

    def __init__(self, context: RingContext, address: str, keys: tuple[Keys, str] | None) -> None:
        self._address = address
        self._socket = open_socket(context, zmq.DEALER)
        self._socket.set(zmq.IPV6, int("[" in address))
        if keys is not None:
            connect_with(self._socket, *keys)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            raise ConfigError(f"--join {address}: {error.strerror}") from error
        self.link = Link(self._socket.send, HubMessage)

    async def receive(self) -> tuple[Any, list[Blob]]:
        """The next message, and the frames behind it. Raises LinkLost."""
        while True:
            taken = self.link.take(await self._socket.receive())
            if taken is None:
                continue
            if isinstance(taken[0], Unknown):
                raise LinkLost(f"it says that {taken[0].reason or 'this agent has not joined'}")
            return taken

    async def greet(self) -> Offer:
        """Say Hello until the head answers. Raises Refusal."""
        said_at = time.monotonic()
        while True:
            with suppress(LinkLost):  # it is not there yet
                self.link.send(Hello(PROTOCOL, version_of()))
            with suppress(TimeoutError, LinkLost):
                async with asyncio.timeout(_HELLO_S):
                    message, _ = await self.receive()
                    if isinstance(message, Refused):
                        raise Refusal(message.reason, message.is_final)
                    if isinstance(message, Offer):
                        return message
            if time.monotonic() - said_at > _SAY_S:
                said_at = time.monotonic()
                log.warning(
                    "no answer from %s: is the head running, and does it allow this key?",
                    self._address,
                )

    async def join(self, req: JoinReq) -> Joined:
        """Ask to join. Raises Refusal, LinkLost."""
        self.link.send(req)
        try:
            async with asyncio.timeout(10 * _HELLO_S):
                while True:
                    message, _ = await self.receive()
                    if isinstance(message, Refused):
                        raise Refusal(message.reason, message.is_final)
                    if isinstance(message, Joined):
                        return message
        except TimeoutError:
            raise LinkLost("it does not answer") from None


class Membership:
    """An agent that has joined: its ring, its schedulers, and what goes from them to the hub."""

    def __init__(
        self, connection: Connection, args: Any, places: Sequence[int], total: int
    ) -> None:
        self._connection, self._link = connection, connection.link
        self._offset = Offset()
        self._node = NodeRing(
            args,
            places,
            total,
            send=lambda way, place, frames: self._link.send(Carry(way, place), frames),
            ask=lambda key: self._link.send(GrammarReq(key)),
            offset=lambda: self._offset.seconds,
        )
        self._schedulers = Schedulers(self._node.ring, args, places, total, self._on_end)
        self._node.up.beat, self._node.down.on_full = self._schedulers.beat, self._schedulers.end

    async def run(self) -> None:
        """Until the connection is lost (LinkLost), a scheduler cannot run (GivenUp), or this is
        cancelled."""
        at_once = True
        loops: list[Coroutine[Any, Any, None]] = [self._receive(), self._ping()]
        loops += [*self._node.loops(), self._schedulers.failed()]
        try:
            await all_of(loops)
        except (asyncio.CancelledError, GivenUp):
            at_once = False
            with suppress(LinkLost):
                self._link.send(Leave())
            raise
        finally:
            await self._schedulers.close(at_once=at_once)
            self._node.close()

    async def _receive(self) -> None:
        while True:
            message, frames = await self._connection.receive()
            self._take(message, frames)

    def _take(self, message: NodeMessage, frames: list[Blob]) -> None:
        if isinstance(message, Carry) and message.way is Way.SCHEDULER:
            self._node.down.take(message.place, frames)
        elif isinstance(message, Carry):
            event = self._node.down.publish(frames)
            if event is not None:
                self._schedulers.hear(event)
        elif isinstance(message, Pong):
            self._offset.add(message.sent_s, message.now_s, time.monotonic())
        elif isinstance(message, Start):
            self._schedulers.start(message.place, message.epoch, message.incarnations)
        elif isinstance(message, GrammarSent):
            data = frames[0] if message.is_there else b""
            self._node.down.add_grammar(message.key, data, message.digest)

    async def _ping(self) -> None:
        looked_at = time.monotonic()
        while True:
            self._link.ping()
            await asyncio.sleep(PING_INTERVAL_S)
            now = time.monotonic()
            self._link.excuse(max(0.0, now - looked_at - 2 * PING_INTERVAL_S))
            looked_at = now
            self._node.down.held.expire(now)

    def _on_end(self, place: int, incarnation: int, status: int) -> None:
        """Tell the hub what a scheduler has left."""
        directory = self._node.ring.directory
        record, words = blame_path(directory, incarnation), last_words_path(directory, incarnation)
        data = zlib.compress(_read(record), 1) if record.exists() else b""
        was_silent = self._schedulers.was_silent(place)
        left = [data, _read(words)[-_MAX_WORDS_BYTES:]]
        self._node.down.held.drop(place)
        with suppress(LinkLost):  # found by the ping
            self._link.send(Ended(place, incarnation, status, was_silent), left)
        for path in (record, words):
            path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
