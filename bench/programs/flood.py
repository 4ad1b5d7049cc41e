"""A flood of throughput calls, one program, and requests of the class `latency` beside it.

"step": the median time between two tokens of such a request during the flood.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bench.programs.clients import body_of, made
from bench.programs.pairs import Bench, Benches
from bench.programs.workloads import fan, sampling
from srt.wire.programs import Perf

COLUMNS = ("work", "flood s", "TTFT idle ms", "TTFT ms", "longest ms", "step ms", "at most ms")
FLOOD_TOKENS, FLOOD_OUTPUTS = 20, 4
PROBE_TOKENS, PROBE_OUTPUTS = 200, 8
IDLE_PROBES = 5
PAUSE_S = 1.0  # between two probes
_EVENT = b"data: {"


class Probe(NamedTuple):
    """Seconds until the first token of a request, and between its tokens."""

    first_s: float
    steps_s: list[float]


async def flood(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    """The requests beside the flood are without the delay, which would hide their times."""
    near, calls = benches.near, args.flood
    await near.ready()
    idle = [await _probe(near) for _ in range(IDLE_PROBES)]
    load = fan(near.chunks(), FLOOD_TOKENS, FLOOD_OUTPUTS, calls)
    async with near.sessions(1) as (session,):
        began = time.perf_counter()
        running = asyncio.create_task(made(session, load, Perf("throughput")))
        probes = [await _probe(near)]
        while not running.done():
            await asyncio.wait([running], timeout=PAUSE_S)
            if not running.done():
                probes.append(await _probe(near))
        await running
        flood_s = time.perf_counter() - began
    return [_row(calls, flood_s, idle, probes)]


def _row(calls: int, flood_s: float, idle: Sequence[Probe], probes: Sequence[Probe]) -> list[str]:
    idle_s = statistics.median(probe.first_s for probe in idle)
    firsts = [probe.first_s for probe in probes]
    step_s = statistics.median(itertools.chain.from_iterable(probe.steps_s for probe in probes))
    times = idle_s, statistics.median(firsts), max(firsts), step_s, 2 * idle_s + step_s
    return [f"{calls} calls", f"{flood_s:.1f}", *(f"{1e3 * each:.0f}" for each in times)]


async def _probe(bench: Bench) -> Probe:
    """A request of the class `latency`."""
    prompt, hints = bench.chunks()(PROBE_TOKENS), {"perf": "latency"}
    body = body_of(prompt, sampling(PROBE_OUTPUTS), hints=hints, stream=True)
    began, times = time.perf_counter(), []
    async with bench.http.stream("POST", "/generate", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.encode().startswith(_EVENT):
                msgspec.json.decode(line.removeprefix("data: "))
                times.append(time.perf_counter())
    return Probe(times[0] - began, [b - a for a, b in itertools.pairwise(times)])
