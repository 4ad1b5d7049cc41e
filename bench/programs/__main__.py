"""`python -m bench.programs`: programs on the server against a client that calls one by one.

Both talk HTTP to the same server through a proxy that makes a round trip `--delay-ms` longer, and
keep their connections open. The client joins texts itself, and sends a call as soon as it has the
call's inputs. Both must give the same texts. They take turns; "ratio" is the client's time over
the program's, of each pair. A session is opened once before. A program is submitted with `eager`,
so that it runs while the client asks for its variables.

"saved": of the round trips between calls that follow one another, what the program has saved.
"bound": R(t + w) / (t + R w) for R calls after one another that work w each, and a round trip t.
The work is that of the program without a delay.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from bench.measure import words_of
from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.programs import cost
from bench.programs.delay import delayed
from bench.programs.workloads import (
    CHAIN_CALLS,
    Workload,
    chain,
    coding,
    map_reduce,
    sampling,
    source,
)
from bench.roofline import markdown
from srt.client.face import AsyncClient
from srt.client.programs import ProgramSession
from srt.files.model_files import DEFAULT_MODEL
from srt.machine import machine
from srt.programs.transforms import apply, inputs_of
from srt.wire.programs import Call, Output, Segment, Text, Transform

WORKLOADS = ("chain", "map_reduce", "coding")
# The shares of a round trip that a call of the chain works, by its output tokens.
CHAIN_WORK = {25: 1.0, 50: 1.5, 100: 3.0}
CHAIN_BARS = {25: 1.7, 50: 1.5, 100: 1.2}
MAP_TOKENS, MAP_OUTPUTS = 400, 50
CODING_OUTPUTS = 30
PROBE_TOKENS, PROBE_SHORT, CALIBRATIONS = 400, 8, 2
TIMEOUT_S = 600.0
NOTHING: dict[str, str] = {}


class Pair(NamedTuple):
    """Seconds of the same work: call by call, and as a program."""

    one_by_one_s: float
    program_s: float

    @property
    def ratio(self) -> float:
        return self.one_by_one_s / self.program_s


class Caller:
    """A client that makes the calls of a program itself, over /generate."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def run(self, workload: Workload) -> dict[str, str]:
        """The texts of the sinks."""
        loop = asyncio.get_running_loop()
        program = workload.program
        outputs = [_output_of(call).var for call in program.calls]
        texts: dict[str, asyncio.Future[str]] = {
            name: loop.create_future() for name in (*outputs, *(t.var for t in program.transforms))
        }
        async with asyncio.TaskGroup() as group:
            for call in program.calls:
                group.create_task(self._call(call, texts))
            for transform in program.transforms:
                group.create_task(_joined(transform, texts))
        return {name: texts[name].result() for name in workload.sinks}

    async def _call(self, call: Call, texts: dict[str, "asyncio.Future[str]"]) -> None:
        output, prompt, spans = _output_of(call), "", []
        for segment in call.segments[:-1]:
            piece = await _text_of(segment, texts)
            if segment.literal and piece:
                spans.append((len(prompt), len(prompt) + len(piece)))
            prompt += piece
        answer = await generated(self._http, prompt, output.sampling.max_new_tokens or 0, spans)
        texts[output.var].set_result(answer)


def _output_of(call: Call) -> Output:
    output = call.segments[-1]
    assert isinstance(output, Output)
    return output


async def _text_of(segment: Segment, texts: dict[str, "asyncio.Future[str]"]) -> str:
    return segment.text if isinstance(segment, Text) else await texts[segment.var]


async def _joined(transform: Transform, texts: dict[str, "asyncio.Future[str]"]) -> None:
    values = {name: await texts[name] for name in inputs_of(transform.op)}
    texts[transform.var].set_result(apply(transform.op, values))


