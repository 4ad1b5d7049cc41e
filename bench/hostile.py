"""`python -m bench.hostile`: what hostile constraints, bodies and connections do to others.

There are two tables; that of HTTP is described in `hostile_http`. For constraints, a server for
each kind runs four steady greedy streams. Phases alternate: quiet, and attacked by another process
that sends constraints of one kind without pause, each new or (--same) all alike. Printed per kind:
how they were answered, the longest wait for an answer, and the inter-token latency of the streams,
attacked over quiet. The control is a plain busy process at the niceness of the attacker: what it
costs is the price of a busy core, not of an attack.
"""

import argparse
import asyncio
import os
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from bench import hostile_http
from bench.figures import percentile
from bench.hostile_http import HTTP_ATTACKS
from bench.hostile_inputs import ATTACKS
from bench.hostile_process import attacker, spin
from bench.streams import steady_streams
from srt.benchmark.summary import now
from srt.client.face import AsyncClient
from srt.machine import machine
from srt.offline.engine import Engine
from srt.wire.errors import RequestError

STREAMS = 4
ATTACKERS = 4  # requests in flight
ATTACKER_NICENESS = 10
ATTACK_SAMPLING: dict[str, Any] = {"max_new_tokens": 48, "temperature": 1.0}
BUSY = "(a busy process)"


class Answers(NamedTuple):
    """What the attacker received: how many answers of each kind, the longest wait in seconds, and
    how often each error text."""

    kinds: Counter[str]
    longest_s: float
    errors: Counter[str]


class Score(NamedTuple):
    """Latencies of the quiet and the attacked phases in ms, and the answers."""

    quiet: list[float]
    attacked: list[float]
    answers: list[Answers]


# ---- The attacker's process ------------------------------------------------------------------


def attack(url: str, orders: Connection, same: bool) -> None:
    """Does what `orders` say: the name of an attack begins it; "" ends it and asks for Answers."""
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
                spin(0.05)
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


# ---- The streams -----------------------------------------------------------------------------


async def latencies(client: AsyncClient, seconds: float) -> list[float]:
    """Inter-token latencies in ms of STREAMS streams that run for `seconds`."""
    found, errors = await steady_streams([client], STREAMS, seconds)
    for error in errors:
        raise error
    return found


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
    """Wait until the compile worker has done what the attack left over: until a new constraint,
    which is queued after that, has been compiled."""
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
    parser.add_argument("--kind", choices=["constraints", "http", "all"], default="http")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a phase")
    parser.add_argument("--compile-timeout", type=float, default=2.0, help="of the server")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--same", action="store_true", help="one constraint again and again")
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    print(f"{now()}  {machine()}")
    if args.kind != "http":
        _constraints([BUSY, *(name for name in ATTACKS if args.only in name)], args)
    if args.kind != "constraints":
        names = [name for name in HTTP_ATTACKS if args.only in name]
        asyncio.run(hostile_http.report(names, args.model, args.rounds, args.seconds))


def _constraints(names: list[str], args: argparse.Namespace) -> None:
    """Print the table of these attacks, and the errors that they received."""
    print(f"| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}", flush=True)
    errors: dict[str, Counter[str]] = {}
    for name in names:
        # A server for each, because what an attack leaves in the queue of the compile worker
        # would be taken for an effect of the next one.
        limits = {"grammar_cache_dir": "none", "grammar_compile_timeout": args.compile_timeout}
        with Engine(args.model, log_level="error", **limits) as engine:
            url = f"ipc://{engine.directory}"
            with attacker(attack, url, args.same) as orders:
                score = asyncio.run(measure(url, name, orders, args))
        errors[name] = sum((a.errors for a in score.answers), Counter[str]())
        print(f"| {' | '.join(row(name, score))} |", flush=True)
    for name, texts in errors.items():
        for text, count in texts.most_common(2):
            print(f"{name}: {count} x {text}")


if __name__ == "__main__":
    main()
