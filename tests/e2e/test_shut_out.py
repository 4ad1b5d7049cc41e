"""Four callers take all that may be held of a server; a fifth one is served all the same.

Without keys a caller is an address, of which this machine has as many as it likes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx2
import pytest

from srt.gateway.http.body import MAX_BODY_BYTES
from srt.gateway.limits.large_bodies import MAX_CALLER_BYTES, MAX_HELD_BYTES
from srt.programs.limits import CALLER_SHARE, MAX_SESSIONS
from tests.e2e.server import Server
from tests.waiting import SOON_S

OTHERS = [f"127.0.0.{number}" for number in range(11, 15)]
MINE = "127.0.0.15"


def client_at(server: Server, address: str) -> httpx2.AsyncClient:
    transport = httpx2.AsyncHTTPTransport(
        local_address=address, limits=httpx2.Limits(max_connections=None)
    )
    return httpx2.AsyncClient(base_url=server.url, transport=transport, timeout=SOON_S)


@pytest.fixture
async def callers(server: Server) -> AsyncIterator[dict[str, httpx2.AsyncClient]]:
    """A client at each address."""
    async with AsyncExitStack() as stack:
        yield {
            address: await stack.enter_async_context(client_at(server, address))
            for address in (*OTHERS, MINE)
        }


@pytest.mark.full
async def test_idle_sessions_shut_out_nobody(callers: dict[str, httpx2.AsyncClient]) -> None:
    sessions: list[tuple[str, str]] = []
    for address in OTHERS:
        for _ in range(int(MAX_SESSIONS * CALLER_SHARE)):
            answer = await callers[address].post("/v1/sessions", json={"idle_s": 86_400})
            assert answer.status_code == 200, answer.text
            sessions.append((address, answer.json()["id"]))
    opened = await callers[MINE].post("/v1/sessions", json={})
    assert opened.status_code == 200, opened.text
    body = {
        "session": opened.json()["id"],
        "calls": [{"segments": [{"text": "x"}, {"output": "o"}]}],
    }
    body["calls"][0]["segments"][1]["sampling_params"] = {"max_new_tokens": 2, "temperature": 0}
    var = (await callers[MINE].post("/v1/submit", json=body)).json()["vars"]["o"]
    got = await callers[MINE].post("/v1/get", json={"vars": [var]})
    assert got.status_code == 200 and got.json()["done"]
    gone = []
    for address, name in sessions:
        answer = await callers[address].delete(f"/v1/sessions/{name}")
        if answer.status_code != 200:
            gone.append(answer)
    (one,) = gone
    assert one.status_code == 404
    assert "to make room for another caller" in one.json()["error"]["message"]
    assert (await callers[MINE].delete(f"/v1/sessions/{body['session']}")).status_code == 200


class SlowBody:
    """The beginning of a large body; the rest does not come."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def send(self, server: Server, size: int) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        self._reader, self._writer = await asyncio.open_connection(
            host, int(port), local_addr=(self.address, 0)
        )
        head = f"POST /generate HTTP/1.1\r\nHost: x.localhost\r\nContent-Length: {size + 1}\r\n\r\n"
        self._writer.write(head.encode() + b'{"text": "' + b" " * (size - 10))
        await self._writer.drain()
        self.answer = asyncio.ensure_future(self._reader.readuntil(b"}"))

    async def close(self) -> None:
        self.answer.cancel()
        self._writer.close()
        await asyncio.wait([self.answer])


@pytest.mark.full
async def test_slow_bodies_shut_out_nobody(
    server: Server, callers: dict[str, httpx2.AsyncClient]
) -> None:
    """Two addresses are enough to take all room."""
    of_one = MAX_CALLER_BYTES // MAX_BODY_BYTES
    assert 2 * of_one * MAX_BODY_BYTES == MAX_HELD_BYTES
    bodies = [SlowBody(address) for address in OTHERS[:2] for _ in range(of_one)]
    await asyncio.gather(*(body.send(server, MAX_BODY_BYTES - 4096) for body in bodies))
    text = "x" * 500_000  # too long for the model, which is said once it was read
    async with asyncio.timeout(SOON_S):
        while not any(body.answer.done() for body in bodies):  # until all of theirs is there
            answer = await callers[MINE].post("/generate", json={"text": text})
            assert answer.status_code == 400 and "context" in answer.text, answer.text
    (said,) = {body.answer.result() for body in bodies if body.answer.done()}
    assert said.startswith(b"HTTP/1.1 429") and b"made room for another caller's" in said
    for body in bodies:
        await body.close()
