"""`python -m bench.lang_clients`: programs against the same calls by asyncio and `openai`.

A judge (dimensions side by side, then a sum of them) and a tree of thought (plans, solutions of
each, a conclusion), `--at-once` of them together, on one server: as programs over HTTP and over the
ring, and as coroutines that send the same prompts to /v1/completions. All are greedy and must give
the same texts. They take turns, each with an empty cache; the coroutines run twice in each round
(A/A). "wall" is the time over that of the coroutines, with the 95 % interval of its mean; "CPU" is
that of this process.
"""

import argparse
import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import openai

import lang as sgl
from bench.measure import words_of
from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.roofline import markdown
from srt.benchmark.text import TextSource
from srt.files.model_files import DEFAULT_MODEL
from srt.machine import machine

DIMENSIONS = ("clarity", "evidence", "style", "honesty")
WIDTH = 3
TOKENS = 24
_T_95 = 2.1  # Student's t for some 20 rounds


class Turn(NamedTuple):
    """Seconds of wall time and of this process's CPU, and the texts."""

    wall_s: float
    cpu_s: float
    texts: list[str]


# ---- programs --------------------------------------------------------------------------------


@sgl.function
def judge(s: Any, essay: str) -> str:
    s += essay
    forks = s.fork(len(DIMENSIONS))
    for fork, dimension in zip(forks, DIMENSIONS, strict=True):
        fork += f"\nOf its {dimension}:" + sgl.gen("judgment", max_tokens=TOKENS)
    for fork in forks:
        s += "\n" + fork["judgment"]
    s += "\nIn short:" + sgl.gen("summary", max_tokens=TOKENS)
    return str(s["summary"])


@sgl.function
def tree(s: Any, question: str) -> str:
    s += question
    plans = s.fork(WIDTH)
    for i, plan in enumerate(plans):
        plan += f"\nPlan {i}:" + sgl.gen("plan", max_tokens=TOKENS)
    leaves = []
    for plan in plans:
        solutions = plan.fork(WIDTH)
        for i, solution in enumerate(solutions):
            solution += f"\nSolution {i}:" + sgl.gen("solution", max_tokens=TOKENS)
        leaves += list(solutions)
    best = max((leaf["solution"] for leaf in leaves), key=len)
    s += f"\nThe best:{best}\nSo:" + sgl.gen("end", max_tokens=TOKENS)
    return str(s["end"])


# ---- the same calls --------------------------------------------------------------------------

Complete = Callable[[str], Awaitable[str]]


async def judge_by_hand(complete: Complete, essay: str) -> str:
    """The calls of `judge`."""
    asked = (complete(f"{essay}\nOf its {dimension}:") for dimension in DIMENSIONS)
    judgments = await asyncio.gather(*asked)
    return await complete(essay + "".join(f"\n{each}" for each in judgments) + "\nIn short:")


async def tree_by_hand(complete: Complete, question: str) -> str:
    """The calls of `tree`."""

    async def solved(i: int) -> list[str]:
        prompt = f"{question}\nPlan {i}:"
        prompt += await complete(prompt)
        asked = (complete(f"{prompt}\nSolution {k}:") for k in range(WIDTH))
        return list(await asyncio.gather(*asked))

    found = await asyncio.gather(*map(solved, range(WIDTH)))
    best = max((solution for each in found for solution in each), key=len)
    return await complete(f"{question}\nThe best:{best}\nSo:")


PROGRAMS = {"judge": (judge, judge_by_hand), "tree": (tree, tree_by_hand)}


# ---- measuring -------------------------------------------------------------------------------


def by_programs(name: str, prompts: Sequence[str], backend: Any) -> Turn:
    """All prompts as a batch of programs."""
    program = PROGRAMS[name][0]
    wall, cpu = time.perf_counter(), time.process_time()
    rows = [(prompt,) for prompt in prompts]
    states = program.run_batch(
        rows, backend=backend, temperature=0, ignore_eos=True, num_threads=len(rows)
    )
    texts = [state.ret_value for state in states]
    return Turn(time.perf_counter() - wall, time.process_time() - cpu, texts)


