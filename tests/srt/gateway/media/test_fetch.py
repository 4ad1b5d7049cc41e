"""Fetching: only public addresses, no second look-up, no redirects, bounds on size and time."""

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from srt.gateway.limits.large_bodies import LargeBodies
from srt.gateway.media import fetch as fetch_module
from srt.gateway.media.fetch import Connector, Fetcher, Resolver
from srt.gateway.media.urls import WebAddress, is_public
from srt.wire.errors import OVERLOADED, RequestError
from tests.waiting import SOON_S

PUBLIC = "8.8.8.8"
CAT = WebAddress("http", "pictures.test", 80, "/cat?size=1")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Internet:
    """A server on this machine that stands for the address PUBLIC; all else is out of reach."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.connected: list[tuple[str, int, str | None]] = []
        self.names: list[list[str]] = []  # what the next look-ups find
        self.looked_up: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        return self.names.pop(0) if self.names else [PUBLIC]

    async def connect(self, address: str, port: int, tls_host: str | None) -> Any:
        self.connected.append((address, port, tls_host))
        if address != PUBLIC:
            raise ConnectionRefusedError
        return await asyncio.open_connection("127.0.0.1", self._port)

    def fetcher(self, timeout_s: float = 5.0) -> Fetcher:
        return Fetcher(self.resolve, self.connect, timeout_s=timeout_s)


@asynccontextmanager
async def internet(answer: Answer) -> AsyncIterator[Internet]:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    async with server:
        yield Internet(server.sockets[0].getsockname()[1])


def says(*pieces: bytes) -> Answer:
    """Reads a request, and writes these."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return answer


async def fetched(net: Internet, address: WebAddress = CAT, **options: Any) -> bytes:
    held = LargeBodies(10**9, 10**9)
    with held.room("a") as room:
        return await net.fetcher(**options).fetch(address, "a", room)


async def test_a_file() -> None:
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat")

    async with internet(answer) as net:
        assert await fetched(net) == b"cat"
    assert net.connected == [(PUBLIC, 80, None)]
    lines = heads[0].split(b"\r\n")
    assert lines[0] == b"GET /cat?size=1 HTTP/1.1" and b"Host: pictures.test" in lines


