"""`python -m bench.replica_losses`: what the others notice when a replica is lost under load.

A server of `--replicas` is kept busy by `--streams` clients, each of which asks for one completion
after the other; prompts begin in one of GROUPS ways. In each round one replica, in turns, is killed
(SIGKILL), asked to end (SIGUSR1), or stopped (SIGSTOP) until the supervisor replaces it for its
silence. Every answer must be the one that the same prompt had without a loss.

"pause": the longest time between two tokens of a stream on another replica from the loss on. It is
compared with the longest of the undisturbed run, which lasts as long with the same prompts. "back":
from the loss to the first answer of the replica's next scheduler. "share": what that one got of
the requests that began in the SHARE_S seconds after it was back, over an equal share; "most" is the
most that it had in flight at any time, over an equal share of the streams.
"""

import argparse
import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bench.roofline import markdown
from srt.client.face import AsyncClient
from srt.machine import machine
from srt.offline.engine import Engine
from srt.ring.child import STOP_SIGNAL

GROUPS = 12
SHARE_S = 10.0
BEFORE_S, AFTER_S = 2.0, 14.0
PREFIX_WORDS = 120
SIGNALS = (signal.SIGKILL, STOP_SIGNAL, signal.SIGSTOP)


class Seen(Struct):
    """One request: when it began, its tokens' times, and where each of them came from."""

    began_s: float
    times_s: list[float]
    replicas: list[int]


class Round(Struct):
    """The figures of one loss, in seconds and shares."""

    what: str
    pause_s: float
    back_s: float
    share: float
    most: float
    answers: int
    wrong: int


class Load:
    """Keeps the server busy until `end`; all that was seen is in `seen`."""

    def __init__(self, client: AsyncClient, streams: int, outputs: int) -> None:
        self._client, self._streams, self._outputs = client, streams, outputs
        self.expected: dict[str, str] = {}
        self.seen: list[Seen] = []
        self.wrong = 0
        self._prompts = _prompts()

    async def run(self, end_s: float) -> None:
        self.seen, self.wrong = [], 0
        self._prompts = _prompts()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._streams):
                group.create_task(self._worker(end_s))

    async def _worker(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            await self._one(next(self._prompts))

    async def _one(self, prompt: str) -> None:
        seen = Seen(time.monotonic(), [], [])
        self.seen.append(seen)
        sampling = {"max_new_tokens": self._outputs, "ignore_eos": True, "temperature": 0.0}
        async for output in self._client.stream(prompt, sampling=sampling):
            seen.times_s.append(time.monotonic())
            seen.replicas.append(output.routed_replica)
        if self.expected.setdefault(prompt, output.text) != output.text:
            self.wrong += 1

    def longest_pause_s(self, since_s: float, without: int | None) -> float:
        """Between two tokens of a request that was never at the replica `without`."""
        gaps = [
            after - before
            for seen in self.seen
            if without not in seen.replicas
            for before, after in itertools.pairwise(seen.times_s)
            if after > since_s
        ]
        return max(gaps, default=0.0)


def _prompts() -> Iterator[str]:
    """The same ones in every run. They come round, so that there is something to compare with."""
    for number in itertools.count():
        words = f"Story {number % GROUPS} tells of many things. " + "one after the other " * 30
        yield f"{words[: 6 * PREFIX_WORDS]}\nPart {number % (7 * GROUPS)}:"


async def _round(load: Load, engine: Engine, replica: int, number: int, replicas: int) -> Round:
    """Lose one replica under load."""
    what = SIGNALS[number % len(SIGNALS)]
    start_s = time.monotonic()
    running = asyncio.ensure_future(load.run(start_s + BEFORE_S + AFTER_S))
    await asyncio.sleep(BEFORE_S)
    lost_s = time.monotonic()
    os.kill(_pid_of(engine, replica), what)
    await running
    pause_s = load.longest_pause_s(lost_s, replica)
    again = [
        (at, seen)
        for seen in load.seen
        if seen.began_s > lost_s and seen.replicas and seen.replicas[-1] == replica
        for at in seen.times_s[:1]
        if at > lost_s + 0.5
    ]
    back_s = min((at for at, _ in again), default=lost_s + AFTER_S)
    since = [seen for seen in load.seen if back_s <= seen.began_s < back_s + SHARE_S]
    own = sum(seen.replicas[-1] == replica for seen in since if seen.replicas)
    share = own / max(1, len(since)) * replicas
    most = _most_in_flight(load.seen, replica, back_s) / (load._streams / replicas)
    return Round(what.name, pause_s, back_s - lost_s, share, most, len(load.seen), load.wrong)


def _most_in_flight(seen: list[Seen], replica: int, since_s: float) -> int:
    """Requests that the replica had at one time."""
    changes = []
    for one in seen:
        if one.replicas and one.replicas[-1] == replica and one.times_s[-1] > since_s:
            changes += [(one.began_s, 1), (one.times_s[-1], -1)]
    changes.sort()
    return max(itertools.accumulate(step for _, step in changes), default=0)


def _pid_of(engine: Engine, replica: int) -> int:
    """The process of a replica's scheduler."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if "scheduler_proc" in words and str(engine.directory) in words:
            if words[words.index("scheduler_proc") + 5] == str(replica):
                return int(entry.name)
    raise RuntimeError(f"replica {replica} is not there")


async def _measure(engine: Engine, args: argparse.Namespace) -> None:
    async with AsyncClient(f"ipc://{engine.directory}") as client:
        load = Load(client, args.streams, args.outputs)
        await load.run(time.monotonic() + BEFORE_S + AFTER_S)  # fills `expected`
        await load.run(time.monotonic() + BEFORE_S + AFTER_S)
        calm_s = load.longest_pause_s(0.0, None)
        print(f"undisturbed: longest pause {1000 * calm_s:.0f} ms, {len(load.seen)} answers")
        rows = []
        for number in range(args.rounds):
            replica = number % args.replicas
            one = await _round(load, engine, replica, number, args.replicas)
            rows.append(
                (
                    str(number),
                    one.what,
                    f"{1000 * one.pause_s:.0f}",
                    f"{1000 * (one.pause_s - calm_s):+.0f}",
                    f"{one.back_s:.1f}",
                    f"{one.share:.2f}",
                    f"{one.most:.2f}",
                    str(one.answers),
                    str(one.wrong),
                )
            )
            print(*rows[-1], flush=True)
        columns = ("round", "signal", "pause, ms", "more than calm", "back, s", "share", "most")
        print(markdown((*columns, "answers", "wrong"), rows))


def main(argv: list[str] | None = None) -> None:
    """Prints a line for each round, and a table of all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.replica_losses",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--outputs", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--step-timeout", type=float, default=3.0, help="of the server")
    args = parser.parse_args(argv)
    print(machine())
    options = {"dp": args.replicas, "threads": 1, "step_timeout": args.step_timeout}
    with Engine(**options) as engine:
        asyncio.run(_measure(engine, args))


if __name__ == "__main__":
    main()
