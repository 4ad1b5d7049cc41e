"""The gateway on a real socket: health, errors of the framework, disconnects, shutdown."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from srt.client.generation import Request
from srt.gateway.app import app_of, gateway_over
from srt.gateway.http import body as body_module
from srt.gateway.http import places, unread
from srt.gateway.http import server as server_module
from srt.gateway.http.server import BoundedProtocol, GatewayServer
from srt.gateway.limits.large_bodies import LargeBodies
from srt.gateway.ops import health as health_module
from srt.wire.errors import BAD_REQUEST, CONFLICT, OVERLOADED, RequestError
from srt.wire.ring_state import RingEvent
from tests.fakes import READY, FakeClient
from tests.srt.gateway.setup import INFO, VOCAB, error_of, in_process, listener, served
from tests.waiting import SOON_S

ROUTES = [
    ("/generate", {"text": "a"}),
    ("/generate", {"text": ["a", "b"]}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
]


async def send_raw(server: GatewayServer, path: str, body: Any) -> asyncio.StreamWriter:
    """Post `body` and return the connection without reading from it."""
    data = json.dumps(body).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_disconnect_aborts_at_once(path: str, body: dict[str, Any], stream: bool) -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client) as server:
        before = asyncio.all_tasks()
        writer = await send_raw(server, path, body | {"stream": stream})
        await client.wait_submitted(2 if "text" in body and len(body["text"]) == 2 else 1)
        assert client.aborted == []
        writer.close()
        await client.wait_aborted(len(client.generations))
        left = asyncio.all_tasks() - before
        async with asyncio.timeout(SOON_S):
            await asyncio.gather(*left, return_exceptions=True)
    assert all(g.closed for g in client.generations)


async def test_streams_arrive_piece_by_piece() -> None:
    client = FakeClient(("a", "b"))
    client.hold.clear()
    async with (
        served(client) as server,
        httpx2.AsyncClient(base_url=server.url) as http,
        http.stream("POST", "/generate", json={"text": "p", "stream": True}) as reply,
    ):
        lines = reply.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        assert (first["text"], first["meta_info"]["finish_reason"]) == ("a", None)
        client.hold.set()
        rest = [line async for line in lines if line]
    assert json.loads(rest[0].removeprefix("data: "))["text"] == "ab"
    assert rest[-1] == "data: [DONE]"
    assert client.aborted == []


async def test_shutdown_cuts_streams_after_their_grace() -> None:
    client = FakeClient()
    client.hold.clear()
    server = GatewayServer(
        app_of(gateway_over(client, INFO, VOCAB)), listener(), stream_grace_s=0.2
    )
    await server.start()
    writer = await send_raw(server, "/generate", {"text": "a", "stream": True})
    await client.wait_submitted(1)
    whole = asyncio.ensure_future(
        httpx2.AsyncClient().post(f"{server.url}/generate", json={"text": "a"})
    )
    await client.wait_submitted(2)
    async with asyncio.timeout(SOON_S):
        await server.stop()
        await server.stop()
        cut = await whole
    assert (cut.status_code, error_of(cut)["retryable"]) == (503, True)
    assert "has stopped" in error_of(cut)["message"] and cut.headers["retry-after"] == "1"
    await client.wait_aborted(2)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()


async def test_abort_request_ends_a_live_request() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client) as server, httpx2.AsyncClient(base_url=server.url) as http:
        waiting = asyncio.ensure_future(http.post("/generate", json={"text": "a", "rid": "a1"}))
        await client.wait_submitted(1)
        prefix = await http.post("/abort_request", json={"rid": "a"})
        exact = await http.post("/abort_request", json={"rid": "a1"})
        everything = await http.post("/abort_request", json={"abort_all": True})
        client.hold.set()
        await waiting
        after = await http.post("/abort_request", json={"abort_all": True})
    assert prefix.json() == {"aborted": []}
    assert exact.json() == everything.json() == {"aborted": ["a1"]}
    assert after.json() == {"aborted": []}


async def test_abort_finds_samples_and_batches_by_the_name_they_were_given() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client) as server, httpx2.AsyncClient(base_url=server.url) as http:

        async def aborted(**body: Any) -> list[str]:
            answer = await http.post("/abort_request", json=body)
            return list(answer.json()["aborted"])

        bodies: list[dict[str, Any]] = [
            {"text": "a", "rid": "one", "sampling_params": {"n": 2}},
            {"text": ["a", "b"], "rid": "two"},
            {"text": ["a", "b"], "rid": ["x1", "x2"], "sampling_params": {"n": 2}},
        ]
        waiting = [asyncio.ensure_future(http.post("/generate", json=body)) for body in bodies]
        await client.wait_submitted(8)
        assert await aborted(rid="one") == ["one/0", "one/1"]
        assert await aborted(rid="one/1") == ["one/1"]
        assert await aborted(rid="two") == ["two_0", "two_1"]
        assert await aborted(rid="x1") == ["x1/0", "x1/1"]
        assert await aborted(rid="t") == await aborted(rid="x") == []
        assert await aborted(rid="x", prefix=True) == ["x1/0", "x1/1", "x2/0", "x2/1"]
        assert len(await aborted(abort_all=True)) == 8
        client.hold.set()
        await asyncio.gather(*waiting)
        for name in ("one", "one/0", "two", "x1"):
            assert await aborted(rid=name) == []


class Parking(FakeClient):
    """A client whose requests wait for their admission until they are aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.parked: dict[str, asyncio.Future[None]] = {}

    async def submit_samples(self, request: Request) -> Any:
        rid = request.rid or "no rid"
        self.parked[rid] = asyncio.get_running_loop().create_future()
        self.changed.set()
        await self.parked[rid]

    async def abort(self, rid: str, tenant: str = "") -> None:
        self.parked[rid].set_exception(RequestError("the request was aborted", code=CONFLICT))


