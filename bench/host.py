"""What a request and a token cost outside the model: CPU time by process, over a null executor.

The ring is the real one but for its executor, which makes random tokens at a certain rate. Without
one, tokens come faster than streams are written, several in an event, and the cost of one is not
shown. Servers of several checkouts are up at the same time, and answer the same loads in turns, in
one order and then in the other; an idle one takes no time that counts. A process's time includes
that of its threads and of the processes below it.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from bench.cpu_time import added, children, cpu_seconds_below
from bench.measure import server_info
from bench.peers.process import running
from bench.roofline import markdown
from srt.benchmark.event_stream import EventClient
from srt.benchmark.load import LoadGenerator
from srt.benchmark.text import WORDS
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.ring.child import MODULES

ROOT = Path(__file__).parent.parent
LAUNCHER = Path(__file__).parent / "null_server" / "null_launch.py"
PARTS = ("gateway", "tokenizer", "scheduler", "detokenizer", "others", "client")
SERVER_PARTS = PARTS[:-1]
COLUMNS = ("load", "checkout", "req/s", "tok/s", *PARTS[:-1], "server", "client")
NAMES = {module: part for part, module in MODULES.items()} | {"null_scheduler": "scheduler"}
OPTIONS = ("--speculative", "off", "--max-running-requests", "512", "--log-level", "warning")
WARM_UP = 0.1  # of a load's requests


class Load(NamedTuple):
    """`requests` in all, `at_once` of them at any time, each with a prompt of so many words and an
    answer of so many tokens, `streamed` or whole."""

    requests: int
    at_once: int
    words: int
    tokens: int
    streamed: bool

    @property
    def name(self) -> str:
        """What the table calls it."""
        how = "streamed" if self.streamed else "whole"
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{self.at_once} at once, {self.words} words, {tokens}, {how}"

    def scaled(self, scale: float) -> "Load":
        """With so many times the requests, but as many at once."""
        return self._replace(requests=max(self.at_once, round(scale * self.requests)))


LOADS = (
    Load(2000, 64, 16, 1, streamed=False),
    Load(1000, 64, 16, 64, streamed=False),
    Load(320, 64, 16, 64, streamed=True),
    Load(256, 256, 256, 128, streamed=True),
)


class Turn(NamedTuple):
    """One turn of a load: requests, tokens, wall seconds, and CPU seconds of each of PARTS."""

    requests: int
    tokens: int
    wall_s: float
    cpu_s: dict[str, float]


class NullServer:
    """The server of a checkout over a null executor, as `bench.peers.process` starts it."""

    name = "null"
    ready_path = "/ready"
    start_timeout_s = 120.0

    def __init__(self, tree: Path, rate: float) -> None:
        self._tree, self._rate = tree, rate

    def install(self) -> str:
        """It runs in the environment of this process."""
        return ""

    def prepare(self, model: Path) -> str:
        """Only the model's tokenizer is used."""
        return ""

    def command(self, model: Path, port: int) -> list[str]:
        """The launcher is a file of this checkout, all else is of the server's own."""
        words = [sys.executable, str(LAUNCHER), "--model", str(model), "--port", str(port)]
        return [*words, *OPTIONS]

    def environment(self) -> dict[str, str]:
        """The server's own checkout is found first: not this directory, and what is beside the
        launcher last."""
        path = os.pathsep.join((str(self._tree), str(LAUNCHER.parent)))
        return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "NULL_RATE": str(self._rate)}


