"""Parts that hang without dying: they are found by their silence, and replaced."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.wire.errors import RingError
from tests.e2e.sacrificial import STEP_TIMEOUT_S
from tests.e2e.server import Server, gone
from tests.waiting import SOON_S

LONG: dict[str, Any] = {
    "max_new_tokens": 300,
    "ignore_eos": True,
    "temperature": 0.0,
    "speculative": "off",
}


pytestmark = pytest.mark.full


@pytest.mark.parametrize("part", ["scheduler", "tokenizer", "detokenizer", "compiler", "gateway"])
async def test_a_part_that_stands_still_is_replaced(sacrificial: Server, part: str) -> None:
    """What it held fails or goes on, as at its death."""
    async with AsyncClient(sacrificial.ring) as client:
        before = await asyncio.to_thread(hangs, sacrificial, part)
        running = await client.submit(text="Once upon a time", sampling=LONG)
        pid = sacrificial.pids()[part]
        os.kill(pid, signal.SIGSTOP)
        assert await asyncio.to_thread(gone, [pid], SOON_S)
        try:
            assert (await running.result()).completion_tokens == 300
            assert part != "detokenizer"
        except RingError:
            assert part in ("tokenizer", "detokenizer")
    await asyncio.to_thread(sacrificial.wait_ready)
    await asyncio.to_thread(sacrificial.wait_idle)
    assert f"{part} has been silent for {STEP_TIMEOUT_S:g} s" in sacrificial.log()
    assert hangs(sacrificial, part) == before + 1


def test_a_stopped_forker_ends_with_its_tokenizer(sacrificial: Server) -> None:
    """Nobody could read a text any more: the next tokenizer has a forker of its own."""
    before = hangs(sacrificial, "tokenizer")
    tokenizer = sacrificial.pids()["tokenizer"]
    children = Path(f"/proc/{tokenizer}/task/{tokenizer}/children").read_text().split()
    (forker,) = map(int, children)
    os.kill(forker, signal.SIGSTOP)
    assert gone([tokenizer, forker], SOON_S)
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
