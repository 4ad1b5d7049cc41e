"""`python -m bench.fairness.flood`: the time to a first token beside a flood.

A thousand requests of the class `throughput` are sent at once, and now and then one of the class
`latency`: on an idle server, in the flood, and on the idle server again. The flood's own wait
exceeds `--schedule-max-wait`. A step is the median time between two tokens of the flood's streams.
Figures are medians; the exit status is 1 if the time in the flood is above twice that on an idle
server and a step, or if a request of the flood does not end.
"""

import argparse
import asyncio
import random
import shlex
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx2

from bench.peers.catalogue import Srt
from bench.peers.process import running
from srt.files.model_files import DEFAULT_MODEL, resolve_model

PROMPT_TOKENS, OUTPUTS = 128, 8
FLOOD_PROMPT, FLOOD_OUTPUTS = 8, 4
APART_S = 0.5  # from the end of one for latency to the next
SERVER = (
    "--max-running-requests 8 --max-queued-requests 2000 --max-queue-wait 0 --schedule-max-wait 1"
)
TIMEOUT_S = 1200.0


class Times(NamedTuple):
    """Seconds until the first token, and between the others."""

    first_s: float
    gaps_s: list[float]


async def _ask(http: httpx2.AsyncClient, length: int, outputs: int, perf: str) -> Times:
    """The times of one request, whose prompt is random."""
    body: dict[str, Any] = {"stream": True, "hints": {"perf": perf}}
    body["input_ids"] = [random.randrange(1000, 40000) for _ in range(length)]
    body["sampling_params"] = {"max_new_tokens": outputs, "ignore_eos": True, "temperature": 0}
    began = time.perf_counter()
    async with http.stream("POST", "/generate", json=body) as response:
        response.raise_for_status()
        lines = response.aiter_lines()
        times = [time.perf_counter() async for line in lines if line.startswith("data: {")]
    return Times(times[0] - began, [after - before for before, after in pairwise(times)])


async def _latency(http: httpx2.AsyncClient, count: int) -> list[float]:
    """The times to first tokens, one after the other."""
    found = []
    for _ in range(count):
        found.append((await _ask(http, PROMPT_TOKENS, OUTPUTS, "latency")).first_s)
        await asyncio.sleep(APART_S)
    return found


async def measure(url: str, flood: int, count: int) -> bool:
    """Print the figures; whether they are met."""
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as http:
        await _latency(http, 4)
        idle = await _latency(http, count)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            asked = (_ask(http, FLOOD_PROMPT, FLOOD_OUTPUTS, "throughput") for _ in range(flood))
            tasks = [group.create_task(each) for each in asked]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            busy = []
            while sum(task.done() for task in tasks) < 0.95 * flood:
                busy += await _latency(http, 1)
        took_s = time.perf_counter() - began
        idle += await _latency(http, count)
    times = [task.result() for task in tasks]
    step_s = median(gap for each in times for gap in each.gaps_s)
    bound_s = 2 * median(idle) + step_s
    print(f"idle {1e3 * median(idle):.0f} ms, {len(idle)} requests")
    print(f"in the flood {1e3 * median(busy):.0f} ms (longest {1e3 * max(busy):.0f}), {len(busy)}")
    print(f"a step {1e3 * step_s:.0f} ms; twice idle and a step {1e3 * bound_s:.0f} ms")
    longest_s = max(each.first_s for each in times)
    print(f"the flood of {flood} ended after {took_s:.0f} s; longest wait {longest_s:.0f} s")
    return median(busy) <= bound_s


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness.flood", description=__doc__)
    parser.add_argument("--flood", type=int, default=1000, help="requests at once")
    parser.add_argument("--count", type=int, default=10, help="for latency, before and after")
    parser.add_argument("--server-args", default="", help="options for the server, in one string")
    args = parser.parse_args(argv)
    options = shlex.split(SERVER) + shlex.split(args.server_args)

    async def run() -> bool:
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory) / "log"
            async with running(Srt(), resolve_model(DEFAULT_MODEL).path, log, options) as url:
                return await measure(url, args.flood, args.count)

    return 0 if asyncio.run(run()) else 1


if __name__ == "__main__":
    sys.exit(main())
