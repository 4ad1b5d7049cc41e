"""Parts that hang without dying: they are found by their silence, and replaced."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from srt.client.face import AsyncClient
from srt.wire.errors import RingError
from tests.e2e.server import Server, gone, running_server
from tests.waiting import SOON_S

LONG: dict[str, Any] = {
    "max_new_tokens": 300,
    "ignore_eos": True,
    "temperature": 0.0,
    "speculative": "off",
}
LIMIT_S = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp = tmp_path_factory.mktemp("hangs")
    with running_server(tmp, "--step-timeout", str(LIMIT_S)) as server:
        yield server


@pytest.mark.parametrize("part", ["scheduler", "tokenizer", "detokenizer", "compiler", "gateway"])
async def test_a_part_that_stands_still_is_replaced(server: Server, part: str) -> None:
    """What it held fails or goes on, as at its death."""
    async with AsyncClient(server.ring) as client:
        running = await client.submit(text="Once upon a time", sampling=LONG)
        pid = server.pids()[part]
        os.kill(pid, signal.SIGSTOP)
        assert await asyncio.to_thread(gone, [pid], SOON_S)
        try:
            assert (await running.result()).completion_tokens == 300
            assert part != "detokenizer"
        except RingError:
            assert part in ("tokenizer", "detokenizer")
    await asyncio.to_thread(server.wait_ready)
    await asyncio.to_thread(server.wait_idle)
    assert f"{part} has been silent for {LIMIT_S:g} s" in server.log()
    metrics = httpx.get(server.url + "/metrics", timeout=SOON_S).text
    assert f'srt_losses_total{{kind="hang",part="{part}"}} 1.0' in metrics
