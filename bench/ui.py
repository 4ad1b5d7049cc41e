"""`python -m bench.ui`: what it costs that pages watch a server, and how fast the page draws.

* `stream`: output tokens per second while one client reads the page's events and draws nothing,
  and while none does, in turns.
* `pages`: CPU time of the server's processes per output token while 20 clients read them, and while
  none does, in turns.
* `frames`: frames per second of the page's tree in headless Chromium: 10,000 nodes, of which some
  change with each frame. Needs `playwright` and a Chromium on the PATH (or in SRT_BROWSER).

The load is a closed loop: prompts that begin alike in groups and then go on by chance, so that the
tree has many nodes.
"""

import argparse
import asyncio
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from bench.cpu_time import descendants
from srt.benchmark.summary import now
from srt.client.face import AsyncClient
from srt.machine import machine

PARTS = ("stream", "pages", "frames")
GROUPS, GROUP_WORDS, OWN_WORDS = 12, 80, 20
WORDS = ("river", "stone", "amber", "window", "harbour", "seven", "lantern", "meadow", "copper")
NODES = 10_000
FRAMES_S = 5.0


class Server(NamedTuple):
    """A server of our own: where it is, its page's key, and its launcher."""

    url: str
    key: str
    pid: int

    def cpu_s(self) -> float:
        """CPU time of all of its processes so far."""
        return sum(_cpu_s(pid) for pid in [self.pid, *descendants(self.pid)])


class Phase(NamedTuple):
    """What the load got in some seconds."""

    tokens_per_s: float
    cpu_ms_per_token: float
    num_bytes: int  # that one page has read, per second


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ui", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--pairs", type=int, default=10, help="phases with pages, and without")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a phase")
    parser.add_argument("--concurrency", type=int, default=16)
    return parser.parse_args(argv)


@contextmanager
def running() -> Iterator[Server]:
    """A server with default options."""
    command = [sys.executable, "-m", "srt.launch", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        seen = ""
        while "ready   http" not in seen:
            line = process.stderr.readline()
            if not line:
                raise SystemExit(f"the server has ended:\n{seen}")
            seen += line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        found = re.search(r"(http://[^/\s]+)/#key=(\S+)", seen)
        assert found is not None, seen
        yield Server(found[1], found[2], process.pid)
    finally:
        process.terminate()
        process.wait()


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """Requests without an end, `concurrency` at a time."""

    def __init__(self, client: AsyncClient, concurrency: int) -> None:
        self._client = client
        self._random = random.Random(1)
        self._groups = [self._words(GROUP_WORDS) for _ in range(GROUPS)]
        self._tasks = [asyncio.create_task(self._go_on()) for _ in range(concurrency)]

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))

    async def _go_on(self) -> None:
        while True:
            prompt = f"{self._random.choice(self._groups)} {self._words(OWN_WORDS)}"
            sampling = {"max_new_tokens": 48, "temperature": 1.0, "ignore_eos": True}
            await self._client.generate(prompt, sampling=sampling)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def read_page(server: Server, counts: list[int]) -> None:
    """Read the events and draw nothing; adds up their bytes."""
    headers = {"authorization": f"Bearer {server.key}"}
    async with (
        httpx2.AsyncClient(timeout=30) as http,
        http.stream("GET", f"{server.url}/ui/events", headers=headers) as response,
    ):
        response.raise_for_status()
        async for piece in response.aiter_raw():
            counts[0] += len(piece)


async def phase(server: Server, client: AsyncClient, num_pages: int, seconds: float) -> Phase:
    """Measure the load that runs while so many pages read."""
    counts = [[0] for _ in range(num_pages)]
    pages = [asyncio.create_task(read_page(server, count)) for count in counts]
    await asyncio.sleep(1.0)  # what a new page gets at first is not what is measured
    for count in counts:
        count[0] = 0
    began, cpu_s, tokens = time.perf_counter(), server.cpu_s(), await _tokens(client)
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    made = await _tokens(client) - tokens
    spent_s = server.cpu_s() - cpu_s
    for page in pages:
        assert not page.done(), page
        page.cancel()
    await asyncio.gather(*pages, return_exceptions=True)
    num_bytes = counts[0][0] if counts else 0
    return Phase(made / took, 1000 * spent_s / made, int(num_bytes / took))


async def _tokens(client: AsyncClient) -> float:
    return float((await client.stats())["generation_tokens_total"])


async def compare(server: Server, args: argparse.Namespace, num_pages: int) -> list[Any]:
    """A row: the ratios of phases with pages to their neighbours without."""
    async with AsyncClient(server.url) as client:
        load = Load(client, args.concurrency)
        await asyncio.sleep(args.seconds / 2)
        rates, costs, num_bytes = [], [], 0
        for number in range(args.pairs):
            order = (num_pages, 0) if number % 2 else (0, num_pages)
            found = {count: await phase(server, client, count, args.seconds) for count in order}
            watched, alone = found[num_pages], found[0]
            rates.append(watched.tokens_per_s / alone.tokens_per_s)
            costs.append(watched.cpu_ms_per_token / alone.cpu_ms_per_token)
            num_bytes = max(num_bytes, watched.num_bytes)
        await load.end()
    return [num_pages, _mean(rates), _mean([1 / cost for cost in costs]), num_bytes]


def _mean(ratios: Sequence[float]) -> str:
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return f"{statistics.mean(ratios):.3f} +- {error:.3f}"


async def frames(server: Server) -> dict[str, Any]:
    """Frames per second of the tree's drawing with NODES nodes, in headless Chromium."""
    from playwright.async_api import async_playwright

    path = os.environ.get("SRT_BROWSER") or shutil.which("chromium") or shutil.which("chrome")
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=path, args=options)
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.goto(f"{server.url}/")
        found: dict[str, Any] = await page.evaluate(
            "async ([nodes, seconds]) => "
            "(await import('/ui/tree/trial.js')).drawMany(nodes, seconds)",
            [NODES, FRAMES_S],
        )
        await browser.close()
    return found


async def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    print(f"{now()}  {machine()}")
    with running() as server:
        print("| pages | tokens/s, of without | tokens per CPU time | bytes/s of a page, most |")
        print("| ----: | -------------------: | ------------------: | ----------------------: |")
        for part, num_pages in (("stream", 1), ("pages", 20)):
            if part in args.parts:
                print("|", " | ".join(map(str, await compare(server, args, num_pages))), "|")
        if "frames" in args.parts:
            print("frames:", await frames(server))


if __name__ == "__main__":
    asyncio.run(main())
