"""The children of the tokenizer process, which read requests' texts: one `Reader`, one child.

A child runs what came with the model, a chat template and a tokenizer's patterns, on what users
wrote. Either may run for ever or crash the process: so a child has limits of CPU time and memory
for each piece, and if it dies only that piece fails and another child is forked.
"""

import asyncio
import logging
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NoReturn

import msgspec

from srt.ring.forked import detach, limit_memory
from srt.wire.errors import BAD_REQUEST, INTERNAL, UNAVAILABLE, ErrorInfo
from srt.wire.messages import GenerateReq, TokenizeReq, encode
from tokenizer_proc.reading import Reading, Unreadable
from tokenizer_proc.turns import Piece, TextReq

log = logging.getLogger(__name__)

# CPU time of one piece: the template's, and for the tokenizer some twenty times its need.
CPU_S, CPU_S_PER_CHAR, MAX_CPU_S = 2.0, 20e-6, 60.0
WALL_S = 20.0  # on top of that time: for a child that is stopped, or hardly gets to run
MEMORY_BYTES = 2 * 2**30
_HEAD = struct.Struct("<Id")  # the number of bytes that follow, and the CPU time that they may take
_MAX_READ = 2**20
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_decode_req = msgspec.msgpack.Decoder(TextReq).decode
_decode_reading = msgspec.msgpack.Decoder(Reading).decode
_encode_reading = msgspec.msgpack.Encoder().encode

Read = Callable[[TextReq], Reading]


class Reader:
    """Reads one piece at a time with `read`, in a child that is forked when there is none."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._pid = 0
        self._socket: socket.socket | None = None

    async def read(self, piece: Piece) -> Reading:
        """The result of `read` for a piece, or why its child died. Cancelling kills the child."""
        seconds = min(CPU_S + CPU_S_PER_CHAR * piece.num_chars, MAX_CPU_S)
        try:
            self._make_ready()
        except OSError as error:
            log.warning("no reader of texts could be started: %s", error)
            reason = "the server has no process left to tokenize this request"
            return Unreadable(ErrorInfo(UNAVAILABLE, reason, retryable=True))
        try:
            async with asyncio.timeout(WALL_S + 5 * seconds):
                reading: Reading = _decode_reading(await self._ask(encode(piece.req), seconds))
                return reading
        except TimeoutError:
            self.close()
            reason = "the server is too busy to tokenize this request"
            return Unreadable(ErrorInfo(UNAVAILABLE, reason, retryable=True))
        except (OSError, EOFError, msgspec.DecodeError) as error:
            return self._failed(piece, error)
        except BaseException:
            self.close()
            raise

    def close(self) -> int:
        """Kill the child, if there is one; returns its wait status."""
        connection, self._socket = self._socket, None
        if connection is None:
            return 0
        connection.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        return os.waitpid(self._pid, 0)[1]

    def _failed(self, piece: Piece, error: Exception) -> Reading:
        """The error for `piece`, whose child has died."""
        status = self.close()
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        log.warning("a reader of texts ended with status %d: %s", status, type(error).__name__)
        req = piece.req
        is_chat = isinstance(req, GenerateReq | TokenizeReq) and req.messages is not None
        param, what = ("messages", "chat template") if is_chat else ("text", "tokenizer")
        if ended_by == signal.SIGPROF:
            return Unreadable(ErrorInfo(BAD_REQUEST, f"the {what} took too long", param))
        return Unreadable(ErrorInfo(INTERNAL, f"the model's {what} failed at this text", param))

    async def _ask(self, data: bytes, seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        assert self._socket is not None
        await loop.sock_sendall(self._socket, _HEAD.pack(len(data), seconds) + data)
        answer = await _received(self._socket, _HEAD.size)
        return await _received(self._socket, _HEAD.unpack(answer)[0])

    def _make_ready(self) -> None:
        """Make sure that a child lives: it may have been killed while it waited."""
        if self._socket is not None and os.waitid(os.P_PID, self._pid, _HAS_ENDED) is not None:
            self.close()
        if self._socket is None:
            self._fork()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        with ExitStack() as undo, theirs:
            undo.callback(ours.close)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _live(self._read, theirs, parent)
            undo.pop_all()
        ours.setblocking(False)
        self._pid, self._socket = pid, ours


async def _received(connection: socket.socket, size: int) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < size:
        part = await loop.sock_recv(connection, min(_MAX_READ, size - len(data)))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# ---- in the child ------------------------------------------------------------------------------


def _live(read: Read, connection: socket.socket, parent: int) -> NoReturn:
    """The child's whole life. No exception may leave it and reach its parent's code."""
    try:
        # What the tokenizer's library writes when it panics helps nobody.
        detach(parent, connection.fileno(), os.open(os.devnull, os.O_WRONLY))
        limit_memory(MEMORY_BYTES)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each text is one piece of work
        while True:
            size, seconds = _HEAD.unpack(_read_all(connection, _HEAD.size))
            # When this time is over, the kernel ends the process, whatever it is doing.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            answer = _encode_reading(read(_decode_req(_read_all(connection, size))))
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(_HEAD.pack(len(answer), 0.0) + answer)
    finally:
        os._exit(1)


def _read_all(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(_MAX_READ, size - len(data)))
        if not part:
            os._exit(0)  # the parent has closed
        data += part
    return bytes(data)
