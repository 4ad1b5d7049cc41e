"""The hit rates of a local replica and one of an agent, beside those of two local ones."""

import argparse
import asyncio
from statistics import fmean
from typing import NamedTuple

from bench.machines.ring import ring
from bench.measure import Course, server_info
from bench.roofline import TablePrinter
from srt.benchmark.load import LoadGenerator
from tests.e2e.server import Server

ARMS: dict[str, tuple[int, list[float]]] = {"local": (2, []), "agent": (1, [0.0])}
POOL = 32_768  # tokens of each replica
COLUMNS = (
    *("workload", "two local, %", "spread", "second served, %"),
    *("one of an agent, %", "spread", "agent served, %", "points", "failed"),
)


class Hits(NamedTuple):
    """A workload's hit rate and failed requests, and the second replica's share of its prompts'
    tokens."""

    rate: float
    share: float
    errors: int


def print_hits(args: argparse.Namespace) -> int:
    """Measure and print a table; 1 if a request failed."""
    course = Course(_of_course(args))
    course.names = args.workloads
    found: dict[str, list[dict[str, Hits]]] = {arm: [] for arm in ARMS}
    for turn in range(args.turns):
        # Local and agent, agent and local: what changes slowly weighs on both alike.
        for arm in [*ARMS][:: 1 if turn % 2 == 0 else -1]:
            local, delays_s = ARMS[arm]
            with ring(local, delays_s, ["--max-total-tokens", str(POOL)]) as (head, _):
                found[arm].append(asyncio.run(_measure(course, head)))
    table, failed = TablePrinter("", COLUMNS, first_width=10), 0
    for name in args.workloads:
        arms = [[turn[name] for turn in found[arm]] for arm in ARMS]
        rates = [[100 * hits.rate for hits in arm] for arm in arms]
        cells = [
            f"{value:.2f}"
            for arm, each in zip(arms, rates, strict=True)
            for value in (fmean(each), max(each) - min(each), 100 * fmean(h.share for h in arm))
        ]
        errors = sum(hits.errors for arm in arms for hits in arm)
        failed += errors
        table.add(name, *cells, f"{fmean(rates[1]) - fmean(rates[0]):+.2f}", str(errors))
    return int(failed > 0)


async def _measure(course: Course, head: Server) -> dict[str, Hits]:
    found = {}
    async with course.client(head.url) as load:
        await course.prepare(load)
        for name in course.names:
            await load.flush_cache()
            before = await _served(load)
            figures = await course.run(name, load)
            first, second = (b - a for a, b in zip(before, await _served(load), strict=True))
            share = second / max(1, first + second)
            found[name] = Hits(figures.hit_rate or 0.0, share, figures.errors)
    return found


async def _served(load: LoadGenerator) -> list[int]:
    """The tokens of prompts that each replica has served."""
    states = (await server_info(load))["internal_states"]
    return [s["cached_tokens_total"] + s["computed_prompt_tokens_total"] for s in states]


def _of_course(args: argparse.Namespace) -> argparse.Namespace:
    """What `Course` wants to know. Greedy: the texts, which are prompts later, are always equal."""
    return argparse.Namespace(
        workload="all",
        data=None,
        random_words=False,
        model=None,
        api_key=None,
        ignore_eos=True,
        temperature=0.0,
        seed=args.seed,
        scale=args.scale,
    )
