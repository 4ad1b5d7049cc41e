"""What hostile HTTP traffic does to other clients: the second table of `bench.hostile`.

One server has steady greedy streams, over the ring and over HTTP, and a client that asks for a
token and for /health again and again on new connections. Each round of an attack has two phases:
beside a plain busy process at the gateway's niceness, and attacked by another process. What counts
is the inter-token latency, attacked over busy, and that no request of others fails.
"""

import asyncio
import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from bench.figures import percentile
from bench.hostile_bodies import BODIES
from bench.hostile_process import attacker, spin
from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.streams import steady_streams
from srt.client.face import AsyncClient
from srt.files.model_files import resolve_model
from srt.gateway.actor import GatewayActor
from srt.ring.listener import allow_connections

STREAMS = 2  # of each kind
IN_FLIGHT = 4  # bodies
FLOOD = 2100  # connections
TEXTS = 30  # to tokenize at once
BUSY = "(a busy process)"
_SHORT: dict[str, Any] = {"max_new_tokens": 1, "temperature": 0.0}
_REQUEST = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"

Answers = Counter[str]
Attack = Callable[[str, Answers], Awaitable[None]]  # runs until it is cancelled


# ---- The attacks -----------------------------------------------------------------------------


async def _post(url: str, path: str, body: bytes, answers: Answers) -> None:
    """Post `body` again and again on one connection, as cheaply as possible."""
    at = urlsplit(url)
    data = _REQUEST.format(path, len(body)).encode() + body
    while True:
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        suppressed = contextlib.suppress(OSError, asyncio.IncompleteReadError)
        with contextlib.closing(writer), suppressed:
            while True:
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                answers[head.split()[1].decode()] += 1
                fields = [line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:-2]]
                length = next(int(value) for name, value in fields if name == b"content-length")
                await reader.readexactly(length)


def _bodies(name: str, count: int = IN_FLIGHT) -> Attack:
    async def attack(url: str, answers: Answers) -> None:
        body = BODIES[name].make()
        await asyncio.gather(*(_post(url, BODIES[name].path, body, answers) for _ in range(count)))

    return attack


def _connections(first: bytes, more: bytes) -> Attack:
    """Keep FLOOD connections open, each of which sends `first`, and then `more` every second."""

    async def hold(url: str, answers: Answers) -> None:
        at = urlsplit(url)
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(at.hostname, at.port)
                answers["opened"] += 1
                with contextlib.closing(writer):
                    writer.write(first)
                    while not reader.at_eof():
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(4096), 1.0)
                        writer.write(more)
            await asyncio.sleep(1.0)

    async def attack(url: str, answers: Answers) -> None:
        await asyncio.gather(*(hold(url, answers) for _ in range(FLOOD)))

    return attack


async def _busy(url: str, answers: Answers) -> None:
    os.nice(GatewayActor.niceness - os.nice(0))
    while True:
        spin(0.05)
        await asyncio.sleep(0)


HALF = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
HTTP_ATTACKS: dict[str, Attack] = {
    BUSY: _busy,
    "2,100 idle connections": _connections(b"", b""),
    "2,100 heads that trickle": _connections(b"POST /generate HTTP/1.1\r\nHost: x", b"x"),
    "2,100 bodies that trickle": _connections(HALF, b" "),
    "30 x 130,000 characters to tokenize": _bodies("130,000 characters to tokenize", TEXTS),
    **{name: _bodies(name) for name in BODIES},
}


def attack(url: str, orders: Connection) -> None:
    """The attacker's process: a name begins an attack, "" ends it and asks for its Answers. It
    reports when it is ready, and when an attack has begun."""
    allow_connections(FLOOD)
    orders.send("ready")
    asyncio.run(_obey(url, orders))


async def _obey(url: str, orders: Connection) -> None:
    while name := await asyncio.to_thread(orders.recv):
        answers = Answers()
        task = asyncio.ensure_future(HTTP_ATTACKS[name](url, answers))
        await asyncio.sleep(0.2)
        orders.send("begun")
        await asyncio.to_thread(orders.recv)
        if task.done():
            task.result()  # raises what went wrong: nothing else ends an attack
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        orders.send(answers)


# ---- The others ------------------------------------------------------------------------------