@pytest.mark.parametrize(
    ("body", "abort", "rids"),
    [
        ({"text": "a", "rid": "x"}, {"rid": "x"}, ["x"]),
        ({"text": "a", "rid": "x", "sampling_params": {"n": 2}}, {"rid": "x"}, ["x"]),
        ({"text": ["a", "b"], "rid": "x"}, {"rid": "x"}, ["x_0", "x_1"]),
        ({"text": "a", "sampling_params": {"regex": "b"}}, {"abort_all": True}, None),
    ],
)
async def test_abort_finds_what_waits_for_admission(
    body: dict[str, Any], abort: dict[str, Any], rids: list[str] | None
) -> None:
    client = Parking()
    client.parked["x_1"] = asyncio.get_running_loop().create_future()  # comes after x_0
    async with served(client) as server, httpx2.AsyncClient(base_url=server.url) as http:
        waiting = asyncio.ensure_future(http.post("/generate", json=body))
        async with asyncio.timeout(SOON_S):
            await client.changed.wait()
        aborted = (await http.post("/abort_request", json=abort)).json()["aborted"]
        response = await waiting
        assert (await http.post("/abort_request", json=abort)).json() == {"aborted": []}
    assert aborted == rids if rids else len(aborted) == 1
    assert (response.status_code, error_of(response)["code"]) == (409, "conflict")


class ParkingFirst(Parking):
    """A client that admits all requests at once except the one with the rid "p0"."""

    async def submit_samples(self, request: Request) -> Any:
        if request.rid == "p0":
            with suppress(RequestError):
                await super().submit_samples(request)
        return await FakeClient.submit_samples(self, request)


async def test_another_request_takes_the_rid_of_one_that_is_still_to_come() -> None:
    """The other request is admitted and ends first; then the whole batch is still admitted."""
    client = ParkingFirst()
    async with in_process(client) as http:
        body = {"text": ["a", "b"], "rid": ["p0", "p1"]}
        waiting = asyncio.ensure_future(http.post("/generate", json=body))
        async with asyncio.timeout(SOON_S):
            await client.changed.wait()
        other = await http.post("/generate", json={"text": "c", "rid": "p1"})
        await client.abort("p0")
        answers = (await waiting).json()
        after = await http.post("/abort_request", json={"abort_all": True})
    assert other.status_code == 200
    assert [answer["meta_info"]["id"] for answer in answers] == ["p0", "p1"]
    assert after.json() == {"aborted": []}
    assert all(generation.closed for generation in client.generations)


