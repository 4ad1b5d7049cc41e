"""Local replicas and those of agents, of one server, in turns."""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from bench.constrained import interval
from bench.cpu_time import seconds_of
from bench.machines.ring import ring
from bench.roofline import TablePrinter
from srt.client.face import AsyncClient
from tests.e2e.machines import Machine
from tests.e2e.server import Server

NAMES = ("local", "local, again", "agent", "agent, delayed")  # by replica
COLUMNS = (
    "replica",
    "at once",
    "time",
    "95 % interval",
    "first token, ms",
    "more than local",
    "ms per token",
    "time per token",
    "95 % interval",
    "hub, us CPU/token",
    "agent",
    "same texts",
)
WORDS = 12  # of each prompt, about twice as many tokens


class Sample(NamedTuple):
    """Requests at once at one replica: seconds of all, means of their first tokens' and of those
    of each further token, CPU seconds of hub and agent meanwhile, texts."""

    wall_s: float
    first_s: float
    token_s: float
    hub_s: float
    agent_s: float
    texts: list[str]


class Bench:
    """Asks one server's replicas; `agents` are those of the last ones."""

    def __init__(self, client: AsyncClient, head: Server, agents: Sequence[Machine]) -> None:
        self._client, self._hub = client, head.pids()["hub"]
        local = len(NAMES) - len(agents)
        self._agents = {local + i: agent.process.pid for i, agent in enumerate(agents)}

    async def sample(self, replica: int, prompts: Sequence[str], outputs: int) -> Sample:
        agent = self._agents.get(replica)
        hub_s, agent_s = seconds_of(self._hub), seconds_of(agent) if agent else 0.0
        began = time.perf_counter()
        found = await asyncio.gather(*(self._one(replica, each, outputs) for each in prompts))
        wall_s = time.perf_counter() - began
        return Sample(
            wall_s,
            fmean(first_s for first_s, _, _ in found),
            fmean(token_s for _, token_s, _ in found),
            seconds_of(self._hub) - hub_s,
            seconds_of(agent) - agent_s if agent else 0.0,
            [text for _, _, text in found],
        )

    async def _one(self, replica: int, prompt: str, outputs: int) -> tuple[float, float, str]:
        """Seconds to the first token and of each further one, and the text."""
        sampling = {
            **{"max_new_tokens": outputs, "ignore_eos": True},
            **{"temperature": 0.0, "speculative": "off"},
        }
        began, first, text = time.perf_counter(), 0.0, ""
        stream = self._client.stream(prompt, sampling=sampling, routed_replica=replica)
        async for output in stream:
            first, text = first or time.perf_counter(), output.text
        return first - began, (time.perf_counter() - first) / max(1, outputs - 1), text


def print_costs(args: argparse.Namespace) -> int:
    """Measure and print a table; 1 if a text differs."""
    options = ["--max-running-requests", str(max(args.batch))]
    with ring(2, [0.0, args.delay_ms / 1000], options) as (head, agents):
        return asyncio.run(_measure(args, head, agents))


async def _measure(args: argparse.Namespace, head: Server, agents: Sequence[Machine]) -> int:
    table, rng, wrong = TablePrinter("", COLUMNS, first_width=14), random.Random(args.seed), 0
    async with AsyncClient(head.ring) as client:
        bench = Bench(client, head, agents)
        for size in args.batch:
            rounds: list[list[Sample]] = []
            for _ in range(-1, args.rounds):
                prompts = [_prompt(rng) for _ in range(size)]
                found: dict[int, Sample] = {}
                for replica in rng.sample(range(len(NAMES)), len(NAMES)):
                    found[replica] = await bench.sample(replica, prompts, args.outputs)
                rounds.append([found[replica] for replica in range(len(NAMES))])
            for replica in range(len(NAMES)):
                row = _row(replica, size, rounds[1:], args.outputs)
                wrong += row[-1] != "yes"
                table.add(*row)
    return int(wrong > 0)


def _prompt(rng: random.Random) -> str:
    return "A story of " + " ".join(f"{rng.randrange(1000)} things" for _ in range(WORDS)) + ":"


def _row(replica: int, size: int, rounds: list[list[Sample]], outputs: int) -> list[str]:
    own = [samples[replica] for samples in rounds]
    tokens = size * outputs * len(rounds)
    more_s = [samples[replica].first_s - samples[0].first_s for samples in rounds]
    per_token = 1e6 / tokens
    return [
        NAMES[replica],
        str(size),
        *_ratio([samples[replica].wall_s / samples[0].wall_s for samples in rounds]),
        f"{1000 * median(one.first_s for one in own):.1f}",
        f"{1000 * median(more_s):+.1f}",
        f"{1000 * median(one.token_s for one in own):.2f}",
        *_ratio([samples[replica].token_s / samples[0].token_s for samples in rounds]),
        f"{per_token * sum(one.hub_s for one in own):.0f}",
        f"{per_token * sum(one.agent_s for one in own):.0f}",
        "yes" if all(samples[replica].texts == samples[0].texts for samples in rounds) else "NO",
    ]


def _ratio(ratios: list[float]) -> tuple[str, str]:
    mean, low, high = interval(ratios)
    return f"{mean:.3f}", f"{low:.3f}-{high:.3f}"
