"""Many clients at once: connections, keys, bounds and pages of other origins, on real servers."""

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bench.hostile_bodies import BODIES
from srt.client.face import AsyncClient
from tests.e2e.conftest import KEYS
from tests.e2e.server import Server, running_server
from tests.waiting import SOON_S

PROMPT = "The capital of France is"
SHORT = {"max_new_tokens": 2, "temperature": 0.0}
LONG = {"max_new_tokens": 4000, "temperature": 0.0, "ignore_eos": True}
CLIENTS = 256
MAX_CONNECTIONS = 8
FRESH = httpx2.Limits(max_connections=None, max_keepalive_connections=0)


def fresh_client(server: Server, **options: Any) -> httpx2.AsyncClient:
    """A client that opens a connection for every request."""
    return httpx2.AsyncClient(base_url=server.url, timeout=120, limits=FRESH, **options)


# ---- 256 at once ---------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
async def test_many_clients_with_a_connection_each(server: Server, stream: bool) -> None:
    """Each gets its own answer, the same as a client alone."""
    body = {"text": PROMPT, "sampling_params": SHORT, "stream": stream}
    async with fresh_client(server) as http:
        alone = (await http.post("/generate", json=body | {"stream": False})).json()["text"]
        requests = [
            http.post("/generate", json=body | {"rid": f"many-{i}"}) for i in range(CLIENTS)
        ]
        responses = await asyncio.gather(*requests)
    assert [r.status_code for r in responses] == [200] * CLIENTS
    answers = [_last(r.text) if stream else r.json() for r in responses]
    assert [a["meta_info"]["id"] for a in answers] == [f"many-{i}" for i in range(CLIENTS)]
    assert {a["text"] for a in answers} == {alone}
    await asyncio.to_thread(server.wait_idle)


def _last(text: str) -> Any:
    *_, last, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return json.loads(last.removeprefix("data: "))


@pytest.mark.full
def test_many_threads_as_the_sglang_front_end_makes_them(server: Server) -> None:
    """urllib closes its connection after every call."""

    def call(index: int) -> Any:
        body = {"text": f"{index} and {index} make", "sampling_params": SHORT}
        request = urllib.request.Request(server.url + "/generate", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as response:
            assert response.headers["connection"] == "close"
            return json.loads(response.read())["meta_info"]["completion_tokens"]

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(call, range(CLIENTS))) == [2] * CLIENTS
    server.wait_idle()


@pytest.mark.full
async def test_clients_that_leave_make_room(server: Server) -> None:
    """A connection that breaks aborts its requests; others do not notice."""
    async with fresh_client(server) as http:
        body = {"text": PROMPT, "sampling_params": LONG}
        leaving = [asyncio.ensure_future(http.post("/generate", json=body)) for _ in range(32)]
        staying = [
            asyncio.ensure_future(
                http.post("/generate", json={"text": PROMPT, "sampling_params": SHORT})
            )
            for _ in range(32)
        ]
        await asyncio.sleep(0.3)
        for task in leaving:
            task.cancel()
        responses = await asyncio.gather(*staying)
    assert all(r.status_code == 200 for r in responses)
    stats = await asyncio.to_thread(server.wait_idle)
    assert stats["num_running_reqs"] == 0


async def test_one_connection_serves_many_requests(server: Server) -> None:
    limits = httpx2.Limits(max_connections=1)
    async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
        for path in ("/health", "/nothing", "/v1/models", "/metrics"):
            opened: list[str] = []

            async def trace(name: str, _: Any, opened: list[str] = opened) -> None:
                opened.append(name)

            await http.get(path, extensions={"trace": trace})
            assert ("connection.connect_tcp.started" in opened) == (path == "/health")


async def test_a_body_above_the_limit_is_told_so(server: Server) -> None:
    async with fresh_client(server) as http:
        response = await http.post("/generate", content=b" " * (16 * 2**20 + 1))
        assert (await http.get("/ready")).status_code == 200
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


# ---- hostile bodies ------------------------------------------------------------------------------

HOSTILE = (
    *("5,000,000 empty lists", "1,000,000 unknown keys", "1,000,000 ids", "1,000,000 ids to score"),
    *("2 MiB before each item", "slow numbers", "130,000 characters to tokenize", "10,000 calls"),
)
STEADY = {"max_new_tokens": 30, "temperature": 0.0, "ignore_eos": True}


