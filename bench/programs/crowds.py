"""Many programs at once, and programs beside chats that have nothing to do with them.

"ratio": the mean time until a program is done, of the clients over that of the programs. "longest":
of each program its time over that of its client, the median over the pairs; of these the greatest.
"""

import argparse
import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from bench.programs.clients import Caller, generated, submitted
from bench.programs.pairs import NOTHING, Bench, Benches, spread, timed
from bench.programs.workloads import Chunk, Workload, chain, map_reduce, sampling
from srt.client.programs import ProgramSession

COLUMNS = ("work", "one by one s", "program s", "ratio", "longest", "chats", "asked")
ONE_BY_ONE, AS_PROGRAM = 0, 1
CHAIN_CALLS, CHAIN_TOKENS, CHAIN_OUTPUTS = 10, 60, 25
MAPS, MAP_TOKENS, MAP_OUTPUTS = 8, 100, 25
BESIDE_CHAINS, BESIDE_CALLS = 1, 10
CHAT_TOKENS, CHAT_OUTPUTS = 100, 40
CHAT_LOAD = 0.8  # of what the server can do
CHAT_LEAD_S = 2.0  # before the chains
CALIBRATION_CHATS = 24
CHATS_FOR_S = 10.0


class Chats(NamedTuple):
    """Prompts of requests that come one after the other, and when, in seconds."""

    prompts: list[str]
    arrivals_s: list[float]

    @classmethod
    def drawn(cls, chunk: Chunk, rate: float, for_s: float, seed: int) -> "Chats":
        """So many a second, at random times, the same ones for a seed."""
        rng, arrivals_s = random.Random(seed), [0.0]
        while arrivals_s[-1] < for_s:
            arrivals_s.append(arrivals_s[-1] + rng.expovariate(rate))
        return cls([chunk(CHAT_TOKENS) for _ in arrivals_s], arrivals_s)

    async def run(self, bench: Bench, **fields: Any) -> list[float]:
        """How long each takes, in seconds."""

        async def chat(prompt: str, arrival_s: float) -> float:
            await asyncio.sleep(arrival_s)
            return (await timed(generated(bench.http, prompt, sampling(CHAT_OUTPUTS), **fields)))[0]

        return await asyncio.gather(*map(chat, self.prompts, self.arrivals_s))


NO_CHATS = Chats([], [])


class Work(NamedTuple):
    """Programs that run at once, and chats beside them."""

    loads: list[Workload]
    chats: Chats = NO_CHATS

    @property
    def num_calls(self) -> int:
        return sum(len(load.program.calls) for load in self.loads) + len(self.chats.prompts)


Draw = Callable[[Bench, int], Work]


Way = Callable[[Workload, ProgramSession], Awaitable[dict[str, str]]]


async def as_program(load: Workload, session: ProgramSession) -> dict[str, str]:
    return await submitted(session, load)


def called_near(benches: Benches, *, with_hints: bool) -> Way:
    """What the server would do without groups, or without hints: the calls one by one, without a
    delay, and one round trip."""

    async def run(load: Workload, session: ProgramSession) -> dict[str, str]:
        await asyncio.sleep(benches.far.round_trip_s / 2)
        app = session.id if with_hints else ""
        texts = await Caller(benches.near.http, app).run(load)
        await asyncio.sleep(benches.far.round_trip_s / 2)
        return texts

    return run


class Crowd(NamedTuple):
    """Seconds of each program and of each chat, call by call and as programs."""

    programs_s: list[list[float]]
    chats_s: list[list[float]]

    @property
    def ratio(self) -> float:
        return _ratio(self.programs_s)

    @property
    def chat_ratio(self) -> float:
        return _ratio(self.chats_s)


def _ratio(seconds: list[list[float]]) -> float:
    return statistics.mean(seconds[ONE_BY_ONE]) / statistics.mean(seconds[AS_PROGRAM])


