"""`python -m bench.constrained`: what jump-forward does to constrained generation.

Each case runs on one engine with jump-forward off and on, in turn, in the same run: pairs of
batches of the same requests with the same seeds, whose order alternates. Printed per case: the
ratio of wall times off/on (its geometric mean and 95 % interval over the pairs), the ratio of
forward passes on/off, and the time of unconstrained generation of as many tokens over that with
jumps. `--suite` takes many generated patterns, or schemas of a file, instead of the two classic
ones. Needs no data; `--data DIR` fills in real names and gives the schemas.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from bench.patterns import CHARACTER, CITY, seeded_patterns
from srt.benchmark.summary import now
from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.machine import machine
from srt.offline.engine import Engine
from srt.wire.errors import RequestError

NAMES = ("Harry Potter", "Hermione Granger", "Ron Weasley", "Albus Dumbledore", "Severus Snape")
CITIES = (
    ("Paris", "France", "48.85", "2102650", "the Eiffel Tower, the Louvre and Notre Dame"),
    ("Rome", "Italy", "41.89", "2748109", "the Colosseum, the Pantheon and the Trevi Fountain"),
    ("Cairo", "Egypt", "30.04", "10203693", "the Giza Pyramids, the Citadel and Cairo Tower"),
    ("Oslo", "Norway", "59.91", "717710", "the Opera House, Akershus and Vigeland Park"),
    ("Lima", "Peru", "-12.05", "10151000", "Plaza Mayor, Huaca Pucllana and Larco Museum"),
    ("Tokyo", "Japan", "35.68", "14094034", "Tokyo Tower, Senso Ji and the Meiji Shrine"),
)
# Two-sided 95 % quantiles of Student's t by degrees of freedom; for more, the last is close enough.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


class Case(Struct, frozen=True):
    """Requests that are alike: one constraint (a field of SamplingParams), several prompts."""

    name: str
    constraint: dict[str, Any]
    prompts: list[str]


class Run(Struct, frozen=True):
    """One batch: wall time in seconds, and sums over its requests."""

    seconds: float
    forward_passes: int
    tokens: int
    jumped: int
    stopped: int


class Result(Struct, frozen=True):
    """A case at one concurrency. Ratios above 1: jump-forward is faster."""

    name: str
    concurrency: int
    speedup: float
    low: float
    high: float
    passes: float
    tokens: int
    jumped: float
    stopped: float
    over_free: float | None = None


def classic_cases(data: Path | None) -> list[Case]:
    """SGLang's two JSON patterns: a character of a novel, and a city."""
    names: list[str] = list(NAMES)
    if data is not None and (data / "json_character_names.jsonl").exists():
        lines = (data / "json_character_names.jsonl").read_text().splitlines()
        names = [json.loads(line)["name"] for line in lines]
    people = [f"{n} is a character in a novel. Fill in the information as JSON.\n" for n in names]
    cities = [
        f"{city} is the capital of {country}, at latitude {latitude}, with a population of "
        f"{population}. Its landmarks are {landmarks}.\n\nThe same as a JSON object:\n"
        for city, country, latitude, population, landmarks in CITIES
    ]
    return [Case("character", {"regex": CHARACTER}, people), Case("city", {"regex": CITY}, cities)]


def suite_cases(suite: str, count: int, data: Path | None) -> Iterator[Case]:
    """`count` generated patterns, or the first `count` schemas of the data."""
    if suite == "patterns":
        for i, pattern in enumerate(seeded_patterns(count)):
            yield Case(f"pattern {i}", {"regex": pattern}, [f"Record number {i}:\n"])
        return
    if data is None:
        raise SystemExit("--suite schemas needs --data")
    lines = (data / "jsonschemabench_sample.jsonl").read_text().splitlines()
    for line in lines[:count]:
        row = json.loads(line)
        schema = {"json_schema": json.dumps(row["schema"])}
        yield Case(row["name"], schema, ["A valid JSON document:\n"])


async def run_batch(
    client: AsyncClient, case: Case, concurrency: int, sampling: dict[str, Any], first: int
) -> Run:
    """`concurrency` requests at once, with fixed seeds."""
    started = time.perf_counter()
    tasks = [
        client.generate(
            case.prompts[i % len(case.prompts)],
            sampling={**sampling, "seed": i},
        )
        for i in range(first, first + concurrency)
    ]
    outputs: list[GenerateOutput] = await asyncio.gather(*tasks)
    return Run(
        seconds=time.perf_counter() - started,
        forward_passes=sum(o.forward_passes for o in outputs),
        tokens=sum(o.completion_tokens for o in outputs),
        jumped=sum(o.jump_forward_tokens for o in outputs),
        stopped=sum(o.finish is not None and o.finish.type == "stop" for o in outputs),
    )