async def test_a_connection_without_a_head_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_timeout_s", 0.1)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost")
        async with asyncio.timeout(SOON_S):
            assert await reader.read() == b""
        writer.close()
        async with httpx2.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/health")).status_code == 200
            await asyncio.sleep(0.2)
            assert (await http.get("/health")).status_code == 200


async def test_a_slow_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "PACE_S", 0.1)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        async with asyncio.timeout(SOON_S):
            status = await reader.readline()
        writer.close()
    assert status.startswith(b"HTTP/1.1 408")


async def test_a_body_that_keeps_its_pace_has_more_time() -> None:
    """Each time that it has brought what it is asked for, and not for less than that."""
    pieces = [b"a" * size for size in (2000, 999, 1, 2999, 1, 10_000, 2999)]
    put_off: list[int] = []

    async def receive() -> dict[str, Any]:
        body = pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    request: Any = SimpleNamespace(headers={}, receive=receive)
    limit: Any = SimpleNamespace(reschedule=lambda when: put_off.append(len(pieces)))
    assert body_module.PACE_S == 60.0
    with LargeBodies().room("a") as room:
        read = await body_module._pieces(request, room, 100_000, 50, limit)
    assert len(read) == 18_999 and put_off == [4, 2, 1]


async def test_connections_above_the_bound_get_a_503() -> None:
    """Also when they send a body; the others continue, and when one closes there is room again."""
    client = FakeClient()
    client.hold.clear()
    async with served(client, max_connections=2) as server:
        first = await send_raw(server, "/generate", {"text": "a", "stream": True})
        second = await send_raw(server, "/generate", {"text": "b"})
        await client.wait_submitted(2)
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(base_url=server.url, limits=limits) as http:
            refused = await http.post("/generate", json={"text": "c" * 50_000})
            large = await http.post("/generate", json={"text": "c" * 200_000})
            first.close()
            await client.wait_aborted(1)
            taken = await http.get("/health")
        second.close()
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    error = error_of(refused)
    assert error["code"] == "unavailable" and error["retryable"] is True
    assert (large.status_code, taken.status_code) == (503, 200)
    assert len(client.requests) == 2


@pytest.mark.parametrize(
    ("path", "status"), [("/generate", 413), ("/nothing", 404), ("/metrics", 401)]
)
async def test_an_early_answer_is_not_lost_to_a_reset(path: str, status: int) -> None:
    """The body is larger than the sockets' buffers, and the answer comes before it was read."""
    size = body_module.MAX_BODY_BYTES + 1
    keys = ("k",) if status == 401 else ()
    async with served(FakeClient(), api_keys=keys) as server:
        for how in ({}, {"transfer-encoding": "chunked"}):
            headers = {"connection": "close", **how}

            async def body() -> AsyncIterator[bytes]:
                for _ in range(size // 2**16 + 1):
                    yield b" " * 2**16

            method = "GET" if path == "/metrics" else "POST"
            content = body() if how else b" " * size
            async with httpx2.AsyncClient(base_url=server.url) as http:
                response = await http.request(method, path, content=content, headers=headers)
            assert response.status_code == status
            error_of(response)


@pytest.mark.parametrize(("name", "value"), [("MAX_UNREAD_BYTES", 10), ("UNREAD_TIMEOUT_S", 0.1)])
async def test_an_early_answer_waits_for_no_endless_body(
    name: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, name, value)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: 1000\r\n\r\n" + b" " * 20
        )
        async with asyncio.timeout(SOON_S):
            answer = await reader.readuntil(b"}}")
        writer.close()
    assert answer.startswith(b"HTTP/1.1 404")


async def test_a_peer_that_waits_to_send_is_answered_at_once() -> None:
    """With `Expect: 100-continue`, the server does not wait for a body."""
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Connection: close\r\nContent-Length: 100\r\n\r\n"
        )
        async with asyncio.timeout(SOON_S):
            answer = await reader.readuntil(b"}}")
        writer.close()
    assert answer.startswith(b"HTTP/1.1 404")


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
REPLICAS = {"scheduler.0": "ready", "scheduler.1": "ready"}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