class Phase(NamedTuple):
    """What the others saw: inter-token latencies in ms, requests, and what failed."""

    latencies: list[float]
    requests: Counter[str]
    failures: Counter[str]


async def phase(url: str, ring: str, seconds: float) -> Phase:
    """Streams and short requests for this many seconds."""
    found = Phase([], Counter(), Counter())
    async with AsyncClient(url) as over_http, AsyncClient(ring) as over_ring:
        asking = asyncio.create_task(_ask(url, found))
        latencies, errors = await steady_streams([over_http, over_ring], STREAMS, seconds)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    found.latencies.extend(latencies)
    found.failures.update(f"stream: {error}"[:120] for error in errors)
    return found


async def _ask(url: str, found: Phase) -> None:
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=url, timeout=30, limits=limits) as http:
        while True:
            for path in ("/health", "/generate"):
                body = {"text": "One and one", "sampling_params": _SHORT}
                request = http.get(path) if path == "/health" else http.post(path, json=body)
                try:
                    status = str((await request).status_code)
                except httpx2.HTTPError as error:
                    status = type(error).__name__
                found.requests[path] += 1
                if status != "200":
                    found.failures[f"{path}: {status}"] += 1
            await asyncio.sleep(0.1)


class Row(NamedTuple):
    """The phases of one attack, over all rounds, and how it was answered."""

    busy: list[Phase]
    attacked: list[Phase]
    answers: Answers


HEADINGS = (
    *("attack over HTTP", "answers", "ITL p50 ms, busy to attacked", "p99 ms"),
    *("p99, attacked / busy", "others' requests", "failed"),
)


class Bench(NamedTuple):
    """A server, at `url` and `ring`, and the processes that are busy beside it and attack it."""

    url: str
    ring: str
    busy: Connection
    hostile: Connection
    seconds: float

    async def measure(self, name: str, rounds: int) -> Row:
        """The phases in turns, so that other work on the machine affects all of them."""
        row = Row([], [], Answers())
        for _ in range(rounds):
            busy, _ = await self._phase(self.busy, BUSY)
            attacked, answers = await self._phase(self.hostile, name)
            row.busy.append(busy)
            row.attacked.append(attacked)
            row.answers.update(answers)
        return row

    async def _phase(self, orders: Connection, name: str) -> tuple[Phase, Answers]:
        orders.send(name)
        await asyncio.to_thread(orders.recv)
        found = await phase(self.url, self.ring, self.seconds)
        orders.send("")
        answers: Answers = await asyncio.to_thread(orders.recv)
        return found, answers


def cells(name: str, row: Row) -> list[str]:
    """A line of the table."""
    kinds = (row.busy, row.attacked)
    merged = [[value for phase in phases for value in phase.latencies] for phases in kinds]
    answers = ", ".join(f"{count} {kind}" for kind, count in sorted(row.answers.items()))
    line = [name, answers or "-"]
    line += [
        " to ".join(f"{percentile(values, percent) or 0:.1f}" for values in merged)
        for percent in (50, 99)
    ]
    ratio = (percentile(merged[1], 99) or 0) / (percentile(merged[0], 99) or 1)
    failures = sum((phase.failures for phase in row.attacked), Counter[str]())
    requests = sum(phase.requests.total() for phase in row.attacked)
    failed = ", ".join(f"{count} x {what}" for what, count in failures.items())
    return [*line, f"{ratio:.2f}", str(requests), failed or "0"]


async def report(names: list[str], model: str, rounds: int, seconds: float) -> None:
    """Print the table of these attacks."""
    print(f"\n| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        ring = Path(directory) / "ring"
        log = Path(directory) / "log"
        options = ["--ring-dir", str(ring), "--log-level", "error"]
        async with running(Srt(), resolve_model(model).path, log, options) as url:
            with attacker(attack, url) as busy, attacker(attack, url) as hostile:
                bench = Bench(url, f"ipc://{ring}", busy, hostile, seconds)
                for process in (busy, hostile):
                    await asyncio.to_thread(process.recv)
                await phase(url, bench.ring, 1.0)  # the first steps are slower
                for name in names:
                    row = await bench.measure(name, rounds)
                    print(f"| {' | '.join(cells(name, row))} |", flush=True)
