"""What the language costs: `python -m bench.lang`.

Programs over a back end that answers at once: time, memory and threads of a batch, per program,
against the same calls without programs. Then forks on the real engine: k gens side by side against
k one after the other, in one run.
"""

import argparse
import asyncio
import json
import resource
import statistics
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import lang as sgl
from lang import loop
from lang.backends.base import BackendDefaults, Capabilities, Completion, Prompt
from lang.backends.sampling import PLAIN, Sampling
from srt.offline.engine import Engine


class InstantBackend(BackendDefaults):
    """Answers after one turn of the loop, and counts the threads and the calls in flight."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(score=True, constraints=True)
        self.most_threads = 0
        self.live = 0
        self.most_live = 0

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        self.most_threads = max(self.most_threads, threading.active_count())
        await asyncio.sleep(0)
        self.live -= 1
        return Completion("four", "stop", None, 3, 0, 1)

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        yield await self.generate(prompt, sampling)


@sgl.function
def tiny(s: Any, i: int) -> None:
    """One gen, and its value."""
    s += f"{i} plus two is " + sgl.gen("a")
    _ = s["a"]


@sgl.function
async def tiny_async(s: Any, i: int) -> None:
    """`tiny` without a thread."""
    s += f"{i} plus two is " + sgl.gen("a")
    await s.get("a")


async def bare(backend: InstantBackend, count: int, at_once: int) -> None:
    """The same calls, `at_once` of them in flight, with nothing around them."""
    slots = asyncio.Semaphore(at_once)

    async def one(i: int) -> None:
        async with slots:
            await backend.generate(Prompt(f"{i} plus two is "), PLAIN)

    await asyncio.gather(*(one(i) for i in range(count)))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def batch(function: sgl.SglFunction | None, count: int, at_once: int) -> dict[str, Any]:
    """One batch: seconds, µs a program, most threads and calls at once, MiB that the peak grew."""
    backend, before = InstantBackend(), _peak_mib()
    began = time.perf_counter()
    if function is None:
        loop.call(bare(backend, count, at_once))
    else:
        for state in function.run_batch(
            [(i,) for i in range(count)],
            backend=backend,
            num_threads=at_once,
            generator_style=True,
        ):
            assert state["a"] == "four"
    took = time.perf_counter() - began
    return {
        "seconds": round(took, 3),
        "us_per_program": round(took / count * 1e6, 1),
        "most_threads": backend.most_threads,
        "most_calls": backend.most_live,
        "peak_grew_mib": round(_peak_mib() - before, 1),
    }


def forks(engine: Engine, k: int, tokens: int) -> dict[str, Any]:
    """Seconds for `k` gens of `tokens` after one prefix, in forks and one after the other."""
    prefix = "The garden has many plants, and each one needs water and light. " * 10

    def body(s: Any, parallel: bool) -> None:
        s += prefix
        branches = s.fork(k)
        for i, branch in enumerate(branches):
            branch += f"Plant {i}:" + sgl.gen("a", max_tokens=tokens, ignore_eos=True)
            if not parallel:
                branch.sync()
        branches.join()
        s.sync()

    program, took = sgl.function(body), {}
    for parallel in (True, False):
        engine.flush_cache()
        began = time.perf_counter()
        program.run(parallel, backend=engine)
        took["parallel" if parallel else "sequential"] = time.perf_counter() - began
    return {**took, "speed_up": took["sequential"] / took["parallel"]}


def _fork_rows(ks: Sequence[int], tokens: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    with Engine(max_total_tokens=16384) as engine:
        forks(engine, 2, 4)  # warm
        for k in ks:
            each = [forks(engine, k, tokens) for _ in range(rounds)]
            medians = {key: statistics.median(row[key] for row in each) for key in each[0]}
            rows.append({"k": k, **{key: round(value, 3) for key, value in medians.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-engine", action="store_true")
    args = parser.parse_args()
    cases = {"bare awaits": None, "async def": tiny_async, "plain def": tiny}
    for name, function in cases.items():
        result = batch(function, args.programs, args.at_once)
        print(json.dumps({"case": name, "programs": args.programs, **result}))
    if not args.skip_engine:
        for row in _fork_rows((2, 4, 8), args.tokens, args.rounds):
            print(json.dumps({"case": "forks", "tokens": args.tokens, **row}))


if __name__ == "__main__":
    main()