async def ask(peer: Peer, data: bytes) -> bytes:
    """The first line of the answer to `data`; all of the answer is read."""
    async with asyncio.timeout(SOON_S):
        peer[1].write(data)
        head = await peer[0].readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        await peer[0].readexactly(int(length.split()[1]))
        return head.split(b"\r\n")[0]


async def test_when_all_places_are_taken_the_longest_idle_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection counts as idle since its last request; one whose first body comes slowly, since
    it was opened."""
    monkeypatch.setattr(places, "MIN_IDLE_S", 0.0)
    async with served(FakeClient(), max_connections=3) as server:
        peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        used, trickling, silent = peers
        assert (await ask(used, HEALTH)).endswith(b" 200 OK")
        trickling[1].write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        for count in range(3):
            fresh = await asyncio.open_connection("127.0.0.1", server.port)
            assert (await ask(fresh, HEALTH)).endswith(b" 200 OK")
            peers.append(fresh)
            trickling[1].write(b" ")
            async with asyncio.timeout(SOON_S):
                while sum(reader.at_eof() for reader, _ in peers) <= count:
                    await asyncio.sleep(0.01)
            closed = [peer for peer in (trickling, silent, used) if peer[0].at_eof()]
            assert closed == [trickling, silent, used][: count + 1]
        for _, writer in peers:
            writer.close()


@pytest.mark.parametrize("header", ["", "Connection: close\r\n"])
async def test_a_peer_that_takes_no_answer_makes_room(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "MIN_IDLE_S", 0.0)
    monkeypatch.setattr(server_module, "CLOSE_S", 0.1)
    client = FakeClient(("x" * 6_000_000,))
    async with served(client, max_connections=1) as server:
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 13\r\n\r\n"
        sock.sendall(head.encode() + b'{"text": "a"}')
        await client.wait_submitted(1)
        (held,) = server.connections
        async with httpx2.AsyncClient(base_url=server.url) as http, asyncio.timeout(SOON_S):
            while (await http.post("/tokenize", json={"prompt": "a"})).status_code != 200:
                await asyncio.sleep(0.01)  # the answer is still being written
            while held in server.connections:
                await asyncio.sleep(0.01)
        sock.close()


async def test_probes_have_places_when_all_others_are_at_work() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client, max_connections=2) as server:
        writers = [await send_raw(server, "/generate", {"text": "a"}) for _ in range(2)]
        await client.wait_submitted(2)
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(base_url=server.url, limits=limits) as http:
            for path in ("/health", "/ready", "/metrics"):
                assert (await http.get(path)).status_code == 200
            refused = await http.get("/v1/models")
        for writer in writers:
            writer.close()
    assert refused.status_code == 503 and "connections" in error_of(refused)["message"]


async def test_a_flood_of_idle_connections_shuts_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "PROBE_PLACES", 4)
    async with served(FakeClient(), max_connections=8) as server:
        flood = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(base_url=server.url, limits=limits) as http:
            assert (await http.get("/health")).status_code == 200
            await asyncio.sleep(2 * places.MIN_IDLE_S)
            answer = await http.post("/generate", json={"text": "a"})
        assert len(server.connections) <= 8 + 4
        for _, writer in flood:
            writer.close()
    assert answer.status_code == 200


async def test_a_place_above_the_bound_is_for_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REFUSED_TIMEOUT_S", 0.2)
    async with served(FakeClient(), max_connections=1) as server:
        peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        async with asyncio.timeout(SOON_S):
            assert await peers[1][0].read() == b""  # it sent no head in time
        assert (await ask(peers[0], HEALTH)).startswith(b"HTTP/1.1 200")
        for _, writer in peers:
            writer.close()


async def test_a_body_in_small_chunks_arrives_whole() -> None:
    """It is parsed slice by slice, beside others."""
    client = FakeClient()
    body = json.dumps({"text": "a" * 50_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(client) as server:
        peer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await ask(peer, head + chunks + HEALTH)).startswith(b"HTTP/1.1 200")
        peer[1].close()
    assert client.requests[0].text == "a" * 50_000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_peer_that_does_not_read_is_dropped(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is written than the sockets can hold; the request ends with the connection."""
    monkeypatch.setattr(BoundedProtocol, "write_stall_s", 0.2)
    client = FakeClient(("x" * 3_000_000,) * 6)
    if stream:
        client.hold.clear()
    async with served(client) as server:
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"text": "a", "stream": stream}).encode()
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        if stream:
            await client.wait_aborted(1)
        async with asyncio.timeout(SOON_S):
            while server.connections:
                await asyncio.sleep(0.01)
        sock.close()
        async with httpx2.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/health")).status_code == 200
    assert all(g.closed for g in client.generations)


