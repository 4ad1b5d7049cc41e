"""A server that is full with one key's requests: another key is admitted, and the newest of the
first one's gives way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.server import Server, running_server
from tests.waiting import SOON_S

PLACES, ROWS = 6, 2
LONG = {"max_new_tokens": 300, "temperature": 0, "ignore_eos": True, "speculative": "off"}

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp: Path = tmp_path_factory.mktemp("small")
    keys = tmp / "keys"
    keys.write_text("key-a name=a\nkey-b name=b\nkey-c name=c max_tokens=2\nkey-ops admin\n")
    keys.chmod(0o600)
    options = ["--api-key-file", str(keys), "--max-queued-requests", str(PLACES)]
    options += ["--max-running-requests", str(ROWS), "--max-queue-wait", "0"]
    with running_server(tmp, *options) as server:
        yield server


def client_of(server: Server, name: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer key-{name}"}
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=SOON_S)


async def counts(server: Server) -> dict[str, float]:
    """The metrics of callers, by name and labels."""
    async with client_of(server, "ops") as http:
        lines = (await http.get("/metrics")).text.splitlines()
    split = (line.split(" ") for line in lines if line.startswith("srt_caller_"))
    return {name: float(value) for name, value in split}


async def until_in_flight(server: Server, count: int) -> None:
    while (await counts(server))['srt_caller_in_flight{caller="a"}'] < count:
        await asyncio.sleep(0.05)


async def test_who_has_all_places_gives_way(small: Server) -> None:
    async with client_of(small, "a") as a, client_of(small, "b") as b:
        posts = []
        for number in range(PLACES):
            body = {"text": f"{number}", "sampling_params": LONG, "stream": number % 2 == 1}
            posts.append(asyncio.ensure_future(a.post("/generate", json=body)))
            await until_in_flight(small, number + 1)
        full = await a.post("/generate", json={"text": "more", "sampling_params": LONG})
        assert full.status_code == 429
        answer = await b.post("/generate", json={"text": "b", "sampling_params": LONG})
        assert answer.status_code == 200
        answers = await asyncio.gather(*posts)
    assert [one.status_code for one in answers] == [200] * (PLACES - 1) + [429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert "below their shares" in answers[-1].text
    found = await counts(small)
    assert found['srt_caller_gave_way_total{caller="a"}'] == 1
    assert found['srt_caller_refused_total{caller="b"}'] == 0
    assert found['srt_caller_output_tokens_total{caller="b"}'] == LONG["max_new_tokens"]


async def test_calls_of_programs_are_their_keys(small: Server) -> None:
    output = {"output": "a", "sampling_params": {"max_new_tokens": 3, "min_new_tokens": 3}}
    async with client_of(small, "c") as c:
        session = (await c.post("/v1/sessions", json={})).json()["id"]
        body = {"session": session, "calls": [{"segments": [{"text": "x"}, output]}]}
        answer = await c.post("/v1/submit", json=body)
        assert answer.status_code == 200, answer.text
        ids = answer.json()["vars"]
        found = (await c.post("/v1/get", json={"vars": [*ids.values()]})).text
    assert "the limit of this key" in found