@pytest.mark.full
async def test_streams_of_others_finish_beside_hostile_bodies(server: Server) -> None:
    """Over HTTP and over the ring, they give the same texts as alone."""
    over = asyncio.Event()

    async def steady(client: AsyncClient) -> int:
        rounds = 0
        while not over.is_set() or rounds == 0:
            outputs = [output async for output in client.stream(PROMPT, sampling=STEADY)]
            assert outputs[-1].text == expected.text
            rounds += 1
        return rounds

    async with AsyncClient(server.url) as one, AsyncClient(server.ring) as two:
        expected = await one.generate(PROMPT, sampling=STEADY)
        beside = [asyncio.create_task(steady(client)) for client in (one, two, one)]
        async with fresh_client(server) as http:
            for name in HOSTILE:
                path, data = BODIES[name].path, BODIES[name].make()
                answer = await http.post(path, content=data)
                assert answer.status_code in (200, 400, 413), name
                assert (await http.get("/health")).status_code == 200
        over.set()
        assert min(await asyncio.gather(*beside)) > 0
    await asyncio.to_thread(server.wait_idle)


# ---- keys, origins and bounds --------------------------------------------------------------------


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_each_key_opens_the_routes(keyed: Server) -> None:
    async with fresh_client(keyed) as http:
        for key in KEYS:
            body = {"text": PROMPT, "sampling_params": SHORT}
            answer = await http.post("/generate", json=body, headers=bearer(key))
            assert answer.status_code == 200
            info = await http.get("/server_info", headers=bearer(key))
            assert not [k for k in KEYS if k in info.text]
        for headers in ({}, bearer(KEYS[0][:-1]), bearer(f"{KEYS[1]},{KEYS[2]}")):
            refused = await http.post("/generate", json={"text": PROMPT}, headers=headers)
            assert refused.status_code == 401
        assert (await http.get("/docs")).status_code == 200
    assert not [key for key in KEYS if key in keyed.log()]


async def test_a_page_of_an_allowed_origin_asks_first(keyed: Server) -> None:
    preflight = {
        "origin": "https://b.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    async with fresh_client(keyed) as http:
        asked = await http.options("/v1/chat/completions", headers=preflight)
        assert asked.is_success
        assert asked.headers["access-control-allow-origin"] == "https://b.example"
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()
        headers = {"origin": "https://b.example", **bearer(KEYS[0])}
        answer = await http.get("/v1/models", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://b.example"
        other = await http.get("/v1/models", headers=headers | {"origin": "https://c.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_names_are_strict_where_the_options_say_so(keyed: Server) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    async with fresh_client(keyed) as http:
        for fields, status, param in (
            ({"model": "gpt-4o"}, 404, "model"),
            ({"num_ctx": 5}, 400, "num_ctx"),
            ({"nothing_known": 5}, 400, "nothing_known"),
            ({"num_predict": 1}, 200, None),
        ):
            headers = {"x-api-key": KEYS[0]}
            answer = await http.post("/v1/completions", json=body | fields, headers=headers)
            assert answer.status_code == status, answer.text
            assert answer.json().get("error", {}).get("param") == param


async def test_the_servers_stream_interval(keyed: Server) -> None:
    body = {"text": PROMPT, "stream": True, "sampling_params": {**LONG, "max_new_tokens": 9}}
    async with fresh_client(keyed, headers=bearer(KEYS[0])) as http:
        text = (await http.post("/generate", json=body)).text
    events = [json.loads(f.removeprefix("data: ")) for f in text.split("\n\n")[:-2]]
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts[-1] == 9 and len(counts) <= 4


@pytest.mark.full
async def test_connections_above_the_bound(tmp_path: Path) -> None:
    """They get a 503 that says so, except probes; others continue, and places become free again.
    The server is its own: others need more connections."""
    options = ("--max-connections", str(MAX_CONNECTIONS))
    with running_server(tmp_path, *options) as server:
        await check_bound(server)


async def check_bound(server: Server) -> None:
    async with fresh_client(server) as http:
        body = {"text": PROMPT, "sampling_params": LONG, "stream": True}
        inside = []
        for _ in range(MAX_CONNECTIONS):
            request = http.build_request("POST", "/generate", json=body)
            inside.append(await http.send(request, stream=True))
        refused = await asyncio.gather(*[http.get("/v1/models") for _ in range(40)])
        assert {r.status_code for r in refused} == {503}
        assert (await http.get("/health")).status_code == 200
        error = refused[0].json()["error"]
        assert error["code"] == "unavailable" and "connections" in error["message"]
        for response in inside:
            assert response.status_code == 200
            assert (await anext(response.aiter_lines())).startswith("data: {")
            await response.aclose()
        async with asyncio.timeout(SOON_S):
            while (await http.get("/v1/models")).status_code != 200:
                await asyncio.sleep(0.05)