async def test_a_slow_peer_that_reads_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "write_stall_s", 0.5)
    client = FakeClient(("x" * 1_000_000,) * 8)
    async with served(client) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = b'{"text": "a"}'
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
        writer.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        data = bytearray()
        while piece := await reader.read(400_000):
            data += piece
            await asyncio.sleep(0.05)
        writer.close()
    assert data.count(b"x") >= 8_000_000 and data.endswith(b"}")


async def test_what_is_no_http_gets_the_same_error_body() -> None:
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"NONSENSE\r\n\r\n")
        async with asyncio.timeout(SOON_S):
            answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request")
    assert json.loads(body)["error"]["code"] == "bad_request"


async def test_a_connection_is_used_again() -> None:
    client = FakeClient()
    async with served(client) as server, httpx2.AsyncClient(base_url=server.url) as http:
        for _ in range(20):
            assert (await http.post("/generate", json={"text": "a"})).status_code == 200
            assert (await http.get("/nothing")).status_code == 404
        assert len(server.connections) == 1


# ---- pages of other origins ----------------------------------------------------------------------

PREFLIGHT = {
    "origin": "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.mark.parametrize("origins", [("https://app.example",), ("https://b.example", "*")])
async def test_pages_of_allowed_origins_may_call(origins: tuple[str, ...]) -> None:
    """A preflight has no key, and needs none; errors can be read too."""
    info: dict[str, Any] = {"api_keys": ("k",), "cors_origins": origins}
    origin = {"origin": "https://app.example"}
    async with in_process(FakeClient(), **info) as http:
        preflight = await http.options("/generate", headers=PREFLIGHT)
        key = {"authorization": "Bearer k"}
        answer = await http.post("/generate", json={"text": "a"}, headers=origin | key)
        refused = await http.post("/generate", json={"text": "a"}, headers=origin)
    assert preflight.is_success
    allowed = preflight.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed and "content-type" in allowed
    assert (answer.status_code, refused.status_code) == (200, 401)
    for response in (preflight, answer, refused):
        assert response.headers["access-control-allow-origin"] in ("https://app.example", "*")


async def test_other_origins_are_not_allowed() -> None:
    client = FakeClient()
    other = {"origin": "https://app.example.evil"}
    async with in_process(client, cors_origins=("https://app.example",)) as http:
        preflight = await http.options("/generate", headers=PREFLIGHT | other)
        answer = await http.get("/health", headers=other)
    async with in_process(client) as http:
        off = await http.options("/generate", headers=PREFLIGHT)
        plain = await http.get("/health", headers=PREFLIGHT)
    assert preflight.status_code == off.status_code == 403
    for response in (preflight, answer, off, plain):
        assert "access-control-allow-origin" not in response.headers


# ---- health of the model, profiles ---------------------------------------------------------------


async def test_health_generate_asks_for_one_token() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.get("/health_generate")
    body = response.json()
    assert (response.status_code, body["status"], body["evidence"]) == (200, "ok", "token")
    (request,) = client.requests
    assert request.sampling.max_new_tokens == 1 and request.sampling.ignore_eos
    assert request.text and request.input_ids is None  # a text has to be read
    assert client.generations[0].closed and client.aborted == []


async def test_health_generate_of_a_model_whose_tokenizer_makes_nothing_of_letters() -> None:
    client = FakeClient()
    client.refusals[0] = RequestError("text must hold at least one token", code=BAD_REQUEST)
    async with in_process(client) as http:
        response = await http.get("/health_generate")
    assert (response.status_code, response.json()["evidence"]) == (200, "token")
    assert [request.input_ids for request in client.requests] == [None, [0]]


class Stepping(FakeClient):
    """A scheduler that makes steps; or, with `steps` 0, none."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.asked = 0

    async def stats(self) -> dict[str, Any]:
        self.asked += 1
        return {"forward_steps_total": self.asked * self.steps, "token_usage": self.asked}


@pytest.mark.parametrize(("steps", "status"), [(1, 200), (0, 503)])
@pytest.mark.parametrize("reason", ["overloaded", "slow"])
async def test_health_generate_under_load(
    reason: str, steps: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model makes steps, it is healthy, even if the queue is full or a token is slow."""
    monkeypatch.setattr(health_module, "GENERATE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(health_module, "OVERLOAD_WATCH_S", 0.01)
    client = Stepping(steps)
    if reason == "overloaded":
        client.refusals[0] = RequestError("queue full", code=OVERLOADED, retryable=True)
    else:
        client.hold.clear()
    async with in_process(client) as http:
        response = await http.get("/health_generate")
    assert response.status_code == status
    assert all(g.closed for g in client.generations)
    if status == 503:
        assert error_of(response)["code"] == "unavailable" and "retry-after" in response.headers


@pytest.mark.parametrize("code", ["unavailable", "internal", "bad_request"])
async def test_health_generate_is_503_when_the_request_fails(code: str) -> None:
    client = FakeClient()
    client.error = RequestError("it failed", code=code)
    async with in_process(client) as http:
        response = await http.get("/health_generate")
    assert response.status_code == 503 and error_of(response)["message"] == "it failed"


async def test_a_profile_tells_what_the_counters_gained() -> None:
    client = Stepping(5)
    async with in_process(client) as http:
        assert (await http.get("/stop_profile")).status_code == 409
        assert (await http.get("/start_profile")).json() == {"started": True}
        profile = (await http.post("/stop_profile")).json()
        assert (await http.get("/stop_profile")).status_code == 409
        await http.get("/start_profile")
        client.steps = -1
        restarted = await http.get("/stop_profile")
        client.statistics = RequestError("no")
    assert profile.pop("seconds") >= 0
    assert profile == {"gained": {"forward_steps_total": 5}}
    assert (restarted.status_code, error_of(restarted)["code"]) == (409, "conflict")


async def test_no_profile_without_the_scheduler() -> None:
    client = FakeClient()
    client.statistics = RequestError("no")
    async with in_process(client) as http:
        assert (await http.get("/start_profile")).status_code == 503


async def test_a_given_socket() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = GatewayServer(app_of(gateway_over(FakeClient(), INFO, VOCAB)), sock)
    await server.start()
    assert server.port == port
    await server.stop()


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "valid JSON"),
        (b'{"text": ', "valid JSON"),
        (b'{"text": "\xff"}', "valid JSON"),
        (b'{"text": "\\ud800"}', "valid JSON"),
        (b'{"text": NaN}', "valid JSON"),
        (b"[" * 10_000, "nested"),
        (b"[]", "expected object"),
        (b"5", "expected object"),
    ],
)
async def test_bodies_that_are_no_object(data: bytes, part: str) -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/generate", content=data)
    assert response.status_code == 400
    assert part in error_of(response)["message"]


