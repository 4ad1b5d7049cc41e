"""CURVE on ZeroMQ sockets between machines: both ends know each other by their keys, and nobody
else reads what they say.

A key is 64 hexadecimal digits here: libzmq's own form, Z85, has characters that shells, file names
and YAML take for something else. libzmq asks its authenticator (ZAP, RFC 27) once for each
handshake; each message then carries the key of its sender, which `RingSocket.receive_from` returns.
pyzmq's authenticators read their keys once, and need a thread or sockets of asyncio's.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import zmq
from zmq.utils import z85

from srt.ring.places import bind
from srt.ring.socket import RingContext, RingSocket

log = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
# Only a domain with this option makes libzmq refuse everybody while nobody answers its questions.
_DOMAIN = b"srt"
_VERSION = b"1.0"
# What a client waits for an answer before it tries anew: one whose key is not allowed yet has none.
_HANDSHAKE_MS = 2000
_STRANGER_MS = 5000  # what a server waits for a handshake: each takes a descriptor meanwhile
_LOG_INTERVAL_S = 10.0  # of refusals of one key: who is refused tries again and again
_MAX_REFUSED = 1024  # keys that are remembered for this


class Keys(NamedTuple):
    """A key pair, 64 hexadecimal digits each."""

    public: str
    secret: str


def new_keys() -> Keys:
    """A new pair."""
    public, secret = zmq.curve_keypair()
    return Keys(z85.decode(public).hex(), z85.decode(secret).hex())


def public_of(secret: str) -> str:
    """The public key that belongs to a secret one."""
    return z85.decode(zmq.curve_public(z85.encode(bytes.fromhex(secret)))).hex()


def serve_with(socket: RingSocket, keys: Keys) -> None:
    """Let only those connect to this socket, not bound yet, whom an `Authenticator` of its context
    allows."""
    socket.set(zmq.HANDSHAKE_IVL, _STRANGER_MS)
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.secret))
    socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def connect_with(socket: RingSocket, keys: Keys, server: str) -> None:
    """Let this socket, not connected yet, talk only to whom has the public key `server`."""
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.set(zmq.CURVE_SERVERKEY, bytes.fromhex(server))
    socket.set(zmq.CURVE_PUBLICKEY, bytes.fromhex(keys.public))
    socket.set(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.secret))


class Authenticator:
    """Answers libzmq's questions about handshakes on the sockets of `context`; one of each context.
    `is_allowed` says whether the owner of a public key may connect."""

    def __init__(self, context: RingContext, is_allowed: Callable[[str], bool]) -> None:
        self._socket = bind(context, zmq.REP, ZAP_ADDRESS)
        self._is_allowed = is_allowed
        self._refused: dict[str, float] = {}  # key -> when that was logged

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            frames = [bytes(frame) for frame in await self._socket.receive()]
            self._socket.send(*self._answer(frames))

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        if len(frames) < 6 or frames[0] != _VERSION:  # of a libzmq that speaks another protocol
            return [_VERSION, b"", b"500", b"not understood", b"", b""]
        request, address, mechanism = frames[1], frames[3].decode("ascii", "replace"), frames[5]
        key = frames[6].hex() if mechanism == b"CURVE" and len(frames) == 7 else ""
        if key and self._is_allowed(key):
            return [_VERSION, request, b"200", b"OK", key.encode(), b""]
        self._log(key or "none", address)
        # The client gets no word and tries again. After a "400" it never would: libzmq gives the
        # connection up for good, and the key may be allowed later.
        return [_VERSION, request, b"300", b"this key is not allowed", b"", b""]

    def _log(self, key: str, address: str) -> None:
        now = time.monotonic()
        if now - self._refused.get(key, -_LOG_INTERVAL_S) < _LOG_INTERVAL_S:
            return
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused[key] = now
        log.warning("refused %s: its key is not allowed here: %s", address, key)
