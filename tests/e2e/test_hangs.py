"""Processes that hang without dying: they are found by their silence, and told, and replaced."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.ring.places import RING_LOST_S
from srt.wire.errors import RingError
from tests.e2e.sacrificial import PART_TIMEOUT_S, STEP_TIMEOUT_S
from tests.e2e.server import Server, gone
from tests.waiting import SOON_S

LONG: dict[str, Any] = {
    "max_new_tokens": 300,
    "ignore_eos": True,
    "temperature": 0.0,
    "speculative": "off",
}
ON_THE_WAY = ("scheduler", "tokenizer", "detokenizer")


@pytest.mark.full
@pytest.mark.parametrize("part", [*ON_THE_WAY, "compiler", "programs", "gateway"])
async def test_a_part_that_stands_still_is_replaced(sacrificial: Server, part: str) -> None:
    """What it held fails or goes on, as at its death. Before that, /ready says that it is silent,
    if requests need it."""
    async with AsyncClient(sacrificial.ring) as client:
        before = await asyncio.to_thread(hangs, sacrificial, part)
        running = await client.submit(text="Once upon a time", sampling=LONG)
        pid = sacrificial.pids()[part]
        os.kill(pid, signal.SIGSTOP)
        if part in ON_THE_WAY:
            assert await until_silent(sacrificial, part) == 503
        assert await asyncio.to_thread(gone, [pid], SOON_S)
        try:
            assert (await running.result()).completion_tokens == 300
            assert part != "detokenizer"
        except RingError:
            assert part in ("tokenizer", "detokenizer")
    await asyncio.to_thread(sacrificial.wait_ready)
    await asyncio.to_thread(sacrificial.wait_idle)
    limit_s = STEP_TIMEOUT_S if part == "scheduler" else PART_TIMEOUT_S
    assert f"{part} has been silent for {limit_s:g} s" in sacrificial.log()
    assert hangs(sacrificial, part) == before + 1


@pytest.mark.parametrize(
    "for_s", [0.0, pytest.param(1.5 * RING_LOST_S, id="long", marks=pytest.mark.full)]
)
async def test_a_launcher_that_stands_still_ends_nothing(sacrificial: Server, for_s: float) -> None:
    """Streams go on, and new requests are served. /ready says 200, and who is silent."""
    incarnation = sacrificial.incarnation()
    async with AsyncClient(sacrificial.ring) as client:
        running = await client.submit(text="Once upon a time", sampling=LONG)
        os.kill(sacrificial.process.pid, signal.SIGSTOP)
        try:
            assert await until_silent(sacrificial, "launcher") == 200
            await asyncio.sleep(for_s)
            assert (await running.result()).completion_tokens == 300
            for _ in range(2):
                output = await client.generate("Hello", sampling=LONG | {"max_new_tokens": 2})
                assert output.completion_tokens == 2
            body = {"text": "Hello", "sampling_params": {"max_new_tokens": 2}}
            async with httpx2.AsyncClient(timeout=SOON_S) as http:
                answer = await http.post(sacrificial.url + "/generate", json=body)
            assert answer.status_code == 200
        finally:
            os.kill(sacrificial.process.pid, signal.SIGCONT)
    assert await until_silent(sacrificial, None) == 200
    assert sacrificial.incarnation() == incarnation


@pytest.mark.full
@pytest.mark.parametrize("part", ON_THE_WAY)
async def test_what_dies_behind_a_launcher_that_stands_still(
    sacrificial: Server, part: str
) -> None:
    """What runs fails, and /ready is 503, until the launcher goes on."""
    before, pid = sacrificial.incarnation(), sacrificial.pids()[part]
    ready, sampling = sacrificial.url + "/ready", LONG | {"max_new_tokens": 1500}
    async with AsyncClient(sacrificial.ring) as client, httpx2.AsyncClient(timeout=SOON_S) as http:
        running = await client.submit(text="Once upon a time", sampling=sampling)
        os.kill(sacrificial.process.pid, signal.SIGSTOP)
        try:
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(RingError, match=f"{part} has ended, and the server's launcher"):
                await running.result()
            async with asyncio.timeout(SOON_S):
                while (await http.get(ready)).status_code != 503:
                    await asyncio.sleep(0.05)
        finally:
            os.kill(sacrificial.process.pid, signal.SIGCONT)
        async with asyncio.timeout(SOON_S):
            while ((await http.get(ready)).json()["ring"] or {}).get("incarnation", 0) <= before:
                await asyncio.sleep(0.05)
    await asyncio.to_thread(sacrificial.wait_ready)


async def until_silent(server: Server, part: str | None) -> int:
    """The status of /ready once it says that this process is silent, or that none is."""
    async with httpx2.AsyncClient(timeout=SOON_S) as http, asyncio.timeout(SOON_S):
        while True:
            answer = await http.get(server.url + "/ready")
            silent = (answer.json()["ring"] or {}).get("silent")
            if silent == ([] if part is None else [part]):
                return answer.status_code
            await asyncio.sleep(0.05)


@pytest.mark.full
def test_a_stopped_forker_ends_with_its_tokenizer(sacrificial: Server) -> None:
    """Nobody could read a text any more: the next tokenizer has a forker of its own."""
    before = hangs(sacrificial, "tokenizer")
    tokenizer = sacrificial.pids()["tokenizer"]
    children = Path(f"/proc/{tokenizer}/task/{tokenizer}/children").read_text().split()
    (forker,) = map(int, children)
    os.kill(forker, signal.SIGSTOP)
    assert gone([tokenizer, forker], SOON_S)
    deadline = time.monotonic() + SOON_S
    while hangs(sacrificial, "tokenizer") == before:  # until then it is ready as far as is known
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sacrificial.wait_ready()
    assert f"process {forker}, which forks the tokenizer's children, has not" in sacrificial.log()
    assert hangs(sacrificial, "tokenizer") == before + 1
    health = httpx2.get(sacrificial.url + "/health_generate", timeout=SOON_S)
    assert health.json()["evidence"] == "token"


def hangs(server: Server, part: str) -> float:
    """How often the part was lost by a hang; 0 before the first time."""
    name = f'srt_losses_total{{kind="hang",part="{part}"}} '
    lines = httpx2.get(server.url + "/metrics", timeout=SOON_S).text.splitlines()
    return float(next((line.removeprefix(name) for line in lines if line.startswith(name)), 0))