async def test_errors_of_the_framework_have_the_same_shape() -> None:
    async with in_process(FakeClient()) as http:
        missing = await http.get("/nothing")
        method = await http.get("/generate")
        large = await http.post("/generate", content=b" " * (body_module.MAX_BODY_BYTES + 1))
    assert (missing.status_code, error_of(missing)["code"]) == (404, "not_found")
    assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed")
    assert (large.status_code, error_of(large)["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "defect", [ValueError("secret"), RequestError("secret path", code="internal")]
)
async def test_a_defect_tells_an_id_and_logs_the_rest(
    defect: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeClient()
    client.refusals[0] = defect
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a"})
    error = error_of(response)
    assert response.status_code == 500
    assert error["type"] == "server_error" and "secret" not in response.text
    assert error["request_id"] in error["message"]
    assert error["request_id"] in caplog.text and "secret" in caplog.text


async def test_keys_guard_all_but_health_and_the_docs(caplog: pytest.LogCaptureFixture) -> None:
    open_paths = ("/health", "/ready", "/docs", "/openapi.json")
    async with in_process(FakeClient(), api_keys=("s3cret", "2nd")) as http:
        opened = [(await http.get(path)).status_code for path in open_paths]
        closed = [
            (await http.get(path)).status_code
            for path in ("/metrics", "/health_generate", "/server_info", "/v1/models")
        ]
        answers = {}
        for header in ("Bearer s3cretX", "Bearer ", "s3cret", "bearer s3cret", "Bearer 2nd"):
            answers[header] = await http.post(
                "/generate", json={"text": "a"}, headers={"authorization": header}
            )
        missing = await http.post("/generate", content=b"{")
    assert opened == [200] * 4 and closed == [401] * 4
    assert [a.status_code for a in answers.values()] == [401, 401, 401, 200, 200]
    assert (missing.status_code, error_of(missing)["type"]) == (401, "authentication_error")
    assert "s3cret" not in caplog.text + missing.text + answers["Bearer s3cretX"].text


@pytest.mark.parametrize(
    ("ring", "status"),
    [
        (READY, 200),
        (None, 503),
        (RingEvent(2, True, True, {}), 503),
        (RingEvent(2, False, False, {"scheduler": "dead"}, "it died"), 503),
        (msgspec.structs.replace(READY, silent=["tokenizer"]), 503),
        (msgspec.structs.replace(READY, silent=["scheduler"]), 503),
        (msgspec.structs.replace(READY, silent=["compiler", "launcher"]), 200),
        (RingEvent(1, True, False, REPLICAS, incarnations=[2, 3], silent=["scheduler.1"]), 200),
        (RingEvent(1, True, False, REPLICAS, incarnations=[2, 3], silent=[*REPLICAS]), 503),
    ],
)
async def test_ready_follows_the_ring(ring: RingEvent | None, status: int) -> None:
    client = FakeClient()
    client.ring = ring
    async with in_process(client) as http:
        ready = await http.get("/ready")
        health = await http.get("/health")
    assert ready.status_code == status
    assert health.status_code == (200 if ring is not None and ring.ready else 503)
    assert health.json()["ring"] == ready.json()["ring"]
    assert ("retry-after" in ready.headers) == (status == 503)


async def test_metrics() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        await http.post("/generate", json={"text": "a", "stream": True})
        await http.post("/generate", json={"text": "a"})
        scraped = await http.get("/metrics")
        assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = scraped.text
        client.statistics = RequestError("no")
        down = (await http.get("/metrics")).text
    lines = text.splitlines()
    assert "srt_up 1.0" in lines and "srt_cache_hit_rate 0.5" in lines
    assert "srt_cached_tokens_total 7.0" in lines
    assert "srt_time_to_first_token_seconds_count 1.0" in lines
    assert "srt_inter_token_latency_seconds_count 2.0" in lines
    assert "srt_e2e_request_latency_seconds_count 2.0" in lines
    assert "srt_up 0.0" in down.splitlines() and "srt_cache_hit_rate" not in down


async def test_a_silent_scheduler_does_not_hold_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(FakeClient):
        async def stats(self) -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

    monkeypatch.setattr(health_module, "STATS_TIMEOUT_S", 0.05)
    async with in_process(Silent()) as http:
        assert "srt_up 0.0" in (await http.get("/metrics")).text
        assert (await http.get("/server_info")).json()["internal_states"] == []


async def test_an_answer_that_waits_for_its_reader_counts_until_it_has_left() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(8 << 20), "more_body": False})

    server = GatewayServer(app, listener())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    try:
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(SOON_S):
            while server.num_answering == 0:
                await asyncio.sleep(0.01)
            assert len(await reader.read()) > 8 << 20
            while server.num_answering > 0:
                await asyncio.sleep(0.01)
    finally:
        writer.close()
        await server.stop()