class Contender:
    """A server that is up, by its launcher's process id, and the clients of it: one for requests
    that count, and one for all else."""

    def __init__(self, pid: int, events: EventClient, others: LoadGenerator) -> None:
        self._pid, self._events, self._others = pid, events, others

    async def turn(self, load: Load, seed: int) -> Turn:
        """Warm up, then run a load. Raises RuntimeError if requests fail or have other lengths."""
        rng = random.Random(seed)
        await self._all(load._replace(requests=round(WARM_UP * load.requests)), rng)
        generated = await self._generated()
        began, cpu, before = time.perf_counter(), time.process_time(), self._cpu_s()
        await self._all(load, rng)
        wall_s = time.perf_counter() - began
        parts = dict.fromkeys(PARTS, 0.0)
        for module, seconds in added(before, self._cpu_s()).items():
            name = NAMES.get(module, "others")
            parts[name if name in PARTS else "others"] += seconds
        parts["client"] = time.process_time() - cpu
        tokens = load.requests * load.tokens
        if (found := await self._generated() - generated) != tokens:
            raise RuntimeError(f"{load.name}: {found} tokens in place of {tokens}")
        return Turn(load.requests, tokens, wall_s, parts)

    def _cpu_s(self) -> dict[str, float]:
        return cpu_seconds_below(self._pid)

    async def _generated(self) -> int:
        info = await server_info(self._others)
        return int(info["internal_states"][0]["generation_tokens_total"])

    async def _all(self, load: Load, rng: random.Random) -> None:
        prompts = iter([" ".join(rng.choices(WORDS, k=load.words)) for _ in range(load.requests)])

        async def worker() -> None:
            for prompt in prompts:
                await self._answer(load, prompt)

        async with asyncio.TaskGroup() as group:
            for _ in range(load.at_once):
                group.create_task(worker())

    async def _answer(self, load: Load, prompt: str) -> None:
        body = {"prompt": prompt, "max_tokens": load.tokens, "ignore_eos": True}
        if load.streamed:
            body["stream"] = True
        events = self._events.post("/v1/completions", msgspec.json.encode(body))
        async with aclosing(events):
            async for _ in events:
                pass


async def measure(
    trees: Sequence[Path], loads: Sequence[Load], rate: float, repeat: int, log: Path
) -> dict[str, dict[str, list[Turn]]]:
    """The turns by load and by checkout."""
    turns: dict[str, dict[str, list[Turn]]] = {
        load.name: {str(tree): [] for tree in trees} for load in loads
    }
    async with AsyncExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for tree in trees:
            known = set(children(os.getpid()))
            server = running(NullServer(tree, rate), resolve_model(DEFAULT_MODEL).path, log)
            url = await stack.enter_async_context(server)
            (pid,) = set(children(os.getpid())) - known
            events = EventClient(url, {})
            stack.push_async_callback(events.close)
            others = await stack.enter_async_context(LoadGenerator(url))
            contenders[str(tree)] = Contender(pid, events, others)
        for seed in range(repeat):
            for load in loads:
                order = list(contenders)[:: 1 if seed % 2 == 0 else -1]
                for name in order:
                    turns[load.name][name].append(await contenders[name].turn(load, seed))
    return turns


def per_table(turns: Mapping[str, Mapping[str, Sequence[Turn]]], *, tokens: bool) -> str:
    """CPU microseconds a request, or a token where there are several, by process: medians."""
    lines = []
    for load, by_tree in turns.items():
        for tree, runs in by_tree.items():
            if tokens and runs[0].tokens == runs[0].requests:
                continue
            figures = [
                [run.requests / run.wall_s, run.tokens / run.wall_s, *_micros(run, tokens)]
                for run in runs
            ]
            medians = map(statistics.median, zip(*figures, strict=True))
            form = "{:.1f}" if tokens else "{:.0f}"
            rates = [f"{next(medians):.0f}" for _ in range(2)]
            lines.append([load, tree, *rates, *(form.format(each) for each in medians)])
    return markdown(COLUMNS, lines)


def _micros(turn: Turn, tokens: bool) -> list[float]:
    """In the order of COLUMNS."""
    each = 1e6 / (turn.tokens if tokens else turn.requests)
    server = [turn.cpu_s[part] * each for part in SERVER_PARTS]
    return [*server, sum(server), turn.cpu_s["client"] * each]


def report(
    others: Sequence[Path], scale: float, rate: float, repeat: int, log: Path, *, as_json: bool
) -> str:
    """Both tables of this checkout beside `others`, or all turns as JSON."""
    loads = [load.scaled(scale) for load in LOADS]
    turns = uvloop.run(measure([ROOT, *others], loads, rate, repeat, log))
    if as_json:
        plain: Any = {
            load: {tree: [run._asdict() for run in runs] for tree, runs in by_tree.items()}
            for load, by_tree in turns.items()
        }
        return json.dumps(plain, indent=1)
    request, token = (per_table(turns, tokens=tokens) for tokens in (False, True))
    return f"CPU time of a request, in us\n\n{request}\n\nof a token, in us\n\n{token}"