async def generated(
    http: httpx2.AsyncClient, prompt: str, outputs: int, spans: Sequence[tuple[int, int]] = ()
) -> str:
    """The text of one request."""
    params = {"max_new_tokens": outputs, "temperature": 0, "ignore_eos": True}
    body: dict[str, Any] = {"text": prompt, "sampling_params": params, "literal_spans": [*spans]}
    answer = await http.post("/generate", json=body)
    answer.raise_for_status()
    text: str = answer.json()["text"]
    return text


async def submitted(session: ProgramSession, workload: Workload) -> dict[str, str]:
    """The texts of the sinks, by a program."""
    ids = await session.submit(workload.program)
    got = await session.get_all([ids[name] for name in workload.sinks])
    assert got.done and all(var.state == "ready" for var in got.vars)
    return {var.name: var.text for var in got.vars}


class Bench:
    """A server, a proxy before it, and a client of each kind behind that."""

    def __init__(self, args: argparse.Namespace, http: httpx2.AsyncClient, url: str) -> None:
        self._args, self._http, self._url = args, http, url
        self._seed = 0
        self.round_trip_s = args.delay_ms / 1e3
        self.tokens_per_word = 1.3
        self._words = words_of(args.data) if args.data else None

    def chunks(self) -> Any:
        """A source of texts that were not used before."""
        self._seed += 1
        return source(self._seed, self.tokens_per_word, self._words)

    async def flush(self) -> None:
        (await self._http.post("/flush_cache", params={"timeout": 30})).raise_for_status()

    async def pair(self, workload: Workload, first: int) -> Pair:
        """The same work both ways, each with an empty cache; `first` begins."""
        seconds, texts = [0.0, 0.0], [NOTHING, NOTHING]
        async with AsyncClient(self._url) as client, await client.session() as session:
            for way in (first, 1 - first):
                await self.flush()
                await self._warm_up()
                began = time.perf_counter()
                run = submitted(session, workload) if way else Caller(self._http).run(workload)
                texts[way] = await run
                seconds[way] = time.perf_counter() - began
        assert texts[0] == texts[1], "both ways give the same texts"
        return Pair(*seconds)

    async def _warm_up(self) -> None:
        """Have as many connections as are needed at once."""
        await asyncio.gather(*(self._http.get("/health") for _ in range(32)))

    async def pairs(self, workloads: Iterator[Workload]) -> tuple[list[Pair], Workload]:
        found = []
        for number in range(self._args.pairs):
            workload = next(workloads)
            found.append(await self.pair(workload, number % 2))
        return found, workload

    async def chunk_tokens(self, outputs: int, work_s: float) -> int:
        """How long a part of the chain must be for a call that works for so long."""
        tokens = PROBE_TOKENS
        for _ in range(CALIBRATIONS):
            done = await self.pair(chain(self.chunks(), tokens, outputs), 1)
            short = await self.pair(chain(self.chunks(), PROBE_SHORT, outputs), 1)
            per_token = (done.program_s - short.program_s) / (tokens - PROBE_SHORT)
            missing_s = work_s * CHAIN_CALLS - short.program_s
            tokens = max(PROBE_SHORT + 1, PROBE_SHORT + round(missing_s / per_token))
        return tokens


def row(name: str, pairs: Sequence[Pair], *more: str) -> list[str]:
    ratios = [pair.ratio for pair in pairs]
    middle = statistics.median(ratios)
    return [
        name,
        f"{statistics.median(pair.one_by_one_s for pair in pairs):.2f}",
        f"{statistics.median(pair.program_s for pair in pairs):.2f}",
        f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        *more,
    ]


async def measure(bench: Bench, work: Bench, args: argparse.Namespace) -> list[list[str]]:
    """A row for each workload; `work` has no delay."""
    rows = []
    if "chain" in args.workloads:
        for outputs in args.outputs:
            rows.append(await chain_row(bench, work, outputs))
            print(rows[-1], flush=True)
    if "map_reduce" in args.workloads:
        for each in (bench, work):
            loads = iter(lambda: map_reduce(bench.chunks(), MAP_TOKENS, MAP_OUTPUTS), None)
            pairs, _ = await each.pairs(loads)
            delay = f"map-reduce, 16 maps, {each.round_trip_s * 1e3:.0f} ms"
            rows.append(row(delay, pairs, "", "", "1.00"))
            print(rows[-1], flush=True)
    if "coding" in args.workloads:
        for agents in args.agents:
            rows.append(await coding_row(bench, work, agents))
            print(rows[-1], flush=True)
    return rows


