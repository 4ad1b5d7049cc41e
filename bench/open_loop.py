"""`python -m bench.open_loop`: sends requests at a rate that does not depend on the answers.

It runs in a process of its own and reports its CPU time, which is taken from the server that it
measures. So it speaks just enough HTTP for that, over kept connections, and looks in a stream only
for its first event and its end. With `--concurrency` it keeps this many requests in flight instead.
The report goes to stdout as JSON, or to the file `--json`. With `--together` it says "ready" once
its requests are made, and begins when stdin has a line: several generators then begin at once.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop
from msgspec import Struct

from srt.benchmark.text import TextSource

CLIENT_TIMEOUT_S = 60.0  # after which a client gives up and disconnects
MAX_BODIES = 20_000  # that are different; a run that sends more begins anew
_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"


class Exchange(Struct):
    """One request. Times are seconds since the run began; `status` 0 if no answer came."""

    sent: float
    head: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    status: int = 0
    failed: bool = False  # the stream was cut, or reported an error


class OpenLoopReport(Struct):
    """All exchanges, how long requests were sent, and this process's own CPU time meanwhile."""

    exchanges: list[Exchange]
    seconds: float
    cpu_s: float


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time, and goes back to its pool afterwards."""

    def __init__(self, generator: "Generator") -> None:
        self._generator = generator
        self._exchange: Exchange | None = None
        self._head = b""
        self._tail = b""
        self._left = -1  # bytes of a body with a length; -1: it is chunked

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def send(self, exchange: Exchange, data: bytes) -> None:
        """Start an exchange."""
        self._exchange, self._head, self._tail, self._left = exchange, b"", b"", -1
        self._transport.write(data)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(CLIENT_TIMEOUT_S, self._transport.abort)

    def close(self) -> None:
        """Close the connection, which is idle."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:
            return
        if self._exchange.status == 0:
            self._head += data
            head, found, data = self._head.partition(_END_OF_HEAD)
            if not found:
                return
            self._exchange.head = self._generator.now()
            self._exchange.status = int(head[9:12])
            lengths = [
                line for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
            ]
            self._left = int(lengths[0][15:]) if lengths else -1
        self._on_body(self._exchange, data)

    def _on_body(self, exchange: Exchange, data: bytes) -> None:
        if data and exchange.first == 0.0:
            exchange.first = self._generator.now()
        exchange.failed |= b'{"error"' in data and exchange.status == 200
        if self._left >= 0:
            self._left -= len(data)
            has_ended = self._left <= 0
        else:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            has_ended = self._tail == _LAST_CHUNK
        if has_ended:
            self._timer.cancel()
            self._exchange = None
            self._generator.done(exchange, self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._exchange is None:
            self._generator.forget(self)
            return
        exchange, self._exchange = self._exchange, None
        self._timer.cancel()
        exchange.failed = True
        self._generator.done(exchange, None)


class Generator:
    """Sends `bodies` to `url` in turn, with an API key if there is one, and from the local address
    `source` if that is given."""

    def __init__(self, url: str, bodies: Iterator[bytes], key: str = "", source: str = "") -> None:
        parts = urlsplit(url)
        self._source = (source, 0) if source else None
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            + (f"authorization: Bearer {key}\r\n" if key else "")
            + "content-type: application/json\r\ncontent-length: "
        ).encode()
        self._bodies = bodies
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._open = 0
        self._concurrency = 0
        self._progress = asyncio.Event()
        self.exchanges: list[Exchange] = []

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    async def run(self, rate: float, concurrency: int, seconds: float, seed: int) -> OpenLoopReport:
        """Send for this many seconds, and wait for what is then in flight."""
        self._began, cpu = time.perf_counter(), time.process_time()
        self._concurrency = concurrency
        gaps = random.Random(seed)
        for _ in range(concurrency):
            self._start()
        due = gaps.expovariate(rate) if rate else seconds
        while due < seconds:
            await asyncio.sleep(due - self.now())
            self._start()
            due += gaps.expovariate(rate)
        await asyncio.sleep(seconds - self.now())
        self._concurrency = 0
        cpu_s = time.process_time() - cpu
        while self._open:
            self._progress.clear()
            await self._progress.wait()
        for connection in self._idle:
            connection.close()
        return OpenLoopReport(self.exchanges, seconds, cpu_s)

    def done(self, exchange: Exchange, connection: Connection | None) -> None:
        """An exchange has ended; its connection is free, or None if it was lost."""
        exchange.ended = self.now()
        self._open -= 1
        if connection is not None:
            self._idle.append(connection)
        if self._concurrency:
            self._start()
        self._progress.set()

    def forget(self, connection: Connection) -> None:
        """The server has closed an idle connection."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _start(self) -> None:
        exchange = Exchange(self.now())
        self.exchanges.append(exchange)
        self._open += 1
        body = next(self._bodies)
        data = self._head + str(len(body)).encode() + _END_OF_HEAD + body
        if self._idle:
            self._idle.pop().send(exchange, data)
            return
        task = asyncio.ensure_future(self._connect(exchange, data))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, exchange: Exchange, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self), self._host, self._port, local_addr=self._source
            )
        except OSError:
            exchange.failed = True
            self.done(exchange, None)
            return
        connection.send(exchange, data)


def bodies(model: str, words: int, max_tokens: int, count: int, seed: int) -> Iterator[bytes]:
    """Requests of this many words each, all different, made ahead of the run."""
    source = TextSource(seed)
    options = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    made = [
        msgspec.json.encode({**options, "prompt": source.text(words), "ignore_eos": True})
        for _ in range(count)
    ]
    return (made[i % count] for i in range(sys.maxsize))


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.open_loop", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second")
    parser.add_argument("--concurrency", type=int, default=0, help="requests in flight")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--words", type=int, default=64, help="of a prompt")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key", default="", help="API key of the server")
    parser.add_argument("--source", default="", help="local address of its connections")
    parser.add_argument("--together", action="store_true", help="wait for stdin before it begins")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--cpu", type=int, help="the core to run on")
    args = parser.parse_args(argv)
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    count = min(MAX_BODIES, int(args.rate * args.seconds * 1.2) + 2000)
    source = bodies(args.model, args.words, args.max_tokens, count, args.seed)

    async def run() -> OpenLoopReport:
        generator = Generator(args.url, source, args.key, args.source)
        if args.together:
            print("ready", flush=True)
            if not sys.stdin.readline():
                sys.exit("who was to say when to begin has ended")
        return await generator.run(args.rate, args.concurrency, args.seconds, args.seed)

    data = msgspec.json.encode(uvloop.run(run()))
    if args.json is None:
        # With PYTHONUNBUFFERED `sys.stdout.buffer` has no buffer, and after uvloop's run a large
        # write to a pipe may be cut short there, without an error.
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            out.write(data)
    else:
        args.json.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
