"""The load generator's reader of event streams, against a server that answers with given bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.benchmark.event_stream import Dechunker, EventClient, StreamError

EVENTS = b'data: {"n": 1}\n\nevent: x\r\ndata: two\r\n\r\n: a comment\ndata: [DONE]\n\n'
PAYLOADS = [b'{"n": 1}', b"two", b"[DONE]"]
OK = b"HTTP/1.1 200 OK\r\n"


def chunked(pieces: list[bytes]) -> bytes:
    chunks = [b"%x;note\r\n" % len(piece) + piece + b"\r\n" for piece in pieces if piece]
    return b"".join(chunks) + b"0\r\nx-trailer: 1\r\n\r\n"


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server's URL, and the requests that it has read."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        asked.append(head + await reader.readexactly(size))
        for byte in answer:
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        await server.wait_closed()


async def read(url: str) -> list[bytes]:
    client = EventClient(url, {"authorization": "Bearer k"})
    try:
        async with aclosing(client.post("/v1/completions", b"{}")) as events:
            return [data async for data in events]
    finally:
        await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunked([EVENTS[:9], EVENTS[9:]]),
        OK + b"content-length: %d\r\n\r\n" % len(EVENTS) + EVENTS,
        OK + b"connection: close\r\n\r\n" + EVENTS,
    ],
)
async def test_bodies_of_each_kind(answer: bytes) -> None:
    async with answering(answer) as (url, asked):
        assert await read(url) == PAYLOADS
    head, body = asked[0].split(b"\r\n\r\n")
    assert body == b"{}" and head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer k" in head


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy", "HTTP 429: busy"),
        (b"nonsense\r\n\r\n", "no head"),
        (b"", "no head"),
        (OK + b"content-length: many\r\n\r\nda", "no head"),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nda", "ended inside"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", "not chunked"),
        (OK + b"content-length: 5\r\n\r\nda", "ended inside"),
    ],
)
async def test_answers_that_fail(answer: bytes, message: str) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(StreamError, match=message):
            await read(url)


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 200)))
def test_chunks_cut_anywhere(pieces: list[bytes], cuts: list[int]) -> None:
    wire, dechunker = chunked(pieces), Dechunker()
    places = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    spans = pairwise(places)
    body = b"".join(dechunker.feed(wire[start:stop]) for start, stop in spans)
    assert body == b"".join(pieces) and dechunker.has_ended


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (OK + b"transfer-encoding: chunked\r\n\r\n" + chunked([EVENTS]), 1),
        (OK + b"content-length: %d\r\n\r\n" % len(EVENTS) + EVENTS, 1),
        (OK + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(EVENTS) + EVENTS, 4),
    ],
)
async def test_connections_are_kept(answer: bytes, connections: int) -> None:
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        while await reader.read(1):
            await reader.readuntil(b"{}")
            writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = EventClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
        for _ in range(4):
            async with aclosing(client.post("/", b"{}")) as events:
                assert [data async for data in events] == PAYLOADS
        await client.close()
        await asyncio.gather(*(task for task in served if task))
    assert len(served) == connections


async def test_a_connection_that_the_server_has_closed() -> None:
    """As after its idle time: the next request goes over another."""
    async with answering(OK + b"content-length: %d\r\n\r\n" % len(EVENTS) + EVENTS) as (url, asked):
        client = EventClient(url, {})
        for _ in range(3):
            async with aclosing(client.post("/", b"{}")) as events:
                assert [data async for data in events] == PAYLOADS
        await client.close()
    assert len(asked) == 3