async def crowd(bench: Bench, work: Work, first: int, way: Way = as_program) -> Crowd:
    """All the work at once call by call, and by `way`, each with an empty cache; the former begins
    unless it is not `first`. Chats come before the programs and meanwhile."""
    found, texts = Crowd([[], []], [[], []]), [[NOTHING], [NOTHING]]
    async with bench.sessions(len(work.loads)) as sessions:
        for number in (first, 1 - first):
            await bench.ready(work.num_calls)
            others = asyncio.create_task(work.chats.run(bench))
            await asyncio.sleep(CHAT_LEAD_S if work.chats.prompts else 0.0)
            caller = Caller(bench.http)
            runs = [
                way(load, session) if number == AS_PROGRAM else caller.run(load)
                for load, session in zip(work.loads, sessions, strict=True)
            ]
            done = await asyncio.gather(*map(timed, runs))
            found.programs_s[number][:] = [seconds for seconds, _ in done]
            texts[number] = [text for _, text in done]
            found.chats_s[number][:] = await others
    assert texts[0] == texts[1], "both ways give the same texts"
    return found


async def chains_at_once(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    return [
        crowd_row(f"{n} chains of {CHAIN_CALLS}", await crowds(benches.far, chains(n)), 1.3)
        for n in (args.crowd, args.many)
    ]


async def map_reduces_at_once(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    found = await crowds(benches.far, map_reduces(args.crowd))
    return [crowd_row(f"{args.crowd} map-reduces of {MAPS}", found, 1.4)]


async def chains_beside_chats(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    rate = CHAT_LOAD * await chat_capacity(benches.near)
    found = await crowds(benches.far, beside_chats(rate))
    name = f"{BESIDE_CHAINS} chain of {BESIDE_CALLS} beside {rate:.1f} chats/s"
    return [crowd_row(name, found, 1.5)]


def chains(number: int) -> Draw:
    """So many chains at once."""

    def draw(bench: Bench, turn: int) -> Work:
        chunks = [bench.chunks() for _ in range(number)]
        return Work([chain(one, CHAIN_TOKENS, CHAIN_OUTPUTS, CHAIN_CALLS) for one in chunks])

    return draw


def map_reduces(number: int) -> Draw:
    """So many map-reduces at once."""

    def draw(bench: Bench, turn: int) -> Work:
        chunks = [bench.chunks() for _ in range(number)]
        return Work([map_reduce(one, MAP_TOKENS, MAP_OUTPUTS, MAPS) for one in chunks])

    return draw


def beside_chats(rate: float) -> Draw:
    """A few chains, and so many chats a second."""

    def draw(bench: Bench, turn: int) -> Work:
        chunks = [bench.chunks() for _ in range(BESIDE_CHAINS)]
        loads = [chain(one, CHAIN_TOKENS, CHAIN_OUTPUTS, BESIDE_CALLS) for one in chunks]
        return Work(loads, Chats.drawn(bench.chunks(), rate, CHATS_FOR_S, turn))

    return draw


async def crowds(bench: Bench, draw: Draw, way: Way = as_program) -> list[Crowd]:
    """One for each pair."""
    return [await crowd(bench, draw(bench, turn), turn % 2, way) for turn in range(bench.num_pairs)]


async def chat_capacity(near: Bench) -> float:
    """Chats a second, when there are always some."""
    chunk = near.chunks()
    prompts = [chunk(CHAT_TOKENS) for _ in range(CALIBRATION_CHATS)]
    await near.ready(CALIBRATION_CHATS)
    run = Chats(prompts, [0.0] * CALIBRATION_CHATS).run(near)
    seconds, _ = await timed(run)
    return CALIBRATION_CHATS / seconds


def crowd_row(name: str, crowds: Sequence[Crowd], asked: float) -> list[str]:
    """The times are medians over the pairs of means over the programs."""
    means = [
        statistics.median(statistics.mean(each.programs_s[way]) for each in crowds)
        for way in (ONE_BY_ONE, AS_PROGRAM)
    ]
    chats = [each.chat_ratio for each in crowds if each.chats_s[0]]
    return [
        name,
        *(f"{mean:.2f}" for mean in means),
        spread([each.ratio for each in crowds]),
        f"{longest(crowds):.2f}",
        spread(chats) if chats else "",
        f"{asked:.2f}",
    ]


def longest(crowds: Sequence[Crowd]) -> float:
    """See the module's "longest"."""
    shares: list[list[float]] = [
        [program / client for client, program in zip(*each.programs_s, strict=True)]
        for each in crowds
    ]
    return max(statistics.median(pair[i] for pair in shares) for i in range(len(shares[0])))
