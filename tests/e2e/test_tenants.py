"""One server, several API keys: the owner of one learns nothing of the others' requests, and can
end none of them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.wire.sampling import SamplingParams
from tests.e2e.conftest import KEYS
from tests.e2e.server import Server
from tests.waiting import SOON_S

VICTIM, ATTACKER = KEYS[:2]
SECRET = "The password of the vault in the old tower by the sea is swordfish seven times over."
STREAM = {"max_new_tokens": 4000, "temperature": 0, "ignore_eos": True, "speculative": "off"}
ONE = {"max_new_tokens": 1, "temperature": 0}
NOBODY = {"authorization": "Bearer nobodys-key"}


def client_of(server: Server, key: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=SOON_S)


async def generate(http: httpx2.AsyncClient, text: str, **more: Any) -> httpx2.Response:
    return await http.post("/generate", json={"text": text, "sampling_params": ONE, **more})


@asynccontextmanager
async def streams(http: httpx2.AsyncClient, *rids: str) -> AsyncIterator[list[AsyncIterator[str]]]:
    """The lines of long streams that have begun."""
    async with AsyncExitStack() as stack:
        begun = []
        for rid in rids:
            body = {"text": SECRET, "rid": rid, "stream": True, "sampling_params": STREAM}
            response = await stack.enter_async_context(http.stream("POST", "/generate", json=body))
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            begun.append(lines)
        yield begun


async def attempt(http: httpx2.AsyncClient, number: int, rng: random.Random) -> str:
    """One attempt, and what was learned by it: "" is nothing."""
    rid = rng.choice(["letter", "draft"])
    match number % 8:
        case 0:
            found = await http.post("/abort_request", json={"rid": rid})
            return str(found.json()["aborted"] or "")
        case 1:
            body = {"rid": rid[: rng.randint(1, len(rid))], "prefix": True}
            return str((await http.post("/abort_request", json=body)).json()["aborted"] or "")
        case 2:
            taken = await generate(http, f"Hello {number}", rid=rid)
            return "" if taken.status_code == 200 else taken.text
        case 3:  # each only once, so only the victim can have cached it
            cached = await cached_tokens(http, secret(number), rng)
            return "" if cached < 5 else f"{cached} tokens"
        case 4:
            path = rng.choice(["/flush_cache", "/start_profile", "/stop_profile", "/metrics"])
            answered = await http.request("GET", path)
            return "" if answered.status_code == 403 else answered.text
        case 5:
            method = rng.choice(["GET", "DELETE"])
            answered = await http.request(method, f"/v1/responses/{rid}-kept")
            return "" if answered.status_code == 404 else answered.text
        case 6:
            body = {
                "input": "Go on.",
                "previous_response_id": f"{rid}-kept",
                "max_output_tokens": 1,
            }
            answered = await http.post("/v1/responses", json=body)
            return "" if answered.status_code == 400 else answered.text
        case _:
            body = {"abort_all": True}
            answered = await http.post("/abort_request", json=body)
            info = (await http.get("/server_info")).json()
            return "" if answered.status_code == 403 and not info["internal_states"] else str(info)


async def cached_tokens(http: httpx2.AsyncClient, text: str, rng: random.Random) -> int:
    """How much of a prompt was cached, according to one of the routes."""
    match rng.randrange(3):
        case 0:
            return int((await generate(http, text)).json()["meta_info"]["cached_tokens"])
        case 1:
            body: dict[str, Any] = {"text": text, "continuations": [" a", " b"]}
            return int((await http.post("/score_choices", json=body)).json()["cached_tokens"])
        case _:
            answered = await http.post("/v1/completions", json={"prompt": text, "max_tokens": 1})
            return int(answered.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def secret(number: int) -> str:
    """A secret of the victim's; at most a few first digits of two are the same."""
    return f"{random.Random(number).getrandbits(64):x} opens the vault in the tower by the sea"


