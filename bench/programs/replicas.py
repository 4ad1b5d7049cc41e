"""Chats and map-reduces at once on two replicas: placed by the server, and by hand, the chats on
one and the map-reduces on the other.

What is placed by hand is called one by one, since a program names no replica; its client is near,
and the one round trip of a program is added to its time. "ratio": the server's time over that.
"""

import argparse
import asyncio
import statistics
from collections.abc import Awaitable
from typing import NamedTuple

from bench.programs.clients import Caller, made
from bench.programs.crowds import (
    MAP_OUTPUTS,
    MAP_TOKENS,
    MAPS,
    Chats,
    chat_capacity,
)
from bench.programs.pairs import Benches, spread, timed
from bench.programs.workloads import Workload, map_reduce
from srt.wire.programs import Perf

COLUMNS = ("work", "by hand s", "by the server s", "ratio", "asked")
BY_HAND, BY_SERVER = 0, 1
CHATS_ON, MAP_REDUCES_ON = 0, 1
MAP_REDUCES = 4
CHAT_LOAD = 0.12  # of both replicas, so that few are above a caller's share of the class
CHATS_FOR_S = 8.0
ASKED = 1.15
LATENCY, THROUGHPUT = {"perf": "latency"}, {"perf": "throughput"}


class Mixed(NamedTuple):
    """Mean seconds of chats and of map-reduces."""

    chats_s: float
    map_reduces_s: float


async def mixed(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    far, found = benches.far, []
    rate = CHAT_LOAD * await chat_capacity(benches.near)
    for number in range(far.num_pairs):
        chats = Chats.drawn(far.chunks(), rate, CHATS_FOR_S, number)
        loads = [
            map_reduce(far.chunks(), MAP_TOKENS, MAP_OUTPUTS, MAPS) for _ in range(MAP_REDUCES)
        ]
        pair = {}
        for way in (number % 2, 1 - number % 2):
            pair[way] = await _mixed(benches, chats, loads, way)
        found.append((pair[BY_HAND], pair[BY_SERVER]))
    names = f"{rate:.1f} chats/s", f"{MAP_REDUCES} map-reduces of {MAPS}"
    return [_row(name, [(a[i], b[i]) for a, b in found]) for i, name in enumerate(names)]


async def _mixed(benches: Benches, chats: Chats, loads: list[Workload], way: int) -> Mixed:
    far, near = benches
    place = {"routed_replica": CHATS_ON} if way == BY_HAND else {}
    calls = sum(len(load.program.calls) for load in loads)
    await near.ready(calls)
    await far.ready(len(chats.prompts))
    async with far.sessions(len(loads)) as sessions:
        others = asyncio.create_task(chats.run(far, hints=LATENCY, **place))
        caller = Caller(near.http, hints=THROUGHPUT, routed_replica=MAP_REDUCES_ON)
        runs: list[Awaitable[object]] = [
            made(session, load, Perf("throughput")) if way == BY_SERVER else caller.run(load)
            for load, session in zip(loads, sessions, strict=True)
        ]
        done = await asyncio.gather(*map(timed, runs))
        more_s = far.round_trip_s if way == BY_HAND else 0.0
        chats_s = statistics.mean(await others)
    return Mixed(chats_s, statistics.mean(seconds for seconds, _ in done) + more_s)


def _row(name: str, pairs: list[tuple[float, float]]) -> list[str]:
    return [
        name,
        *(f"{statistics.median(pair[way] for pair in pairs):.2f}" for way in (BY_HAND, BY_SERVER)),
        spread([pair[BY_SERVER] / pair[BY_HAND] for pair in pairs]),
        f"at most {ASKED}",
    ]