async def measure(
    client: AsyncClient, case: Case, concurrency: int, args: argparse.Namespace
) -> Result:
    """All pairs of one case."""
    pairs, limit, temperature = args.pairs, args.max_tokens, args.temperature
    with_free = args.suite == "classic"
    base = {**case.constraint, "max_new_tokens": limit, "temperature": temperature}
    modes = {mode: {**base, "jump_forward": mode} for mode in ("off", "canonical")}
    for sampling in modes.values():
        await run_batch(client, case, concurrency, sampling, 0)
    runs: dict[str, list[Run]] = {"off": [], "canonical": [], "free": []}
    for pair in range(pairs):
        order = ("off", "canonical") if pair % 2 == 0 else ("canonical", "off")
        for mode in order:
            runs[mode].append(await run_batch(client, case, concurrency, modes[mode], pair))
        if with_free:
            length = max(1, round(runs["canonical"][-1].tokens / concurrency))
            free = {"max_new_tokens": length, "temperature": temperature, "ignore_eos": True}
            runs["free"].append(await run_batch(client, case, concurrency, free, pair))
    off, on, free_runs = runs["off"], runs["canonical"], runs["free"]
    mean, low, high = interval([a.seconds / b.seconds for a, b in zip(off, on, strict=True)])
    over_free = None
    if with_free:
        pairs_of = zip(free_runs, on, strict=True)
        over_free = interval([a.seconds / b.seconds for a, b in pairs_of])[0]
    tokens = sum(run.tokens for run in on)
    return Result(
        name=case.name,
        concurrency=concurrency,
        speedup=mean,
        low=low,
        high=high,
        passes=sum(r.forward_passes for r in on) / max(1, sum(r.forward_passes for r in off)),
        tokens=tokens,
        jumped=sum(run.jumped for run in on) / max(1, tokens),
        stopped=sum(run.stopped for run in on) / (pairs * concurrency),
        over_free=over_free,
    )


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean of paired ratios and its 95 % interval (Student's t on their logarithms)."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1))
    half = T95[min(len(logs) - 1, len(T95)) - 1] * deviation / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


async def measure_all(
    args: argparse.Namespace, cases: list[Case], client: AsyncClient
) -> list[Result]:
    """Print a line per case as it is done, and a summary."""
    print(f"{now()}  {machine()}")
    print(
        f"{'case':<28}{'at once':>8}{'off/on':>8}{'95 % interval':>17}{'passes on/off':>15}"
        f"{'jumped':>8}{'stopped':>9}{'free/on':>9}"
    )
    results: list[Result] = []
    for concurrency in args.concurrency:
        for case in cases:
            try:
                result = await measure(client, case, concurrency, args)
            except RequestError as error:
                print(f"{case.name:<28}refused: {error}")
                continue
            results.append(result)
            free = "" if result.over_free is None else f"{result.over_free:>9.2f}"
            print(
                f"{result.name[:27]:<28}{result.concurrency:>8}{result.speedup:>8.2f}"
                f"{f'[{result.low:.2f}, {result.high:.2f}]':>17}{result.passes:>15.2f}"
                f"{result.jumped:>8.2f}{result.stopped:>9.2f}{free}",
                flush=True,
            )
    below = [r.name for r in results if r.high < 1.0]
    mean = math.exp(sum(math.log(r.speedup) for r in results) / max(1, len(results)))
    print(f"{len(results)} cases, geometric mean {mean:.2f}; wholly below 1: {below or 'none'}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.constrained", description=__doc__)
    parser.add_argument("--suite", choices=["classic", "patterns", "schemas"], default="classic")
    parser.add_argument("--count", type=int, default=50, help="cases of a suite")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path, help="directory of the data sets")
    parser.add_argument("--json", help="file for the results")
    args = parser.parse_args()
    if args.suite == "classic":
        cases = classic_cases(args.data)
    else:
        cases = list(suite_cases(args.suite, args.count, args.data))
    with Engine(args.model, executor="native") as engine:
        results = asyncio.run(_with_client(args, cases, f"ipc://{engine.directory}"))
    if args.json:
        Path(args.json).write_bytes(msgspec.json.encode(results))


async def _with_client(args: argparse.Namespace, cases: list[Case], url: str) -> list[Result]:
    async with AsyncClient(url) as client:
        return await measure_all(args, cases, client)


if __name__ == "__main__":
    main()
