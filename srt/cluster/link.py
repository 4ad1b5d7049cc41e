"""One side of a connection between hub and agent: what is long goes in pieces, and what the other
side has not read yet is bounded.

Pieces keep the connection alive: a message of 64 MiB takes longer than LOST_S on a slow one, and
nothing would be heard meanwhile. The bound is of each connection's own: one that reads too slowly
is lost alone.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from srt.cluster.protocol import LOST_S, Long, NodeMessage, Piece, Ping, Pong
from srt.ring.places import MAX_MESSAGE_BYTES
from srt.ring.socket import Blob

PIECE_BYTES = 2**20
# Of messages that the other side has not said it has received.
MAX_UNREAD_BYTES = 4 * MAX_MESSAGE_BYTES
_HEAD_BYTES = 16  # more than a Piece takes
SAY_S = 60.0

_encode = msgspec.msgpack.Encoder().encode


class LinkLost(Exception):
    """The connection is of no use any more; its text says why."""


class Seldom:
    """Logs what happens again and again: the same warning at most every SAY_S."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said, self._said_at = "", float("-inf")

    def warn(self, text: str, *words: object) -> None:
        """Log this warning, unless it was the last one, not long ago."""
        said, now = text % words, time.monotonic()
        if said != self._said or now - self._said_at > SAY_S:
            self._said, self._said_at = said, now
            self._logger.warning("%s", said)


class Link:
    """`send` sends frames without waiting; false: they cannot be sent. `union` is what the other
    side says."""

    def __init__(self, send: Callable[..., bool], union: Any) -> None:
        self._send_frames = send
        self._decode = msgspec.msgpack.Decoder(union).decode
        self._sent = self._read = 0  # bytes, and of these the other side's
        self._received = 0
        self._heard_at = time.monotonic()
        self._sizes: list[int] = []  # of the frames of a long message that comes
        self._pieces = bytearray()

    # ---- out -----------------------------------------------------------------------------------

    def send(self, message: NodeMessage, frames: Sequence[Blob] = ()) -> None:
        """Send a message, with these frames behind it. Raises LinkLost."""
        data = _encode(message)
        size = len(data) + sum(map(len, frames))
        if size <= PIECE_BYTES:
            self._put((data, *frames), size)
            return
        every = (data, *frames)
        self._put((_encode(Long([*map(len, every)])),), _HEAD_BYTES)
        for piece in _pieces(every):
            self._put((_encode(Piece()), piece), len(piece))

    def _put(self, frames: Sequence[Blob], size: int) -> None:
        if self._sent + size - self._read > MAX_UNREAD_BYTES:
            raise LinkLost(f"it has not read {self._sent - self._read} bytes")
        self._sent += sum(map(len, frames))
        if not self._send_frames(*frames):
            raise LinkLost("it cannot be reached, or does not read")

    def ping(self) -> None:
        """Send a Ping. Raises LinkLost, also if nothing was heard for LOST_S."""
        now = time.monotonic()
        if now - self._heard_at > LOST_S:
            raise LinkLost(f"nothing was heard of it for {LOST_S:g} s")
        self.send(Ping(now, self._received))

    def excuse(self, seconds: float) -> None:
        """This process stood still for so long: what came meanwhile may be unread."""
        self._heard_at += seconds

    # ---- in ------------------------------------------------------------------------------------

    def take(self, frames: Sequence[bytes]) -> tuple[Any, list[Blob]] | None:
        """The message in these frames, and those behind it; None if it was for the link itself, or
        is not whole yet. Raises LinkLost for what is no message."""
        self._received += sum(map(len, frames))
        self._heard_at = time.monotonic()
        try:
            message = self._decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LinkLost("it has sent what is no message") from error
        behind: list[Blob] = list(frames[1:])
        if isinstance(message, Ping):
            self._read = max(self._read, min(message.received, self._sent))
            self.send(Pong(message.sent_s, self._heard_at))
            return None
        if isinstance(message, Long):
            self._begin(message)
            return None
        if isinstance(message, Piece):
            return self._add(behind)
        return message, behind

    def _begin(self, message: Long) -> None:
        is_small = 0 < sum(message.sizes) <= MAX_UNREAD_BYTES
        if self._sizes or not is_small or min(message.sizes) < 0:
            raise LinkLost("it has sent pieces of a message that is too long, or of two at once")
        self._sizes = message.sizes

    def _add(self, behind: Sequence[Blob]) -> tuple[Any, list[Blob]] | None:
        total = sum(self._sizes)
        if len(behind) != 1 or not 0 < len(behind[0]) <= total - len(self._pieces):
            raise LinkLost("it has sent a piece of no message")
        self._pieces += behind[0]
        if len(self._pieces) < total:
            return None
        # The link's next message has a buffer of its own: this one is handed on.
        sizes, whole = self._sizes, memoryview(self._pieces)
        self._sizes, self._pieces = [], bytearray()
        frames, at = [], 0
        for size in sizes:
            frames.append(whole[at : at + size])
            at += size
        try:
            return self._decode(frames[0]), list(frames[1:])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LinkLost("it has sent what is no message") from error


def _pieces(frames: Sequence[Blob]) -> Iterator[bytes]:
    """The bytes of `frames` in pieces of at most PIECE_BYTES, none of two frames."""
    for frame in frames:
        view = memoryview(frame)
        for at in range(0, len(view), PIECE_BYTES):
            yield bytes(view[at : at + PIECE_BYTES])