def by_hand(name: str, prompts: Sequence[str], url: str) -> Turn:
    """All prompts as coroutines of one event loop; its client is made before."""

    async def run() -> Turn:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

            async def complete(prompt: str) -> str:
                answer = await client.completions.create(
                    model=DEFAULT_MODEL,
                    prompt=prompt,
                    max_tokens=TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
                return answer.choices[0].text

            await complete("Warm up")
            wall, cpu = time.perf_counter(), time.process_time()
            texts = await asyncio.gather(*(PROGRAMS[name][1](complete, each) for each in prompts))
            return Turn(time.perf_counter() - wall, time.process_time() - cpu, list(texts))

    return asyncio.run(run())


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The mean ratio (geometric), and half of its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = math.exp(statistics.fmean(logs))
    if len(logs) < 2:
        return mean, math.inf
    return mean, mean * _T_95 * statistics.stdev(logs) / math.sqrt(len(logs))


def measure(name: str, url: str, ring: str, args: argparse.Namespace) -> list[list[str]]:
    """The rows of one kind of program."""
    source = TextSource(args.seed, words=words_of(args.data) if args.data else None)
    turns: dict[str, list[Turn]] = {}
    with sgl.RuntimeEndpoint(url) as http, sgl.RuntimeEndpoint(f"ipc://{ring}") as ipc:
        ways: dict[str, Callable[[Sequence[str]], Turn]] = {
            "openai": lambda prompts: by_hand(name, prompts, url),
            "http": lambda prompts: by_programs(name, prompts, http),
            "ipc": lambda prompts: by_programs(name, prompts, ipc),
            "openai again": lambda prompts: by_hand(name, prompts, url),
        }
        began = time.monotonic()
        for number in range(-1, args.rounds):
            if number > 0 and time.monotonic() - began > args.seconds:
                break
            prompts = [source.text(args.tokens) for _ in range(args.at_once)]
            order = [*ways][number % len(ways) :] + [*ways][: number % len(ways)]
            made: dict[str, Turn] = {}
            for way in order:
                sgl.flush_cache(ipc)
                made[way] = ways[way](prompts)
            if len({tuple(turn.texts) for turn in made.values()}) != 1:
                raise SystemExit(f"{name}: the texts differ")
            if number >= 0:  # the first round warms up
                for way, turn in made.items():
                    turns.setdefault(way, []).append(turn)
    return [_row(name, way, turns) for way in ("http", "ipc", "openai again")]


def _row(name: str, way: str, turns: dict[str, list[Turn]]) -> list[str]:
    pairs = list(zip(turns[way], turns["openai"], strict=True))
    wall, half = interval([a.wall_s / b.wall_s for a, b in pairs])
    cpu = statistics.median(a.cpu_s / b.cpu_s for a, b in pairs)
    seconds = statistics.median(a.wall_s for a, _ in pairs)
    ratios = [f"{wall:.3f}", f"{half:.3f}", f"{cpu:.2f}"]
    return [name, way, str(len(pairs)), f"{seconds:.3f}", *ratios]


async def run(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ring = str(Path(directory, "ring"))
        options = ["--ring-dir", ring]
        async with running(Srt(), Path(DEFAULT_MODEL), Path(directory, "log"), options) as url:
            rows: list[list[str]] = []
            for name in args.programs:
                rows += await asyncio.to_thread(measure, name, url, ring, args)
    print(f"{machine()}, {args.at_once} at once, {args.tokens} tokens each")
    print(markdown(("programs", "way", "rounds", "wall, s", "ratio", "+-", "CPU"), rows))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.lang_clients", description=__doc__)
    parser.add_argument("--data", type=Path, help="a directory of *.jsonl files with text")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no round after them")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300, help="of an essay or a question")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    args.programs = args.programs.split(",")
    if not set(args.programs) <= PROGRAMS.keys():
        parser.error(f"--programs: choose from {', '.join(PROGRAMS)}")
    return args


def main() -> None:
    asyncio.run(run(parse_args()))


if __name__ == "__main__":
    main()
