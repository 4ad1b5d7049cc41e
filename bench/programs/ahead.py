"""What prompts ahead of time save, and what they cost: `python -m bench.programs.ahead`.

Chains of calls at once on servers of their own, with `--programs-ahead` on and off in turns. Both
must give the same texts. "left": the prompt tokens that a call had still to compute when its input
ended, the median of those with an input. "more": prompt tokens that the server computed beyond
those that it computed without, which is the work that was of no use. With `--cancelled`, that share
of the chains is cancelled half-way.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from msgspec.structs import replace

from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.programs.workloads import sampling, source
from bench.roofline import markdown
from srt.client.face import AsyncClient
from srt.files.model_files import DEFAULT_MODEL
from srt.wire.programs import Call, Input, Output, Program, Segment, Text

TOKENS_PER_WORD = 1.3


class Run(NamedTuple):
    """One server's part of a pair: mean and longest time of a chain in seconds, tokens left at each
    call's begin, prompt tokens that were computed, and those that were so ahead and for nothing."""

    mean_s: float
    longest_s: float
    left: list[int]
    computed: int
    ahead: int
    wasted: int
    texts: list[str]


def chain_of(seed: int, calls: int, head: int, outputs: int) -> Program:
    """A chain whose calls have a head of about so many tokens, and end with what came before."""
    chunk = source(seed, TOKENS_PER_WORD, None)
    made = []
    for i in range(calls):
        before: list[Segment] = [Text("\nSo far:"), Input(f"s{i - 1}")] if i else []
        part = Text(f"Part {seed}.{i}:{chunk(head)}")
        params = replace(sampling(outputs), temperature=1.0, seed=100 * seed + i)
        made.append(Call([part, *before, Text("\nOn:"), Output(f"s{i}", params)]))
    return Program(calls=made)


async def run_chain(client: AsyncClient, args: argparse.Namespace, seed: int) -> Any:
    """Its time, and its variables in the end; None if it was cancelled."""
    program = chain_of(seed, args.calls, args.head, args.outputs)
    async with await client.session() as session:
        ids = await session.submit(program)
        began = time.perf_counter()
        names = [ids[f"s{i}"] for i in range(args.calls)]
        if seed % 100 < args.cancelled * args.chains:
            await session.get_all(names[: args.calls // 2])
            last = asyncio.create_task(session.get_all(names))
            await asyncio.sleep(args.cancel_after_s)
            await session.cancel(names[args.calls // 2])
            await last
            return None
        got = await session.get_all(names)
    return time.perf_counter() - began, got.vars


async def one_run(http: httpx2.AsyncClient, url: str, args: argparse.Namespace, turn: int) -> Run:
    """All chains at once, with an empty cache."""
    (await http.post(f"{url}/flush_cache", params={"timeout": 30})).raise_for_status()
    before = await counts(http, url)
    async with AsyncClient(url) as client:
        seeds = [100 * turn + number for number in range(args.chains)]
        chains = await asyncio.gather(*(run_chain(client, args, seed) for seed in seeds))
    after = await counts(http, url)
    done = [each for each in chains if each is not None]
    metas = [var.meta for _, found in done for var in found[1:]]
    return Run(
        statistics.mean(seconds for seconds, _ in done),
        max(seconds for seconds, _ in done),
        [meta.prompt_tokens - meta.cached_tokens for meta in metas],
        after[COUNTS[0]] - before[COUNTS[0]],
        after[COUNTS[1]] - before[COUNTS[1]],
        after[COUNTS[2]] - before[COUNTS[2]],
        [var.text for _, found in done for var in found],
    )


COUNTS = (
    "computed_prompt_tokens_total",
    "srt_programs_ahead_tokens_total",
    "srt_programs_ahead_wasted_tokens_total",
)


async def counts(http: httpx2.AsyncClient, url: str) -> dict[str, int]:
    """What the schedulers have computed, and the metrics of programs."""
    found = dict.fromkeys(COUNTS, 0)
    found[COUNTS[0]] = sum_of((await http.get(f"{url}/server_info")).json(), COUNTS[0])
    for line in (await http.get(f"{url}/metrics")).text.splitlines():
        name, _, value = line.rpartition(" ")
        if name in found:
            found[name] += int(float(value))
    return found


def sum_of(value: Any, name: str) -> int:
    """The sum of all numbers of this name."""
    if isinstance(value, dict):
        own = value.get(name, 0)
        return int(own) + sum(sum_of(each, name) for each in value.values())
    return sum(sum_of(each, name) for each in value) if isinstance(value, list) else 0


async def measure(args: argparse.Namespace) -> list[list[str]]:
    """The row of both servers, which take turns."""
    runs: dict[str, list[Run]] = {"off": [], "on": []}
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {}
        for name in runs:
            extra = [*args.server.split(), "--programs-ahead", name]
            server = running(Srt(), Path(DEFAULT_MODEL), Path(directory, name), extra)
            urls[name] = await stack.enter_async_context(server)
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=600))
        for turn in range(args.pairs + 1):  # the first one warms up
            for name in sorted(runs, reverse=turn % 2 == 0):
                runs[name].append(await one_run(http, urls[name], args, turn))
    off, on = runs["off"][1:], runs["on"][1:]
    assert [run.texts for run in off] == [run.texts for run in on], "the same texts both ways"
    return [row(args, off, on)]


def row(args: argparse.Namespace, off: Sequence[Run], on: Sequence[Run]) -> list[str]:
    pairs = list(zip(off, on, strict=True))
    means = [a.mean_s / b.mean_s for a, b in pairs]
    longest = [a.longest_s / b.longest_s for a, b in pairs]
    more = sum(b.computed - a.computed for a, b in pairs) / sum(a.computed for a, _ in pairs)
    return [
        f"{args.chains} chains of {args.calls}, heads of {args.head}, {args.outputs} outputs",
        f"{statistics.median(run.mean_s for run in off):.2f}",
        f"{statistics.median(means):.2f} ({min(means):.2f} to {max(means):.2f})",
        f"{statistics.median(longest):.2f} ({min(longest):.2f} to {max(longest):.2f})",
        f"{statistics.median(left for run in off for left in run.left):.0f}",
        f"{statistics.median(left for run in on for left in run.left):.0f}",
        f"{more:.1%}",
        f"{sum(run.wasted for run in on)} of {sum(run.ahead for run in on)}",
    ]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.programs.ahead", description=__doc__)
    parser.add_argument("--server", default="", help="options of both servers")
    parser.add_argument("--chains", type=int, default=1)
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--head", type=int, default=400, help="tokens of each call's own text")
    parser.add_argument("--outputs", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cancelled", type=float, default=0.0, help="share of the chains")
    parser.add_argument("--cancel-after-s", type=float, default=1.0)
    return parser.parse_args(argv)


def main() -> None:
    rows = asyncio.run(measure(parse_args()))
    columns = ("work", "mean off s", "off/on", "longest off/on", "left off", "left on", "more")
    print(markdown((*columns, "wasted"), rows))


if __name__ == "__main__":
    main()
