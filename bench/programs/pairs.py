"""A server that both ways of doing the same work use in turns, and what that takes."""

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx2

from bench.measure import words_of
from bench.programs.clients import Caller, client_at, generated, submitted
from bench.programs.delay import delayed
from bench.programs.workloads import Chunk, Workload, sampling, source
from srt.client.face import AsyncClient
from srt.client.programs import ProgramSession

CONNECTIONS = 32  # that are opened before a pair
T = TypeVar("T")
NOTHING: dict[str, str] = {}


class Pair(NamedTuple):
    """Seconds of the same work: call by call, and as a program."""

    one_by_one_s: float
    program_s: float

    @property
    def ratio(self) -> float:
        return self.one_by_one_s / self.program_s


class Bench:
    """A server, a proxy before it, and a client of each kind behind that."""

    def __init__(self, args: argparse.Namespace, http: httpx2.AsyncClient, url: str) -> None:
        self.num_pairs, self.http, self._url = args.pairs, http, url
        self._seed = 0
        self.round_trip_s = args.delay_ms / 1e3
        self.tokens_per_word = 1.3
        self._words = words_of(args.data) if args.data else None

    def chunks(self) -> Chunk:
        """A source of texts that were not used before."""
        self._seed += 1
        return source(self._seed, self.tokens_per_word, self._words)

    async def flush(self) -> None:
        (await self.http.post("/flush_cache", params={"timeout": 30})).raise_for_status()

    async def ready(self, connections: int = CONNECTIONS) -> None:
        """An empty cache, and as many connections as are needed at once."""
        await self.flush()
        await asyncio.gather(*(self.http.get("/health") for _ in range(connections)))

    @asynccontextmanager
    async def sessions(self, number: int) -> AsyncIterator[list[ProgramSession]]:
        """So many sessions of one client, which has a connection for each."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(AsyncClient(self._url))
            found = await asyncio.gather(*(client.session() for _ in range(number)))
            for session in found:
                stack.push_async_callback(session.close)
            yield found

    async def pair(self, workload: Workload, first: int) -> Pair:
        """The same work both ways, each with an empty cache; `first` begins."""
        seconds, texts = [0.0, 0.0], [NOTHING, NOTHING]
        async with self.sessions(1) as (session,):
            for way in (first, 1 - first):
                await self.ready()
                run = submitted(session, workload) if way else Caller(self.http).run(workload)
                seconds[way], texts[way] = await timed(run)
        assert texts[0] == texts[1], "both ways give the same texts"
        return Pair(*seconds)

    async def pairs(self, workloads: Iterator[Workload]) -> tuple[list[Pair], Workload]:
        found = []
        for number in range(self.num_pairs):
            workload = next(workloads)
            found.append(await self.pair(workload, number % 2))
        return found, workload


class Benches(NamedTuple):
    """The same server behind a proxy, and without one."""

    far: Bench
    near: Bench


class Part(Protocol):
    """One of the measurements."""

    def __call__(self, benches: Benches, args: argparse.Namespace) -> Awaitable[list[list[str]]]:
        """Its rows; `args` are those of `bench.programs`."""


@asynccontextmanager
async def benches(args: argparse.Namespace, url: str) -> AsyncIterator[Benches]:
    """Both for the server at `url`, which has warmed up."""
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    async with delayed(address.hostname, address.port, args.delay_ms / 1e3) as port:
        far_url = f"http://127.0.0.1:{port}"
        async with client_at(far_url) as http, client_at(url) as near_http:
            far, near = Bench(args, http, far_url), Bench(args, near_http, url)
            near.round_trip_s = 0.0
            await generated(near_http, "Warm up." * 50, sampling(8))
            yield Benches(far, near)


async def timed(run: Awaitable[T]) -> tuple[float, T]:
    """The seconds that something takes, and its result."""
    began = time.perf_counter()
    result = await run
    return time.perf_counter() - began, result


def spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def row(name: str, pairs: Sequence[Pair], *more: str) -> list[str]:
    return [
        name,
        f"{statistics.median(pair.one_by_one_s for pair in pairs):.2f}",
        f"{statistics.median(pair.program_s for pair in pairs):.2f}",
        spread([pair.ratio for pair in pairs]),
        *more,
    ]
