"""The bytes of streamed answers on a connection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from srt.gateway.http.server import GatewayServer
from tests.srt.gateway.setup import listener
from tests.waiting import SOON_S

PIECES = (b"a", b"", b"\r\n0\r\n\r\n", b"x" * 70_000, b"end")
LARGE = bytes(1 << 20)


async def app(scope: Scope, _: Receive, send: Send) -> None:
    """PIECES, or what the path asks for."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in [LARGE] * 64 if scope["path"] == "/large" else PIECES:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if scope["path"] == "/fails":
        raise ValueError("in the middle")
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def asked(head: str) -> AsyncIterator[tuple[GatewayServer, asyncio.StreamReader]]:
    server = GatewayServer(app, listener())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    try:
        writer.write(head.replace("\n", "\r\n").encode())
        yield server, reader
    finally:
        writer.close()
        await server.stop()


def framed(pieces: tuple[bytes, ...]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)


CHUNKS, END = framed(PIECES), b"0\r\n\r\n"
CLOSE = "host: x\nconnection: close\n\n"


@pytest.mark.parametrize(
    ("head", "bodies"),
    [
        (f"GET / HTTP/1.1\n{CLOSE}", [CHUNKS + END]),
        (f"GET / HTTP/1.1\nhost: x\n\nGET / HTTP/1.1\n{CLOSE}", [CHUNKS + END] * 2),
        (f"HEAD / HTTP/1.1\nhost: x\n\nGET / HTTP/1.1\n{CLOSE}", [b"", CHUNKS + END]),
        ("GET / HTTP/1.0\n\n", [b"".join(PIECES)]),
        ("GET /fails HTTP/1.1\nhost: x\n\n", [CHUNKS]),
    ],
)
async def test_the_bytes_of_a_stream(head: str, bodies: list[bytes]) -> None:
    async with asked(head) as (_, reader), asyncio.timeout(SOON_S):
        data = await reader.read()
    answers = data.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [answer.partition(b"\r\n\r\n")[2] for answer in answers] == bodies


async def test_a_slow_reader_holds_the_stream_and_gets_all_of_it() -> None:
    async with asked(f"GET /large HTTP/1.1\n{CLOSE}") as (server, reader):
        async with asyncio.timeout(SOON_S):
            await reader.readexactly(1000)
            await asyncio.sleep(0.1)
            (connection,) = server.connections
            assert connection.transport.get_write_buffer_size() < 2 * len(LARGE)
            data = await reader.read()
    assert data.endswith(END) and len(data) > 64 * len(LARGE) - 1000
