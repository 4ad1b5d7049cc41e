"""A POST whose answer is read as server-sent events, at little cost in CPU time.

The load generator shares the cores of the server that it measures, so what it takes per event is
taken from the server; a general HTTP client takes several times as much. This one speaks HTTP/1.1,
keeps connections for later requests, and reads bodies in chunks, with a length, or up to the
connection's end.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from srt.event_data import EventReader

CONNECT_TIMEOUT_S = 10.0
READ_BYTES = 65536


class StreamError(Exception):
    """The answer is not a success, or cannot be read; the message says what it is."""


class _NoAnswer(StreamError):
    """The connection ended before anything came."""


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class EventClient:
    """Connections to the server of `url`. Those whose answer has been read to its end are kept for
    the next request; `close` them."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._parts, self._headers = urlsplit(url), headers
        self._idle: list[_Connection] = []

    async def close(self) -> None:
        """Close the connections that are idle."""
        while self._idle:
            writer = self._idle.pop().writer
            writer.close()
            with suppress(OSError):  # of one that was lost before
                await writer.wait_closed()

    async def post(self, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        """Send `body`, which is JSON, to a path below the url's; give the payload of each `data:`
        line, `[DONE]` included.

        Raises StreamError, OSError, and TimeoutError if no connection can be made.
        """
        connection, status, fields = await self._ask(self._head(path, len(body)) + body)
        can_be_kept = False
        try:
            pieces = _body(connection.reader, fields)
            if status != 200:
                text = b"".join([piece async for piece in pieces]).decode(errors="replace")
                can_be_kept = _is_delimited(fields)
                raise StreamError(f"HTTP {status}: {text[:300]}")
            reader = EventReader()
            async for piece in pieces:
                for data in reader.feed(piece):
                    yield data
            can_be_kept = _is_delimited(fields)
        finally:
            if can_be_kept:
                self._idle.append(connection)
            else:
                connection.writer.close()

    async def _ask(self, request: bytes) -> tuple[_Connection, int, dict[str, str]]:
        """Send a request; the connection, and the head of the answer that comes on it."""
        while self._idle:  # the server may have closed some of them
            connection = self._idle.pop()
            with suppress(_NoAnswer, ConnectionError):
                return connection, *await _exchange(connection, request)
        connection = await self._connect()
        return connection, *await _exchange(connection, request)

    async def _connect(self) -> _Connection:
        is_secure = self._parts.scheme == "https"
        port = self._parts.port or (443 if is_secure else 80)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            return _Connection(
                *await asyncio.open_connection(
                    self._parts.hostname, port, ssl=is_secure or None, limit=READ_BYTES
                )
            )

    def _head(self, path: str, length: int) -> bytes:
        fields = {
            "host": self._parts.netloc,
            "accept": "text/event-stream",
            "content-type": "application/json",
            "content-length": str(length),
            **self._headers,
        }
        start = f"POST {self._parts.path}{path} HTTP/1.1"
        lines = [start, *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _exchange(connection: _Connection, request: bytes) -> tuple[int, dict[str, str]]:
    """Send a request and read the answer's head; the connection is closed if that fails."""
    try:
        connection.writer.write(request)
        return await _read_head(connection.reader)
    except BaseException:
        connection.writer.close()
        raise


def _is_delimited(fields: Mapping[str, str]) -> bool:
    """Whether another answer may follow on the connection."""
    has_end = "content-length" in fields or "transfer-encoding" in fields
    return has_end and fields.get("connection", "").lower() != "close"


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """The status, and the fields by their names in lower case."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.rstrip("\r\n").split("\r\n")
        split = (line.split(":", 1) for line in lines)
        fields = {name.strip().lower(): value.strip() for name, value in split}
        status = int(start.split(" ")[1])
        int(fields.get("content-length", "0"))  # raises if it is not a number
    except asyncio.IncompleteReadError as error:
        kind = StreamError if error.partial else _NoAnswer
        raise kind("the answer has no head that can be read") from None
    except (asyncio.LimitOverrunError, ValueError, IndexError):
        raise StreamError("the answer has no head that can be read") from None
    return status, fields


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body, piece by piece as it arrives."""
    if fields.get("transfer-encoding", "").lower() == "chunked":
        dechunker = Dechunker()
        while not dechunker.has_ended:
            data = await reader.read(READ_BYTES)
            if not data and not dechunker.is_whole:
                raise StreamError("the connection ended inside the answer")
            if not data:
                return
            yield dechunker.feed(data)
        return
    left = int(fields["content-length"]) if "content-length" in fields else None
    while left is None or left > 0:
        data = await reader.read(READ_BYTES)
        if not data and left is None:
            return
        if not data:
            raise StreamError("the connection ended inside the answer")
        left = None if left is None else left - len(data)
        yield data


class Dechunker:
    """Takes the chunks off a body, which `is_whole` after the last one. The empty line behind that
    and behind trailers, if any, sets `has_ended`."""

    def __init__(self) -> None:
        self.is_whole = self.has_ended = False
        self._rest = b""  # of the framing, which has not arrived completely
        self._left = 0  # bytes to come of the chunk and of the line end after it

    def feed(self, data: bytes) -> bytes:
        """The part of the body in `data`. Raises StreamError if it is not chunked."""
        data, at, parts = self._rest + data, 0, []
        self._rest = b""
        while at < len(data) and not self.has_ended:
            if self._left > 0:
                end = at + self._left
                parts.append(data[at : max(at, min(end - 2, len(data)))])
                self._left = max(0, end - len(data))
                at = min(end, len(data))
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._rest = data[at:]
                break
            line, at = data[at:line_end], line_end + 2
            if self.is_whole:
                self.has_ended = not line
                continue
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise StreamError("the answer is not chunked as it says") from None
            self.is_whole = size == 0
            self._left = size + 2 if size else 0
        return b"".join(parts)