async def chain_row(bench: Bench, work: Bench, outputs: int) -> list[str]:
    share = CHAIN_WORK.get(outputs, 1.0)
    tokens = await work.chunk_tokens(outputs, share * bench.round_trip_s)
    loads = iter(lambda: chain(bench.chunks(), tokens, outputs), None)
    pairs, workload = await bench.pairs(loads)
    alone = await work.pair(workload, 1)
    inner = (workload.rounds - 1) * bench.round_trip_s
    lost = [pair.program_s - bench.round_trip_s - alone.program_s for pair in pairs]
    saved = 1 - statistics.median(lost) / inner
    call_s = alone.program_s / workload.rounds
    name = f"chain of 20, {outputs} outputs, parts of {tokens} tokens, {call_s * 1e3:.0f} ms a call"
    bar = f"{CHAIN_BARS.get(outputs, 1.0):.2f}"
    return row(name, pairs, f"{saved:.1%}", bound(workload, bench, alone), bar)


async def coding_row(bench: Bench, work: Bench, agents: int) -> list[str]:
    loads = iter(lambda: coding(bench.chunks(), agents, CODING_OUTPUTS), None)
    pairs, workload = await bench.pairs(loads)
    alone = await work.pair(workload, 1)
    limit = bound(workload, bench, alone)
    return row(f"coding, {agents} agents", pairs, "", limit, f"{0.9 * float(limit):.2f}")


def bound(workload: Workload, bench: Bench, alone: Pair) -> str:
    rounds, trip_s = workload.rounds, bench.round_trip_s
    work_s = alone.program_s / rounds
    return f"{rounds * (trip_s + work_s) / (trip_s + rounds * work_s):.2f}"


async def run_own(args: argparse.Namespace) -> None:
    """The same with a server of its own."""
    with tempfile.TemporaryDirectory() as directory:
        async with running(Srt(), Path(DEFAULT_MODEL), Path(directory, "log")) as url:
            await run(args, url)


async def run(args: argparse.Namespace, url: str) -> None:
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    async with delayed(address.hostname, address.port, args.delay_ms / 1e3) as port:
        far = f"http://127.0.0.1:{port}"
        async with client_at(far) as http, client_at(url) as near:
            bench, work = Bench(args, http, far), Bench(args, near, url)
            work.round_trip_s = 0.0
            await generated(near, "Warm up." * 50, sampling(8).max_new_tokens or 8)
            rows = await measure(bench, work, args)
    print(f"{machine()}, a round trip of {args.delay_ms:g} ms, {args.pairs} pairs")
    columns = ("work", "one by one s", "program s", "ratio", "saved", "bound", "asked")
    print(markdown(columns, rows))


def client_at(url: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.programs", description=__doc__)
    parser.add_argument("--url", help="a running server; otherwise one is started")
    parser.add_argument("--data", type=Path, help="a directory of *.jsonl files with text")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--delay-ms", type=float, default=250.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--outputs", default="25,50,100", help="of the chain's calls")
    parser.add_argument("--cost", action="store_true", help="measure a call's cost in the graph")
    parser.add_argument("--agents", default="4,8,16")
    args = parser.parse_args(argv)
    args.workloads = args.workloads.split(",")
    if not set(args.workloads) <= {*WORKLOADS}:
        parser.error(f"--workloads: choose from {', '.join(WORKLOADS)}")
    args.outputs, args.agents = (
        [int(number) for number in text.split(",")] for text in (args.outputs, args.agents)
    )
    return args


def main() -> None:
    args = parse_args()
    if args.cost:
        cost.report()
        return
    asyncio.run(run(args, args.url) if args.url else run_own(args))


if __name__ == "__main__":
    main()