@pytest.mark.parametrize(
    "answer",
    [
        says(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nca\r\n1\r\nt\r\n0\r\n\r\n"
        ),
        says(b"HTTP/1.0 200 OK\r\n\r\nc", b"at"),
        says(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat"),
    ],
)
async def test_other_framings(answer: Answer) -> None:
    async with internet(answer) as net:
        assert await fetched(net) == b"cat"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            says(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"),
            "a redirect, which is not followed",
        ),
        (says(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "status 404"),
        (
            says(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na"),
            "compressed",
        ),
        (says(b"HTTP/1.1 200 OK\r\nContent-Length: 20000001\r\n\r\n"), "more than 20000000 bytes"),
        (says(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), "could not be fetched"),
        (
            says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab"),
            "could not be fetched",
        ),
        (says(b"SSH-2.0-x\r\n"), "could not be fetched"),
        (says(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"), "could not be fetched"),
        (says(), "could not be fetched"),
    ],
)
async def test_what_is_no_file(answer: Answer, reason: str) -> None:
    async with internet(answer) as net:
        with pytest.raises(RequestError) as caught:
            await fetched(net)
    assert reason in caught.value.info.message and caught.value.info.param == ""
    assert len(net.connected) == 1


async def test_a_body_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off when it is too long, and takes room only up to there."""
    monkeypatch.setattr(fetch_module, "MAX_FILE_BYTES", 200_000)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"a" * 4096)
            await writer.drain()

    async with internet(answer) as net:
        with pytest.raises(RequestError, match="has more than 200000 bytes"):
            await fetched(net)


async def test_room_is_taken_as_it_comes() -> None:
    held = LargeBodies(100, 100, "pictures")
    answer = says(b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", b"a" * 101)
    async with internet(answer) as net:
        with pytest.raises(RequestError) as caught, held.room("a") as room:
            await net.fetcher().fetch(CAT, "a", room)
    assert caught.value.info.code == OVERLOADED
    with held.room("a") as room:
        room.take(100)  # all was given back


async def test_a_slow_body() -> None:
    """All of it has a bound: a body that trickles in does not move it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with internet(answer) as net:
        with pytest.raises(RequestError) as caught:
            await fetched(net, timeout_s=0.2)
    assert "could not be fetched within 0.2 s" in caught.value.info.message
    assert caught.value.info.retryable


async def test_addresses_that_are_not_public_are_not_connected_to() -> None:
    async with internet(says()) as net:
        net.names = [["127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254", "64:ff9b::7f00:1"]]
        with pytest.raises(RequestError, match="its host has no public address"):
            await fetched(net)
        net.names = [[]]
        with pytest.raises(RequestError, match="its host is not known"):
            await fetched(net)
    assert net.connected == []


async def test_a_name_that_changes_is_looked_up_once() -> None:
    """The address that was checked is the one that is connected to."""
    ok = says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat")
    async with internet(ok) as net:
        net.names = [["127.0.0.1", PUBLIC], ["127.0.0.1"], ["127.0.0.1"]]
        assert await fetched(net) == b"cat"
        assert (net.connected, net.looked_up) == ([(PUBLIC, 80, None)], ["pictures.test"])
        with pytest.raises(RequestError, match="no public address"):
            await fetched(net)


async def test_the_next_address_is_tried() -> None:
    ok = says(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ncat")
    async with internet(ok) as net:
        net.names = [
            ["8.8.4.4", PUBLIC],
            ["8.8.4.4"] * 2,
            ["1.1.1.1", "1.0.0.1", "9.9.9.9", PUBLIC],
        ]
        assert await fetched(net) == b"cat"
        for tried in (2, 3):
            net.connected.clear()
            with pytest.raises(RequestError, match="could not be fetched from its host"):
                await fetched(net)
            assert len(net.connected) == tried


async def test_tls_is_for_the_name_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    async def open_connection(*args: Any, **options: Any) -> Any:
        given.append((args, options))
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)

    async def look_up(host: str, port: int) -> list[str]:
        return [PUBLIC]

    fetcher = Fetcher(look_up, Connector())
    with pytest.raises(RequestError), LargeBodies().room("a") as room:
        await fetcher.fetch(WebAddress("https", "pictures.test", 443, "/"), "a", room)
    ((args, options),) = given
    assert (args, options["server_hostname"]) == ((PUBLIC, 443), "pictures.test")
    context = options["ssl"]
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname


async def test_the_system_resolver_finds_this_machine() -> None:
    found = await Resolver()("localhost", 80)
    assert found and not any(map(is_public, found))
    held = LargeBodies()
    with pytest.raises(RequestError, match="has no public address"), held.room("a") as room:
        await Fetcher().fetch(WebAddress("http", "localhost", 80, "/"), "a", room)


async def test_a_host_whose_look_ups_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread looks for all who want it, however many give up."""
    hold, calls = threading.Event(), list[str]()

    def look_up(host: str, port: int) -> list[str]:
        calls.append(host)
        hold.wait(SOON_S)
        return [PUBLIC]

    monkeypatch.setattr(fetch_module, "_look_up", look_up)
    resolver = Resolver()
    waiting = [asyncio.ensure_future(resolver("a", 80)) for _ in range(20)]
    await asyncio.sleep(0)
    for each in waiting[:10]:
        each.cancel()
    other = asyncio.ensure_future(resolver("b", 80))
    await asyncio.sleep(0)
    hold.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results[:10]] == [True] * 10
    assert results[10:] == [[PUBLIC]] * 10 and await other == [PUBLIC]
    assert sorted(calls) == ["a", "b"]
    assert await resolver("a", 80) == [PUBLIC] and len(calls) == 3


async def test_small_chunks_leave_turns_to_others() -> None:
    """A host that sends chunks of one byte costs them no more than a read."""
    chunks = b"1\r\na\r\n" * 20_000
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader = asyncio.StreamReader(limit=2**20)
    reader.feed_data(head + chunks + b"0\r\n\r\n")

    class Writer:
        transport = SimpleNamespace(abort=lambda: None)

        def write(self, data: bytes) -> None:
            pass

    async def connect(address: str, port: int, tls_host: str | None) -> Any:
        return reader, Writer()

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def look_up(host: str, port: int) -> list[str]:
        return [PUBLIC]

    other = asyncio.ensure_future(count())
    with LargeBodies().room("a") as room:
        assert await Fetcher(look_up, connect).fetch(CAT, "a", room) == b"a" * 20_000
    other.cancel()
    assert turns >= len(chunks) // fetch_module._READ_BYTES


class Slow:
    """A host that answers only when it is told to; `running` are those who wait, by tenant."""

    def __init__(self) -> None:
        self.running = Counter[str]()
        self.go_on = asyncio.Event()
        self.fetcher = Fetcher(self._look_up)
        self._room = LargeBodies().room("a")

    async def _look_up(self, host: str, port: int) -> list[str]:
        self.running[host] += 1
        try:
            await self.go_on.wait()
        finally:
            self.running[host] -= 1
        return []

    async def fetch(self, tenant: str, count: int = 1) -> list[asyncio.Task[bytes]]:
        """So many fetches of a tenant, once they run or wait."""
        address = WebAddress("http", tenant, 80, "/")
        fetches = [self.fetcher.fetch(address, tenant, self._room) for _ in range(count)]
        tasks = [asyncio.ensure_future(each) for each in fetches]
        await turns()
        return tasks


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_no_tenants_keep_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by their running fetches nor by those that wait."""
    monkeypatch.setattr(fetch_module, "MAX_FETCHES", 8)
    monkeypatch.setattr(fetch_module, "MAX_WAITING", 16)
    monkeypatch.setattr(fetch_module, "MAX_CALLER_WAITING", 6)
    slow = Slow()
    tasks = await slow.fetch("a", 10)
    assert slow.running == {"a": 4}
    with pytest.raises(RequestError) as caught:
        await (await slow.fetch("a"))[0]
    assert caught.value.info.code == OVERLOADED
    for tenant in ("b", "c"):
        tasks += await slow.fetch(tenant, 3)
    assert slow.running == {"a": 4, "b": 2, "c": 1}
    (late,) = await slow.fetch("d")
    assert slow.running["d"] == 1
    tasks[0].cancel()
    tasks[1].cancel()
    await turns()
    assert slow.running == {"a": 2, "b": 2, "c": 2, "d": 1}
    slow.go_on.set()
    for task in (*tasks[2:], late):
        with pytest.raises(RequestError, match="host is not known"):
            await task


async def test_the_newest_that_waits_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "MAX_FETCHES", 8)
    monkeypatch.setattr(fetch_module, "MAX_WAITING", 12)
    monkeypatch.setattr(fetch_module, "MAX_CALLER_WAITING", 6)
    slow = Slow()
    of_a, of_b = await slow.fetch("a", 10), await slow.fetch("b", 8)  # all that may wait, wait
    late = await slow.fetch("c", 4)
    assert slow.running == {"a": 4, "b": 2, "c": 1}
    refused = [task for task in (*of_a, *of_b, *late) if task.done()]
    assert set(refused) == {of_a[9], of_b[7], of_a[8]}
    for task in refused:
        with pytest.raises(RequestError) as caught:
            await task
        assert caught.value.info.code == OVERLOADED
    slow.go_on.set()
    await asyncio.wait([*of_a, *of_b, *late])
    with pytest.raises(RequestError, match="host is not known"):
        await late[3]


async def test_cancelled_fetches_keep_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they run, wait, or have just been given a place."""
    monkeypatch.setattr(fetch_module, "MAX_FETCHES", 2)
    slow = Slow()
    running, first, second, third = await slow.fetch("a", 4)
    second.cancel()
    running.cancel()
    await asyncio.sleep(0)  # the place is now the first one's, which does not know it yet
    first.cancel()
    await turns()
    assert slow.running == {"a": 1} and not third.done()
    third.cancel()
    await asyncio.wait([running, first, second, third])
    assert slow.running.total() == slow.fetcher._waiting.total == 0
    await slow.fetch("b")
    assert slow.running["b"] == 1
    slow.go_on.set()
