"""A server that loses its parts 200 times under load leaks nothing, and no request fails with a
scheduler."""

import asyncio
import os
import random
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from srt.client.face import AsyncClient
from srt.client.many import patiently
from srt.wire.errors import OVERLOADED, RequestError, RingError
from tests.e2e.server import Server, running_server
from tests.waiting import SOON_S

PLACES = 24
LOSSES = 200
SETTLED_AFTER = 6  # looks at a new process
OTHERS = {7: "compiler", 11: "gateway", 15: "tokenizer", 19: "detokenizer"}  # of 20 losses
GROWTH_BYTES = 24 * 1024 * 1024  # allocators keep some; a lost batch's ids would add up to more
PROMPTS = [f"Story {number} of {number * 7} begins" + " once more" * number for number in range(12)]


def sampling_of(number: int) -> dict[str, Any]:
    """Of the request `number`: drawn, with a grammar or penalties, or plain."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.8, "seed": number},
        {"temperature": 0.0, "regex": "([a-z]{2,7} ){25}"},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"temperature": 0.0, "stop": ["\n\n"]},
    ]
    return {"max_new_tokens": 80, **kinds[number % len(kinds)]}


class Weights:
    """What the processes hold, but the scheduler, whose next one starts anew."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._settled: dict[int, tuple[int, int]] = {}  # by pid: bytes and files, once settled
        self._looks: Counter[int] = Counter()

    def look(self) -> None:
        """No process has grown."""
        pids = self._server.pids() | {"launcher": self._server.process.pid}
        for name in pids.keys() - {"scheduler"}:
            pid = pids[name]
            self._looks[pid] += 1
            size, files = weight(pid)
            if self._looks[pid] <= SETTLED_AFTER:
                self._settled[pid] = size, files
            most_bytes, most_files = self._settled[pid]
            assert size < most_bytes + GROWTH_BYTES, (name, self._looks[pid])
            assert files <= most_files + 2, (name, self._looks[pid])


class Load:
    """Requests that never stop coming; each answer is compared with the first of its kind."""

    def __init__(self, clients: list[AsyncClient]) -> None:
        self._clients = clients
        self._expected: dict[int, str] = {}
        self.done = 0
        self.may_fail = False  # a part is lost without which requests fail
        self.ends = False

    async def work(self, worker: int) -> None:
        client, rng = self._clients[worker % len(self._clients)], random.Random(worker)
        while not self.ends:
            number = rng.randrange(len(PROMPTS))
            may_fail = self.may_fail
            try:
                text = await patiently(partial(self._ask, client, number))
            except RingError:
                assert may_fail or self.may_fail
                await asyncio.sleep(0.1)
                continue
            assert self._expected.setdefault(number, text) == text
            self.done += 1

    async def _ask(self, client: AsyncClient, number: int) -> str:
        output = await client.generate(PROMPTS[number], sampling=sampling_of(number))
        return output.text


def weight(pid: int) -> tuple[int, int]:
    """The bytes that a process holds in memory, and its open files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


async def lose(server: Server, part: str, client: AsyncClient) -> None:
    """Kill a part, and wait until all are there again."""
    pids = await asyncio.to_thread(server.pids)
    os.kill(pids[part], signal.SIGKILL)
    async with asyncio.timeout(SOON_S):
        while (await asyncio.to_thread(server.pids)).get(part, pids[part]) == pids[part]:
            await asyncio.sleep(0.02)
        await client._transport.wait_ready()
    await asyncio.to_thread(server.wait_ready)


@pytest.mark.slow
async def test_two_hundred_losses_under_load(tmp_path: Path) -> None:
    rng = random.Random(5)
    options = ("--max-queued-requests", str(PLACES), "--max-total-tokens", "32768")
    with running_server(tmp_path, *options) as server:
        weights = Weights(server)
        async with AsyncClient(server.ring) as one, AsyncClient(server.ring) as other:
            load = Load([one, other])
            async with asyncio.TaskGroup() as group:
                for number in range(PLACES):
                    group.create_task(load.work(number))
                for number in range(LOSSES):
                    part = OTHERS.get(number % 20, "scheduler")
                    load.may_fail = part in ("tokenizer", "detokenizer")
                    await lose(server, part, one)
                    done = load.done + rng.randint(0, 40)
                    async with asyncio.timeout(SOON_S):
                        while load.done < done:
                            await asyncio.sleep(0.02)
                    weights.look()
                load.ends = True
            await asyncio.to_thread(server.wait_idle)
            await check_places(one)
        assert load.done > LOSSES


async def check_places(client: AsyncClient) -> None:
    """As many requests have a place as at the beginning, and not one more."""
    long: dict[str, Any] = {"max_new_tokens": 300, "ignore_eos": True, "speculative": "off"}
    running = [await client.submit(text="Once", sampling=long) for _ in range(PLACES)]
    with pytest.raises(RequestError) as refusal:
        await client.submit(text="One more", sampling=long)
    assert refusal.value.info.code == OVERLOADED
    for generation in running:
        assert (await generation.result()).completion_tokens == 300
