"""The hub's TCP port: who talks to it, by which key, and how long ago.

Anybody may reach the port. With keys, libzmq lets only those in whose key is allowed; each message
is looked at again, since a key may be removed while its connection stays. What a connection says
before it has joined is short, and little is kept of it.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import zmq

from srt.args import ServerArgs
from srt.cluster.curve import Authenticator, serve_with
from srt.cluster.keys import ALLOWED, AllowedKeys, load_keys
from srt.cluster.link import PIECE_BYTES, Link, LinkLost
from srt.cluster.protocol import (
    PING_INTERVAL_S,
    AgentMessage,
    Hello,
    JoinReq,
    Unknown,
)
from srt.ring.places import open_socket
from srt.ring.socket import Blob, RingContext
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 4 * PIECE_BYTES  # none that an agent sends is longer
_MAX_STRANGERS = 256  # connections that have not joined
_MAX_FIRST_BYTES = 64 * 1024  # of what they say
_REBIND_S = 10.0  # for the port of a hub that has died
_HANDSHAKE_MS = 5000  # so long a connection may say nothing
# A machine that was switched off never closes its connection, which holds what was not sent.
_GONE_MS = 10_000
_ADDRESS_FILE = "cluster_address"
_AT_ONCE = 64  # messages

OnMessage = Callable[["Peer", Any, list[Blob]], object]
OnLost = Callable[["Peer", str], object]


@dataclass(eq=False)
class Peer:
    """A connection. `key` is the public key of who it is; "" without keys."""

    identity: bytes
    key: str
    link: Link
    name: str = "an agent"

    def __str__(self) -> str:
        return f"{self.name} (key {self.key[:12]})" if self.key else self.name


def address_in(directory: Path) -> str:
    """Where agents join the ring of this directory; "" before its hub is there."""
    try:
        return (directory / _ADDRESS_FILE).read_text()
    except OSError:
        return ""


class Door:
    """Takes the messages of agents, and finds out which are gone. `on_message` gets what a peer
    says, `on_lost` a member that is gone, with the reason."""

    def __init__(
        self,
        context: RingContext,
        args: ServerArgs,
        directory: Path,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        self._args, self._directory = args, directory
        self._on_message, self._on_lost = on_message, on_lost
        self._socket = open_socket(context, zmq.ROUTER)
        self._socket.set(zmq.ROUTER_HANDOVER, 0)
        self._socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self._socket.set(zmq.HEARTBEAT_IVL, _GONE_MS // 3)
        self._socket.set(zmq.HEARTBEAT_TIMEOUT, _GONE_MS)
        self._socket.set(zmq.TCP_MAXRT, _GONE_MS)
        self._allowed: AllowedKeys | None = None
        self.loops: list[Coroutine[Any, Any, None]] = [self._read(), self._watch()]
        if not args.cluster_insecure:
            keys = Path(args.cluster_keys)
            self._allowed = AllowedKeys(keys / ALLOWED)
            serve_with(self._socket, load_keys(keys))
            self.loops.append(Authenticator(context, self._allowed.is_allowed).run())
        self._strangers: dict[bytes, Peer] = {}
        self._members: dict[bytes, Peer] = {}

    @property
    def members(self) -> list[Peer]:
        """Those that have joined."""
        return list(self._members.values())

    async def open(self) -> None:
        """Bind the port: that of the hub before, if there was one. Raises ConfigError."""
        before = address_in(self._directory)
        address = before or self._args.cluster_bind.replace("//localhost:", "//127.0.0.1:")
        deadline = time.monotonic() + (_REBIND_S if before else 0.0)
        self._socket.set(zmq.IPV6, int("[" in address))
        while True:
            try:
                self._socket.bind(address)
                break
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise ConfigError(
                        f"--cluster-bind {address} cannot be bound: {error.strerror}"
                    ) from error
            await asyncio.sleep(0.1)
        (self._directory / _ADDRESS_FILE).write_text(self._socket.endpoint)
        log.info("agents join at %s", self._socket.endpoint)

    def admit(self, peer: Peer, name: str) -> None:
        """The peer has joined; it calls itself `name`."""
        self._strangers.pop(peer.identity, None)
        printable = "".join(c for c in name[:64] if c.isprintable())
        peer.name = f"the agent of {printable or 'a machine without a name'}"
        self._members[peer.identity] = peer

    def drop(self, peer: Peer, reason: str) -> None:
        """Have nothing more to do with a peer, and tell it. Idempotent."""
        is_stranger = self._strangers.pop(peer.identity, None) is not None
        is_member = self._members.pop(peer.identity, None) is not None
        if is_stranger or is_member:
            self._tell_unknown(peer.identity, reason)
        if is_member:
            self._on_lost(peer, reason)

    async def _read(self) -> None:
        for number in count(1):
            if number % _AT_ONCE == 0:  # one that sends without end does not keep others waiting
                await asyncio.sleep(0)
            frames, key = await self._socket.receive_from()
            identity, rest = frames[0], frames[1:]
            if not rest or not self._is_allowed(key):
                continue
            peer = self._members.get(identity)
            if peer is not None and peer.key == key:
                self._take(peer, rest)
            elif peer is None:
                self._take_first(identity, key, rest)

    def _is_allowed(self, key: str) -> bool:
        return self._allowed is None or self._allowed.is_allowed(key)

    def _take(self, peer: Peer, frames: Sequence[bytes]) -> None:
        try:
            taken = peer.link.take(frames)
        except LinkLost as error:
            self.drop(peer, str(error))
            return
        if taken is not None and isinstance(taken[0], Hello | JoinReq):
            self.drop(peer, "it joins twice")
        elif taken is not None:
            self._on_message(peer, *taken)

    def _take_first(self, identity: bytes, key: str, frames: Sequence[bytes]) -> None:
        """What somebody says who has not joined."""
        peer = self._strangers.get(identity)
        if peer is None or peer.key != key:
            peer = Peer(identity, key, Link(self._sender(identity), AgentMessage))
        try:
            is_short = len(frames) == 1 and len(frames[0]) <= _MAX_FIRST_BYTES
            taken = peer.link.take(frames) if is_short else None
        except LinkLost:
            taken = None
        if taken is None or not isinstance(taken[0], Hello | JoinReq):
            self._strangers.pop(identity, None)
            self._tell_unknown(identity, "it has not joined")
            return
        if len(self._strangers) >= _MAX_STRANGERS:
            del self._strangers[next(iter(self._strangers))]
        self._strangers[identity] = peer
        self._on_message(peer, *taken)

    def _sender(self, identity: bytes) -> Callable[..., bool]:
        return lambda *frames: self._socket.send(identity, *frames)

    def _tell_unknown(self, identity: bytes, reason: str) -> None:
        with suppress(LinkLost):  # it finds out by the silence
            Link(self._sender(identity), AgentMessage).send(Unknown(reason))

    async def _watch(self) -> None:
        """Ping every member; those that are silent, or not allowed any more, are lost."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            now = time.monotonic()
            stood_still_s, looked_at = max(0.0, now - looked_at - 2 * PING_INTERVAL_S), now
            for peer in self.members:
                peer.link.excuse(stood_still_s)
                if not self._is_allowed(peer.key):
                    self.drop(peer, "its key is not allowed any more")
                    continue
                try:
                    peer.link.ping()
                except LinkLost as error:
                    self.drop(peer, str(error))
