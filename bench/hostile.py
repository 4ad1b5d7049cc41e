"""`python -m bench.hostile`: what hostile constraints do to other requests.

A server for each kind runs four steady greedy streams. Phases alternate: quiet, and attacked by
another process that sends constraints of one kind without pause, each new or (--same) all alike.
Printed per kind: how they were answered, the longest wait for an answer, and the inter-token
latency of the streams, attacked over quiet. The control is a plain busy process at the niceness
of the attacker: what it costs is the price of a core, and not of the attack.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench.hostile_inputs import ATTACKS
from bench.report import machine, now, percentile
from srt.client import AsyncClient
from srt.engine import Engine
from srt.errors import RequestError

STREAMS = 4
ATTACKERS = 4  # requests in flight
ATTACKER_NICENESS = 10
PROMPT = "The history of the city begins with"
ATTACK_SAMPLING: dict[str, Any] = {"max_new_tokens": 48, "temperature": 1.0}
BUSY = "(a busy process)"
_SETTLE_S = 0.3  # of a phase, before latencies count


class Answers(NamedTuple):
    """What the attacker heard: how many of each kind, the longest wait in seconds, and texts of
    errors by how often they came."""

    kinds: Counter[str]
    longest_s: float
    errors: Counter[str]


class Score(NamedTuple):
    """Latencies of one kind of phase in ms, and what was answered."""

    quiet: list[float]
    attacked: list[float]
    answers: list[Answers]


# ---- The attacker's process ------------------------------------------------------------------


def attack(url: str, orders: Connection, same: bool) -> None:
    """Does what `orders` say: the name of an attack begins it, "" ends it and asks for Answers."""
    os.nice(ATTACKER_NICENESS)
    asyncio.run(_Attacker(orders, same).run(url))


class _Attacker:
    def __init__(self, orders: Connection, same: bool) -> None:
        self._orders, self._same = orders, same
        self._serial = 0

    async def run(self, url: str) -> None:
        async with AsyncClient(url) as client:
            while True:
                name = await asyncio.to_thread(self._orders.recv)
                if name is None:
                    return
                self._answers = Answers(Counter(), 0.0, Counter())
                tasks = [asyncio.create_task(self._go_on(client, name)) for _ in range(ATTACKERS)]
                await asyncio.to_thread(self._orders.recv)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._orders.send(self._answers)

    async def _go_on(self, client: AsyncClient, name: str) -> None:
        if name == BUSY:
            while True:
                _spin(0.05)
                await asyncio.sleep(0)
        fixed = ATTACKS[name](10**6)
        while True:
            self._serial += 1
            constraint = fixed if self._same else ATTACKS[name](self._serial)
            started = time.perf_counter()
            kind = await self._one(client, {**ATTACK_SAMPLING, **constraint})
            waited = time.perf_counter() - started
            self._answers.kinds[kind] += 1
            longest = max(waited, self._answers.longest_s)
            self._answers = self._answers._replace(longest_s=longest)

    async def _one(self, client: AsyncClient, sampling: dict[str, Any]) -> str:
        try:
            output = await client.generate("Text:", sampling=sampling)
        except RequestError as error:
            self._answers.errors[str(error)[:160]] += 1
            return str(error.info.http_status)
        return "ok" if output.finish is not None else "cut"


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@contextlib.contextmanager
def attacker(url: str, same: bool) -> Iterator[Connection]:
    """A process that attacks `url` on orders."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=attack, args=(url, theirs, same), daemon=True)
    process.start()
    try:
        yield ours
        ours.send(None)
        process.join(10)
    finally:
        process.kill()


# ---- The streams -----------------------------------------------------------------------------


async def latencies(client: AsyncClient, seconds: float) -> list[float]:
    """Inter-token latencies in ms of STREAMS streams that run for `seconds`."""
    found: list[float] = []
    tasks = [asyncio.create_task(_stream(client, found)) for _ in range(STREAMS)]
    await asyncio.wait(tasks, timeout=seconds + _SETTLE_S)
    for task in tasks:
        if task.done():
            task.result()  # raises what went wrong; nothing else ends a stream so soon
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def _stream(client: AsyncClient, found: list[float]) -> None:
    sampling = {"max_new_tokens": 4000, "temperature": 0.0, "ignore_eos": True}
    started, times = time.perf_counter(), []
    try:
        outputs = client.stream(PROMPT, sampling=sampling)
        while await anext(outputs, None) is not None:
            times.append(time.perf_counter())
    finally:
        counted = [moment for moment in times if moment - started > _SETTLE_S]
        found += [1000 * (b - a) for a, b in pairwise(counted)]


async def measure(url: str, name: str, orders: Connection, args: argparse.Namespace) -> Score:
    """Quiet and attacked phases in turn."""
    score = Score([], [], [])
    async with AsyncClient(url) as client:
        for _ in range(args.rounds):
            score.quiet.extend(await latencies(client, args.seconds))
            orders.send(name)
            score.attacked.extend(await latencies(client, args.seconds))
            orders.send("")
            score.answers.append(await asyncio.to_thread(orders.recv))
            await _drained(client)
    return score


async def _drained(client: AsyncClient) -> None:
    """Until the compile worker has done what the attack left behind: until a new constraint,
    which queues behind that, has been compiled."""
    while True:
        sampling = {"regex": f"x{time.monotonic_ns()}", "max_new_tokens": 1}
        try:
            await client.generate("x", sampling=sampling)
        except RequestError as error:
            if not error.info.retryable:
                raise
        else:
            return


# ---- The report ------------------------------------------------------------------------------


def row(name: str, score: Score) -> list[str]:
    kinds = sum((answers.kinds for answers in score.answers), Counter[str]())
    longest = max(answers.longest_s for answers in score.answers)
    cells = [name, ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "-"]
    cells.append(f"{longest:.2f}")
    for percent in (50, 99):
        quiet, attacked = percentile(score.quiet, percent), percentile(score.attacked, percent)
        if quiet is None or attacked is None:
            cells += ["-", "-"]
        else:
            cells += [f"{quiet:.1f} to {attacked:.1f}", f"{attacked / quiet:.2f}"]
    return [*cells, f"{max(score.quiet, default=0):.0f} to {max(score.attacked, default=0):.0f}"]


HEADINGS = (
    *("attack", "answers", "longest s", "ITL p50 ms", "ratio", "ITL p99 ms", "ratio", "max ms"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a phase")
    parser.add_argument("--compile-timeout", type=float, default=2.0, help="of the server")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--same", action="store_true", help="one constraint again and again")
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    print(f"{now()}  {machine()}")
    print(f"| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}", flush=True)
    errors: dict[str, Counter[str]] = {}
    for name in [BUSY, *(name for name in ATTACKS if args.only in name)]:
        # A server for each, because what an attack leaves in the queue of the compile worker
        # would be taken for the next one's effect.
        limits = {"grammar_cache_dir": "none", "grammar_compile_timeout": args.compile_timeout}
        with Engine(args.model, log_level="error", **limits) as engine:
            url = f"ipc://{engine.directory}"
            with attacker(url, args.same) as orders:
                score = asyncio.run(measure(url, name, orders, args))
        errors[name] = sum((a.errors for a in score.answers), Counter[str]())
        print(f"| {' | '.join(row(name, score))} |", flush=True)
    for name, texts in errors.items():
        for text, count in texts.most_common(2):
            print(f"{name}: {count} x {text}")


if __name__ == "__main__":
    main()
