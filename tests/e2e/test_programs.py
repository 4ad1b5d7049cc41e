"""Programs on a real server and model: what they give, whom they serve, what they survive."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.client.programs import ProgramSession, VarFailed
from srt.wire.errors import RequestError
from srt.wire.programs import Call, Input, Output, Perf, Program, Text, VarInfo
from srt.wire.sampling import SamplingParams
from tests.e2e.random_programs import check_calls, random_program
from tests.e2e.server import Server
from tests.waiting import SOON_S

SHORT = SamplingParams(max_new_tokens=6, temperature=0.0)
Run = tuple[Program, dict[str, VarInfo]]  # and the variables by name

LONG = SamplingParams(max_new_tokens=2000, temperature=0.0, ignore_eos=True, speculative="off")


async def run_one(session: ProgramSession, rng: random.Random) -> Run:
    """A random program to its end: a variable set late, some read twice, streamed, cancelled."""
    program = random_program(rng)
    ids = await session.submit(program)
    names = {var: name for name, var in ids.items()}

    async def stream(var: str) -> str:
        pieces = ""
        try:
            async for piece in session.stream(var):
                pieces += piece
        except VarFailed:
            pass
        return pieces

    made = [var for name, var in ids.items() if name not in program.vars]
    streamed = rng.sample(made, min(2, len(made)))
    streams = [asyncio.ensure_future(stream(var)) for var in streamed]
    everything = asyncio.ensure_future(session.get_all(made))
    await asyncio.sleep(rng.random() * 0.05)
    await session.set(ids["late"], " the late one")
    if rng.random() < 0.3:
        await session.cancel(rng.choice(made))
    got = await everything
    assert got.done
    texts = await asyncio.gather(*streams)
    again = await session.get_all([*ids.values()])
    found = {names[var.id]: var for var in again.vars}
    for var, text in zip(streamed, texts, strict=True):
        assert found[names[var]].text == text
    return program, found


@asynccontextmanager
async def session_at(url: str) -> AsyncIterator[ProgramSession]:
    """A session on a client of its own, for a while."""
    async with (
        AsyncClient(url) as client,
        asyncio.timeout(SOON_S),
        await client.session() as session,
    ):
        yield session


async def check_random(url: str, seed: int, count: int) -> int:
    async with AsyncClient(url) as client, asyncio.timeout(SOON_S * count):
        rng = random.Random(seed)
        num_checked = 0
        async with await client.session() as a, await client.session() as b:
            for _ in range(count):
                runs = (run_one(session, random.Random(rng.random())) for session in (a, b))
                for program, found in await asyncio.gather(*runs):
                    num_checked += await check_calls(client, program, found)
        return num_checked


@pytest.mark.parametrize("transport", [pytest.param("ring", marks=pytest.mark.full), "http"])
async def test_the_same_as_one_by_one(server: Server, transport: str) -> None:
    url = server.ring if transport == "ring" else server.url
    assert await check_random(url, 21, 6) > 10
    server.wait_idle()


@pytest.mark.slow
@pytest.mark.timeout(3000)
async def test_200_programs_are_the_same_as_one_by_one(server: Server) -> None:
    assert await check_random(server.ring, 4, 100) > 200
    server.wait_idle()


def chain(count: int) -> Program:
    calls = []
    for i in range(count):
        before = [Text("A story. ")] + ([Input(f"o{i - 1}")] if i else [])
        calls.append(Call([*before, Output(f"o{i}", SHORT)]))
    return Program(calls=calls)


async def test_errors_of_values(server: Server) -> None:
    """A failure reaches all that needs it, with its cause; cancelling ends the requests."""
    bad = SamplingParams(max_new_tokens=4, regex="(")
    calls = [
        Call([Text("x"), Output("bad", bad)]),
        Call([Input("bad"), Output("after", SHORT)]),
        Call([Text("x"), Output("long", LONG)]),
        Call([Input("long"), Output("last", SHORT)]),
    ]
    async with session_at(server.ring) as session:
        ids = await session.submit(Program(calls=calls, eager=True))
        with pytest.raises(VarFailed, match="bad") as failure:
            await session.get(ids["after"])
        (cause,) = failure.value.var.causes
        assert cause.name == "bad" and cause.error is not None
        assert failure.value.info.code == cause.error.code == "bad_request"
        async for piece in session.stream(ids["long"]):
            if piece:  # the first may be empty: the get was taken
                break
        early = await session.get_all([ids["long"]], deadline_ms=1, perf=Perf("ttft", 50))
        assert not early.done and early.vars[0].state == "running" and early.vars[0].text
        assert early.vars[0].perf == Perf("ttft", 50)
        await session.cancel(ids["long"])
        with pytest.raises(VarFailed, match="was cancelled"):
            await session.get(ids["last"])
        await asyncio.to_thread(server.wait_idle)


async def test_a_closed_session_ends_its_requests(server: Server) -> None:
    async with AsyncClient(server.ring) as client, asyncio.timeout(SOON_S):
        session = await client.session()
        ids = await session.submit(Program(calls=[Call([Text("x"), Output("long", LONG)])]))
        waiting = asyncio.ensure_future(session.get(ids["long"]))
        async for _ in session.stream(ids["long"]):
            break
        await session.close()
        with pytest.raises(RequestError, match="closed"):
            await waiting
        with pytest.raises(RequestError, match="no such"):
            await session.read(ids["long"])
        await asyncio.to_thread(server.wait_idle)
        counts = await client._transport.programs.program_counts()
        assert counts["calls.running"] == counts["gets"] == 0


async def test_a_disconnect_ends_the_get_only(server: Server) -> None:
    async with session_at(server.url) as session:
        ids = await session.submit(chain(3))
        waiting = asyncio.ensure_future(session.get(ids["o2"]))
        while (await session.read(ids["o0"])).state == "pending":
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while (await session.read(ids["o2"])).state != "ready":
            await asyncio.sleep(0.02)


def post(server: Server, path: str, body: Any, **headers: str) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, headers=headers, timeout=SOON_S)


def test_idempotency(server: Server) -> None:
    session = post(server, "/v1/sessions", {}).json()["id"]
    body = {"session": session, "vars": {"a": "1"}}
    first = post(server, "/v1/submit", body, **{"idempotency-key": "k"})
    again = post(server, "/v1/submit", body, **{"idempotency-key": "k"})
    assert first.status_code == 200 and first.json() == again.json()
    other = post(server, "/v1/submit", body | {"vars": {"b": "1"}}, **{"idempotency-key": "k"})
    assert other.status_code == 409 and other.json()["error"]["param"] == "Idempotency-Key"
    assert len(httpx2.get(f"{server.url}/v1/sessions/{session}").json()["vars"]) == 1
    assert httpx2.delete(f"{server.url}/v1/sessions/{session}").status_code == 200
    assert httpx2.get(f"{server.url}/v1/sessions/{session}").status_code == 404