@pytest.mark.parametrize(
    "count",
    [40, pytest.param(120, marks=pytest.mark.full), pytest.param(300, marks=pytest.mark.slow)],
)
async def test_attempts_learn_nothing(keyed: Server, count: int) -> None:
    rng = random.Random(3)
    async with (
        client_of(keyed, VICTIM) as victim,
        client_of(keyed, ATTACKER) as attacker,
        streams(victim, "letter", "draft") as begun,
    ):
        for number in range(3, count, 8):
            await generate(victim, secret(number))
        for rid in ("letter", "draft"):
            body = {"input": SECRET, "rid": rid + "-kept", "max_output_tokens": 1}
            assert (await victim.post("/v1/responses", json=body)).status_code == 200
        for number in range(count):
            assert await attempt(attacker, number, rng) == "", number
        again = (await generate(victim, secret(3))).json()["meta_info"]
        assert again["cached_tokens"] > 10  # there was something to be learned
        assert (await victim.get("/v1/responses/letter-kept")).status_code == 200
        for lines in begun:  # they continue
            async with asyncio.timeout(SOON_S):
                assert (await anext(lines), (await anext(lines))[:7]) == ("", "data: {")
        ended = await victim.post("/abort_request", json={"rid": "letter"})
        assert ended.json() == {"aborted": ["letter"]}


async def test_what_is_cached_is_cached_for_one_key(keyed: Server) -> None:
    async with client_of(keyed, VICTIM) as victim, client_of(keyed, ATTACKER) as attacker:
        text = "Nobody but I knows that " + SECRET
        counts = []
        for http in (victim, victim, attacker):
            for route, body in (
                ("/generate", {"text": text, "sampling_params": ONE}),
                ("/v1/completions", {"prompt": "But " + text, "max_tokens": 1}),
            ):
                answer = (await http.post(route, json=body)).json()
                found = answer.get("meta_info") or answer["usage"]["prompt_tokens_details"]
                counts.append(found["cached_tokens"])
    assert counts[:2] == counts[4:] == [0, 0] and min(counts[2:4]) > 10


async def test_a_programs_tenants_have_ids_of_their_own(keyed: Server) -> None:
    """On the ring, a program names the tenant for whom it sends."""
    long = SamplingParams(max_new_tokens=4000, temperature=0.0, ignore_eos=True)
    async with AsyncClient(keyed.ring) as client, asyncio.timeout(SOON_S):
        first, second = [
            await client.submit(text=SECRET, rid="same", tenant=tenant, sampling=long, stream=True)
            for tenant in ("a", "b")
        ]
        await client.abort("same")
        await client.abort("same", "a")
        finish = (await first.result()).finish
        assert finish is not None and finish.type == "abort"
        output = await anext(aiter(second))
        assert output.finish is None
        await second.aclose()


@pytest.mark.full
async def test_keys_come_and_go_with_their_file(keyed: Server) -> None:
    keys = keyed.directory.parent / "keys"
    before = keys.read_text()

    async def until(key: str, status: int) -> None:
        async with client_of(keyed, key) as http, asyncio.timeout(SOON_S):
            while (await http.get("/v1/models")).status_code != status:
                await asyncio.sleep(0.05)

    await until(VICTIM, 200)
    assert "every user can read the API keys" in keyed.log()
    try:
        keys.write_text("new-key\n")
        await until("new-key", 200)
        await until(VICTIM, 401)
        keys.write_text("")  # an empty file must not admit everybody
        async with client_of(keyed, "new-key") as http, asyncio.timeout(SOON_S):
            while "the API keys stay as they were" not in keyed.log():
                assert (await http.get("/v1/models")).status_code == 200
                await asyncio.sleep(0.05)
            assert (await http.get("/v1/models", headers=NOBODY)).status_code == 401
    finally:
        keys.write_text(before)
        await until(VICTIM, 200)
    assert "new-key" not in keyed.log()
