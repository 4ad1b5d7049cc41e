"""Programs while parts of the server are killed: every get ends, and nothing is left behind."""

import asyncio
import os
import random
import signal
import time

import pytest

from srt.client.face import AsyncClient
from srt.client.programs import Got, ProgramSession
from srt.wire.errors import RequestError
from srt.wire.programs import Call, Input, Join, Output, Program, Text, Transform, VarInfo
from srt.wire.sampling import SamplingParams
from tests.e2e.sacrificial import Sacrificial
from tests.e2e.server import Server
from tests.waiting import SOON_S

PARTS = ["scheduler", "tokenizer", "detokenizer", "compiler", "gateway", "programs"]
STORY = SamplingParams(max_new_tokens=24, temperature=0.0, ignore_eos=True)


pytestmark = pytest.mark.full


def map_reduce(number: int) -> Program:
    """Three chains of two calls, and one call that needs all of them."""
    calls = []
    for i in range(3):
        first, second = f"a{i}", f"b{i}"
        calls.append(Call([Text(f"Story {number}.{i}:"), Output(first, STORY)]))
        calls.append(Call([Text("Once more:"), Input(first), Text("\nBut"), Output(second, STORY)]))
    calls.append(Call([Input("all"), Text("\nIn short:"), Output("end", STORY)]))
    return Program(calls=calls, transforms=[Transform("all", Join(["b0", "b1", "b2"], "\n"))])


async def run_all(session: ProgramSession, number: int) -> Got | RequestError:
    """A program to its end, or the error that its get ends with."""
    try:
        ids = await session.submit(map_reduce(number))
        return await session.get_all([ids["end"]])
    except RequestError as error:
        return error


@pytest.fixture(scope="module")
def texts(sacrificial_server: Sacrificial) -> list[str]:
    """The ends of programs that nothing disturbs."""
    server = sacrificial_server.whole()

    async def alone() -> list[Got | RequestError]:
        async with AsyncClient(server.ring) as client, await client.session() as session:
            return await asyncio.gather(*(run_all(session, i) for i in range(4)))

    ends = asyncio.run(alone())
    return [end.vars[0].text for end in ends if isinstance(end, Got)]


async def check_round(server: Server, part: str, texts: list[str], wait_s: float) -> None:
    """Kill `part` while programs run. What ends without a value says why, within a bound."""
    pid = server.pids()[part]
    url = server.url if part == "gateway" else server.ring
    async with AsyncClient(url) as client, asyncio.timeout(SOON_S):
        session = await ready_session(client)
        runs = [asyncio.ensure_future(run_all(session, i)) for i in range(len(texts))]
        await asyncio.sleep(wait_s)
        os.kill(pid, signal.SIGKILL)
        ends = await asyncio.gather(*runs)
        for end, text in zip(ends, texts, strict=True):
            if isinstance(end, Got):
                (var,) = end.vars
                assert end.done and var.state in ("ready", "failed")
                assert var.text == text if var.state == "ready" else var.error is not None
            else:
                assert part in ("gateway", "programs"), end
                assert end.info.retryable or end.info.http_status == 404, end
            if part in ("scheduler", "compiler"):  # nothing is lost
                assert isinstance(end, Got) and end.vars[0].text == text, end
        while server.pids().get(part, pid) == pid or not await asyncio.to_thread(server.is_ready):
            await asyncio.sleep(0.05)
        if part == "gateway":  # what ran through it has gone on
            (var,) = [v for v in await infos(session) if v.name == "end"][:1]
            await session.get_all([var.id])
        await session.close()


async def infos(session: ProgramSession) -> list[VarInfo]:
    """All variables of a session."""
    found = await session._transport.read_session(session.id)
    return [await session.read(var) for var in found.vars]


async def ready_session(client: AsyncClient) -> ProgramSession:
    """A session, as soon as the part is there."""
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            return await client.session()
        except RequestError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def check_idle(server: Server) -> None:
    """Nothing runs, nothing is pinned, no session is left."""
    await asyncio.to_thread(server.wait_idle)
    async with AsyncClient(server.ring) as client:
        await (await ready_session(client)).close()
        counts = await client._transport.programs.program_counts()
    assert not any(value for name, value in counts.items() if not name.endswith("total")), counts


@pytest.mark.parametrize("part", PARTS)
async def test_a_part_is_killed(sacrificial: Server, texts: list[str], part: str) -> None:
    await check_round(sacrificial, part, texts[:3], 0.1)
    await check_idle(sacrificial)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_30_rounds(sacrificial: Server, texts: list[str]) -> None:
    rng = random.Random(30)
    for i in range(30):
        await check_round(sacrificial, PARTS[i % len(PARTS)], texts, rng.random() * 0.6)
    await check_idle(sacrificial)
