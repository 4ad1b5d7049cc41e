"""One program at a time: a chain, a map-reduce, and agents in rounds.

"saved": of the round trips between calls that follow one another, what the program has saved.
"bound": R(t + w) / (t + R w) for R calls after one another that work w each, and a round trip t.
The work is that of the program without a delay.
"""

import argparse
import statistics

from bench.programs.pairs import Bench, Benches, Pair, row
from bench.programs.workloads import CHAIN_CALLS, Workload, chain, coding, map_reduce

COLUMNS = ("work", "one by one s", "program s", "ratio", "saved", "bound", "asked")
# The shares of a round trip that a call of the chain works, by its output tokens.
CHAIN_WORK = {25: 1.0, 50: 1.5, 100: 3.0}
CHAIN_BARS = {25: 1.7, 50: 1.5, 100: 1.2}
MAP_TOKENS, MAP_OUTPUTS = 400, 50
CODING_OUTPUTS = 30
PROBE_TOKENS, PROBE_SHORT, CALIBRATIONS = 400, 8, 2


async def chains(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    return [await _chain_row(*benches, outputs) for outputs in args.outputs]


async def map_reduces(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    return [await _map_reduce_row(each) for each in benches]


async def _map_reduce_row(bench: Bench) -> list[str]:
    loads = iter(lambda: map_reduce(bench.chunks(), MAP_TOKENS, MAP_OUTPUTS), None)
    pairs, _ = await bench.pairs(loads)
    name = f"map-reduce, 16 maps, {bench.round_trip_s * 1e3:.0f} ms"
    return row(name, pairs, "", "", "1.00")


async def codings(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    return [await _coding_row(*benches, agents) for agents in args.agents]


async def _chain_row(far: Bench, near: Bench, outputs: int) -> list[str]:
    share = CHAIN_WORK.get(outputs, 1.0)
    tokens = await _chunk_tokens(near, outputs, share * far.round_trip_s)
    pairs, workload = await far.pairs(iter(lambda: chain(far.chunks(), tokens, outputs), None))
    alone = await near.pair(workload, 1)
    inner = (workload.rounds - 1) * far.round_trip_s
    lost = [pair.program_s - far.round_trip_s - alone.program_s for pair in pairs]
    saved = 1 - statistics.median(lost) / inner
    call_s = alone.program_s / workload.rounds
    name = f"chain of 20, {outputs} outputs, parts of {tokens} tokens, {call_s * 1e3:.0f} ms a call"
    bar = f"{CHAIN_BARS.get(outputs, 1.0):.2f}"
    return row(name, pairs, f"{saved:.1%}", bound(workload, far, alone), bar)


async def _chunk_tokens(near: Bench, outputs: int, work_s: float) -> int:
    """How long a part of the chain must be for a call that works for so long."""
    tokens = PROBE_TOKENS
    for _ in range(CALIBRATIONS):
        done = await near.pair(chain(near.chunks(), tokens, outputs), 1)
        short = await near.pair(chain(near.chunks(), PROBE_SHORT, outputs), 1)
        per_token = (done.program_s - short.program_s) / (tokens - PROBE_SHORT)
        missing_s = work_s * CHAIN_CALLS - short.program_s
        tokens = max(PROBE_SHORT + 1, PROBE_SHORT + round(missing_s / per_token))
    return tokens


async def _coding_row(far: Bench, near: Bench, agents: int) -> list[str]:
    loads = iter(lambda: coding(far.chunks(), agents, CODING_OUTPUTS), None)
    pairs, workload = await far.pairs(loads)
    alone = await near.pair(workload, 1)
    limit = bound(workload, far, alone)
    return row(f"coding, {agents} agents", pairs, "", limit, f"{0.9 * float(limit):.2f}")


def bound(workload: Workload, far: Bench, alone: Pair) -> str:
    rounds, trip_s = workload.rounds, far.round_trip_s
    work_s = alone.program_s / rounds
    return f"{rounds * (trip_s + work_s) / (trip_s + rounds * work_s):.2f}"
