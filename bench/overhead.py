"""`python -m bench.overhead`: what serving costs on top of the engine.

For each batch size, in turns: the native engine alone on decode steps, and a server with as many
requests at once over HTTP, streamed and not. A served step is the difference between the times
that long and short answers to the same prompts take, so that admission and prefill cancel out; the
engine's is at the context in the middle. "exposed" is the server's own count of the time between
steps in which there was work, over the time in steps.

The last columns are the CPU time, in microseconds per generated token, of all that is not the
model, which shares its cores: the scheduler's own threads, detokenizer, gateway, the other
processes of the server, and the load generator. They too are differences between long and short
answers.

With --null there is no model: see `bench.host`.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench import host
from bench.cpu_time import added, cpu_seconds
from bench.kernel_steps import SLOTS, Step, fill_pool
from bench.measure import server_info
from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.roofline import markdown
from scheduler_proc.executor.native_executor import NativeExecutor
from srt.benchmark.load import LoadGenerator
from srt.benchmark.summary import now
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.machine import machine

PROMPT_WORDS = 48
SHORT, LONG = 32, 224  # tokens of an answer
ENGINE_STEPS = 60
SETTLE_ROUND_S, MAX_SETTLE_ROUNDS = 0.5, 60
IDLE_SHARE = 0.05  # of one core, over all processes
_ANSWER_S = 3600.0  # that an answer may take
MODULES = {"scheduler_proc": "sched", "detokenizer_proc": "detok", "srt.gateway": "gateway"}
PARTS = (*MODULES.values(), "others", "client")
COLUMNS = ("batch", "answers", "step, ms", "engine, ms", "served / engine", "exposed", *PARTS)


class Served(NamedTuple):
    """One turn on the server: seconds per step, share exposed, and CPU seconds per token of each
    of PARTS."""

    step_s: float
    exposed: float
    cpu_s: dict[str, float]


class Run(NamedTuple):
    """A batch of answers at once: wall seconds, and CPU seconds of each of PARTS."""

    wall_s: float
    cpu_s: dict[str, float]


def engine_step_s(rows: int) -> float:
    """The median decode step of the engine alone."""
    files = resolve_model(DEFAULT_MODEL)
    step = Step("decode", rows, PROMPT_WORDS + (SHORT + LONG) // 2)
    with closing(NativeExecutor(files, max_total_tokens=SLOTS)) as executor:
        fill_pool(executor._pool)
        batch = step.batch(executor.vocab_size)
        seconds = []
        for _ in range(ENGINE_STEPS):
            began = time.perf_counter()
            executor.run(batch)
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


class Client:
    """`rows` requests at once, for answers of a certain length."""

    def __init__(self, load: LoadGenerator, rows: int, stream: bool) -> None:
        self._load, self._rows, self._stream = load, rows, stream

    async def served(self) -> Served:
        """The figures of one turn."""
        await self._answers(SHORT)  # warms the connections, and the cache for the prompts
        short = await self._answers(SHORT)
        before = await self._clocks()
        long = await self._answers(LONG)
        after = await self._clocks()
        computed, exposed = (b - a for a, b in zip(before, after, strict=True))
        steps = LONG - SHORT
        cpu_s = {p: (long.cpu_s[p] - short.cpu_s[p]) / (steps * self._rows) for p in PARTS}
        return Served((long.wall_s - short.wall_s) / steps, exposed / computed, cpu_s)

    async def _answers(self, tokens: int) -> Run:
        """All answers of this many tokens, to their ends."""
        began, cpu, others = time.perf_counter(), time.process_time(), cpu_seconds(os.getpid())
        await asyncio.gather(*(self._answer(i, tokens) for i in range(self._rows)))
        parts = dict.fromkeys(PARTS, 0.0)
        for module, seconds in added(others, cpu_seconds(os.getpid())).items():
            parts[MODULES.get(module, "others")] += seconds
        parts["client"] = time.process_time() - cpu
        return Run(time.perf_counter() - began, parts)

    async def _answer(self, index: int, tokens: int) -> None:
        prompt = f"Story {index}: " + "once " * PROMPT_WORDS
        if self._stream:
            record = await self._load.complete(prompt, tokens)
            error, count = record.error, record.completion_tokens
        else:
            body = {"model": self._load.model, "prompt": prompt, "max_tokens": tokens}
            reply = await self._load.http.post(
                "/v1/completions",
                json=body | {"temperature": 0, "ignore_eos": True},
                timeout=_ANSWER_S,
            )
            error, count = None, reply.raise_for_status().json()["usage"]["completion_tokens"]
        if error is not None or count != tokens:
            raise RuntimeError(f"{error or 'a short answer'}: {count} of {tokens} tokens")

    async def _clocks(self) -> tuple[float, float]:
        info = await server_info(self._load)
        stats = info["internal_states"][0]
        return stats["forward_seconds_total"], stats["exposed_seconds_total"]


async def measure(rows: int, stream: bool, log: Path) -> Served:
    """One turn on a server of its own."""
    async with (
        running(Srt(), resolve_model(DEFAULT_MODEL).path, log, []) as url,
        LoadGenerator(url) as load,
    ):
        await load.fill_model()
        await settled()
        return await Client(load, rows, stream).served()


async def settled() -> None:
    """Wait until the processes of this one are idle: after its start, a server has work to do once,
    such as taking the pool's memory."""
    for _ in range(MAX_SETTLE_ROUNDS):
        before = cpu_seconds(os.getpid(), engine_module="")
        await asyncio.sleep(SETTLE_ROUND_S)
        spent = sum(added(before, cpu_seconds(os.getpid(), engine_module="")).values())
        if spent < IDLE_SHARE * SETTLE_ROUND_S:
            return
    raise RuntimeError("the server does not become idle")


