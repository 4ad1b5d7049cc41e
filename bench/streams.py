"""Steady greedy streams, whose inter-token latencies show what else a server does."""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

from srt.client.face import AsyncClient

PROMPT = "The history of the city begins with"
SETTLE_S = 0.3  # of a phase, before latencies count


async def steady_streams(
    clients: Sequence[AsyncClient], count: int, seconds: float
) -> tuple[list[float], list[BaseException]]:
    """Inter-token latencies in ms of `count` streams of each client that run for `seconds`, and
    the errors that ended streams early."""
    found: list[float] = []
    tasks = [
        asyncio.create_task(_stream(client, found)) for client in clients for _ in range(count)
    ]
    done, running = await asyncio.wait(tasks, timeout=seconds + SETTLE_S)
    errors = [task.exception() or RuntimeError("it ended") for task in done]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return found, errors


async def _stream(client: AsyncClient, found: list[float]) -> None:
    sampling = {"max_new_tokens": 4000, "temperature": 0.0, "ignore_eos": True}
    started, times = time.perf_counter(), []
    try:
        outputs = client.stream(PROMPT, sampling=sampling)
        while await anext(outputs, None) is not None:
            times.append(time.perf_counter())
    finally:
        counted = [moment for moment in times if moment - started > SETTLE_S]
        found += [1000 * (b - a) for a, b in pairwise(counted)]
