"""The gateway behind a real socket: health, errors of the framework, disconnects, shutdown."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from srt.errors import ConfigError, RequestError
from srt.gateway import body as body_module
from srt.gateway import ring_state
from srt.gateway.app import create_app
from srt.gateway.server import GatewayServer, HeadTimeoutProtocol
from srt.messages import RingEvent
from tests.fakes import READY, FakeClient
from tests.srt.gateway_setup import INFO, error_of, in_process, served

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
        async with asyncio.timeout(2):
            await asyncio.gather(*left, return_exceptions=True)
    assert all(g.closed for g in client.generations)


async def test_streams_arrive_piece_by_piece() -> None:
    client = FakeClient(("a", "b"))
    client.hold.clear()
    async with (
        served(client) as server,
        httpx.AsyncClient(base_url=server.url) as http,
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
    server = GatewayServer(create_app(client, INFO), stream_grace_s=0.2)
    await server.start()
    writer = await send_raw(server, "/generate", {"text": "a", "stream": True})
    await client.wait_submitted(1)
    async with asyncio.timeout(5):
        await server.stop()
        await server.stop()
    await client.wait_aborted(1)
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()


async def test_abort_request_ends_a_live_request() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client) as server, httpx.AsyncClient(base_url=server.url) as http:
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


async def test_a_connection_without_a_head_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadTimeoutProtocol, "head_timeout_s", 0.1)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost")
        async with asyncio.timeout(3):
            assert await reader.read() == b""
        writer.close()
        async with httpx.AsyncClient(base_url=server.url) as http:
            assert (await http.get("/health")).status_code == 200
            await asyncio.sleep(0.2)
            assert (await http.get("/health")).status_code == 200


async def test_a_slow_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "BODY_TIMEOUT_S", 0.1)
    async with served(FakeClient()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        async with asyncio.timeout(3):
            status = await reader.readline()
        writer.close()
    assert status.startswith(b"HTTP/1.1 408")


async def test_a_given_socket_and_a_taken_port() -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = GatewayServer(create_app(FakeClient(), INFO), sock=sock)
    await server.start()
    assert server.port == port
    taken = GatewayServer(create_app(FakeClient(), INFO), "127.0.0.1", port)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
        await taken.start()
    await server.stop()


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "valid JSON"),
        (b'{"text": ', "valid JSON"),
        (b'{"text": "\xff"}', "valid JSON"),
        (b'{"text": "\\ud800"}', "valid JSON"),
        (b'{"text": NaN}', "valid JSON"),
        (b"[" * 100_000, "nested"),
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


async def test_the_key_guards_all_but_health(caplog: pytest.LogCaptureFixture) -> None:
    async with in_process(FakeClient(), api_key="s3cret") as http:
        statuses = {p: (await http.get(p)).status_code for p in ("/health", "/ready", "/metrics")}
        wrong = await http.post(
            "/generate", content=b"{", headers={"authorization": "Bearer s3cretX"}
        )
        right = await http.post(
            "/generate", json={"text": "a"}, headers={"authorization": "bearer s3cret"}
        )
    assert statuses == {"/health": 200, "/ready": 200, "/metrics": 401}
    assert (wrong.status_code, error_of(wrong)["type"]) == (401, "authentication_error")
    assert right.status_code == 200
    assert "s3cret" not in caplog.text + wrong.text


@pytest.mark.parametrize(
    ("ring", "status"),
    [
        (READY, 200),
        (None, 503),
        (RingEvent(2, True, True, {}), 503),
        (RingEvent(2, False, False, {"scheduler": "dead"}, "it died"), 503),
    ],
)
async def test_ready_follows_the_ring(ring: RingEvent | None, status: int) -> None:
    client = FakeClient()
    client.ring = ring
    async with in_process(client) as http:
        ready = await http.get("/ready")
        health = await http.get("/health")
    assert ready.status_code == status
    assert health.status_code == 200
    assert health.json()["ring"] == ready.json()["ring"]
    assert ("retry-after" in ready.headers) == (status == 503)


async def test_metrics() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        await http.post("/generate", json={"text": "a", "stream": True})
        await http.post("/generate", json={"text": "a"})
        text = (await http.get("/metrics")).text
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

    monkeypatch.setattr(ring_state, "STATS_TIMEOUT_S", 0.05)
    async with in_process(Silent()) as http:
        assert "srt_up 0.0" in (await http.get("/metrics")).text
        assert (await http.get("/server_info")).json()["internal_states"] == []