def table(batches: list[int], repeat: int, log: Path) -> str:
    """Medians over the turns, with the least and the largest ratio."""
    lines = []
    for rows in batches:
        for stream in (False, True):
            turns = [
                (engine_step_s(rows), asyncio.run(measure(rows, stream, log)))
                for _ in range(repeat)
            ]
            ratios = sorted(served.step_s / engine for engine, served in turns)
            middle = statistics.median
            lines.append(
                [
                    str(rows),
                    "streamed" if stream else "whole",
                    f"{1e3 * middle(served.step_s for _, served in turns):.2f}",
                    f"{1e3 * middle(engine for engine, _ in turns):.2f}",
                    f"{middle(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]",
                    f"{100 * middle(served.exposed for _, served in turns):.1f} %",
                    *(f"{1e6 * middle(s.cpu_s[part] for _, s in turns):.0f}" for part in PARTS),
                ]
            )
            print(*lines[-1], flush=True)
    return markdown(COLUMNS, lines)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each kind")
    parser.add_argument(
        "--null",
        action="store_true",
        help="CPU time of each process of the ring a request and a token, over a null executor",
    )
    parser.add_argument(
        "--tree", type=Path, nargs="*", default=[], help="other checkouts, in turns, with --null"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the requests of each load of --null"
    )
    parser.add_argument(
        "--rate", type=float, default=5000.0, help="tokens a second of --null; 0: no limit"
    )
    parser.add_argument("--json", action="store_true", help="all turns of --null, as JSON")
    args = parser.parse_args(argv)
    if not args.json:
        print(now(), machine(), end="\n\n")
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "server.log"
        if args.null:
            trees = [tree.resolve() for tree in args.tree]
            rate, repeat = args.rate, args.repeat
            print(host.report(trees, args.scale, rate, repeat, log, as_json=args.json))
        else:
            print(table(args.batch, args.repeat, log))
    return 0


if __name__ == "__main__":
    sys.exit(main())
