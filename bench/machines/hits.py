"""The hit rates of a local replica and one of an agent, beside those of two local ones."""

import argparse
import asyncio
from statistics import fmean

from bench.figures import Figures
from bench.machines.ring import ring
from bench.measure import Course
from bench.roofline import TablePrinter
from tests.e2e.server import Server

ARMS: dict[str, tuple[int, list[float]]] = {"local": (2, []), "agent": (1, [0.0])}
POOL = 32_768  # tokens of each replica
COLUMNS = ("workload", "two local, %", "spread", "one of an agent", "spread", "points", "failed")


def print_hits(args: argparse.Namespace) -> int:
    """Measure and print a table; 1 if a request failed."""
    course = Course(_of_course(args))
    course.names = args.workloads
    found: dict[str, list[dict[str, Figures]]] = {arm: [] for arm in ARMS}
    for turn in range(args.turns):
        # Local and agent, agent and local: what changes slowly weighs on both alike.
        for arm in [*ARMS][:: 1 if turn % 2 == 0 else -1]:
            local, delays_s = ARMS[arm]
            with ring(local, delays_s, ["--max-total-tokens", str(POOL)]) as (head, _):
                found[arm].append(asyncio.run(_measure(course, head)))
    table, failed = TablePrinter("", COLUMNS, first_width=10), 0
    for name in args.workloads:
        arms = [[turn[name] for turn in found[arm]] for arm in ARMS]
        errors = sum(figures.errors for arm in arms for figures in arm)
        rates = [[100 * (figures.hit_rate or 0.0) for figures in arm] for arm in arms]
        failed += errors
        cells = [f"{value:.2f}" for each in rates for value in (fmean(each), _spread(each))]
        table.add(name, *cells, f"{fmean(rates[1]) - fmean(rates[0]):+.2f}", str(errors))
    return int(failed > 0)


async def _measure(course: Course, head: Server) -> dict[str, Figures]:
    figures = {}
    async with course.client(head.url) as load:
        await course.prepare(load)
        for name in course.names:
            await load.flush_cache()
            figures[name] = await course.run(name, load)
    return figures


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


def _spread(values: list[float]) -> float:
    return max(values) - min(values)
