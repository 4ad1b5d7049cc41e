"""The measurement of programs: its proxy, and the work that it compares."""

import asyncio
import itertools
import socket
import struct
import time
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from bench.programs import ablations, cost, crowds, flood, handed, replicas
from bench.programs.__main__ import ABLATIONS, NAMES, parse_args, parts
from bench.programs.clients import Caller, depths_of
from bench.programs.delay import delayed
from bench.programs.pairs import Bench, Pair, Part, benches, row
from bench.programs.single import bound
from bench.programs.workloads import CHAIN_CALLS, MAPS, Workload, chain, coding, map_reduce, source
from srt.programs.parts import Session
from srt.programs.submissions import Submission
from srt.wire.sampling import SamplingParams
from tests.e2e.server import Server
from tests.waiting import SOON_S

ROUND_TRIP_S = 0.2


async def test_the_proxy_delays_and_keeps_the_order() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(SOON_S), server, delayed("127.0.0.1", port, ROUND_TRIP_S) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        for trips in (2, 1):  # the first one with a handshake
            sent = b"".join(b"%05d" % i for i in range(2000))
            began = time.monotonic()
            for start in range(0, len(sent), 777):
                writer.write(sent[start : start + 777])
            assert await reader.readexactly(len(sent)) == sent
            assert time.monotonic() - began >= trips * ROUND_TRIP_S
        writer.close()
        await writer.wait_closed()


async def test_the_proxy_passes_on_that_an_end_was_reset() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        no_linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        writer.close()

    server = await asyncio.start_server(reset, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(SOON_S), server, delayed("127.0.0.1", port, 0.0) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(b"x")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


CHUNK = source(1, 1.3, None)
WORK = [chain(CHUNK, 5, 2), map_reduce(CHUNK, 5, 2), coding(CHUNK, 4, 2)]


@pytest.mark.parametrize("workload", WORK, ids=lambda workload: workload.name)
async def test_both_ways_do_the_same_work(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is taken, and the client makes each of its calls once, with the texts joined."""
    made = Submission(Session("s", "", "", "", 600.0, 0.0), workload.program, 0)
    prompts: list[str] = []

    async def generated(
        http: object, prompt: str, asked: SamplingParams, spans: object = ()
    ) -> str:
        assert asked.max_new_tokens == 2
        prompts.append(prompt)
        return f"<{len(prompt)}>"

    monkeypatch.setattr("bench.programs.clients.generated", generated)
    texts = await Caller(None).run(workload)  # type: ignore[arg-type]
    assert [*texts] == workload.sinks and all(texts.values())
    assert len(prompts) == len(workload.program.calls)
    calls = {"chain": CHAIN_CALLS, "map_reduce": MAPS + 1, "coding": 1 + 4 + 3 * 8}
    assert len(prompts) == calls[workload.name] <= len(made.works)
    assert workload.program.eager  # it runs while the client asks for its variables


def test_rows() -> None:
    pairs = [Pair(2.0, 1.0), Pair(3.0, 1.0), Pair(2.5, 1.0)]
    assert row("x", pairs)[3] == "2.50 (2.00 to 3.00)"
    args = parse_args(["--outputs", "25", "--only", "chain"])
    assert (args.outputs, args.only, args.pairs) == ([25], ["chain"], 5)


def test_the_bound() -> None:
    """20 calls that work as long as a round trip: 40 in place of 21."""
    bench = cast("Bench", SimpleNamespace(round_trip_s=0.25))
    assert bound(WORK[0], bench, Pair(0.0, 20 * 0.25)) == "1.90"


def test_the_cost_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    cost.report()
    chain_line, fan_line = capsys.readouterr().out.splitlines()
    assert chain_line.startswith("chain of 1000: ") and fan_line.startswith("fan of 1000: ")


def test_how_deep_calls_are() -> None:
    depths = depths_of(map_reduce(CHUNK, 5, 2, 3))
    assert depths == {"m0": 1, "m1": 1, "m2": 1, "all": 1, "end": 0}
    assert depths_of(chain(CHUNK, 5, 2, 3)) == {"s2": 0, "s1": 1, "s0": 2}


def test_the_chain_that_gains_least() -> None:
    found = [
        crowds.Crowd([[2.0, 4.0], [1.0, 4.0]], [[], []]),
        crowds.Crowd([[2.0, 4.0], [1.0, 3.0]], [[], []]),
        crowds.Crowd([[2.0, 4.0], [3.0, 2.0]], [[1.0], [2.0]]),
    ]
    assert crowds.longest(found) == 0.75
    client, program, ratio, longest, chats, asked = crowds.crowd_row("x", found, 1.3)[1:]
    assert (client, program, longest, asked) == ("3.00", "2.50", "0.75", "1.30")
    assert ratio == "1.20 (1.20 to 1.50)" and chats == "0.50 (0.50 to 0.50)"


SMALL = {
    **dict.fromkeys(("CHAIN_CALLS", "BESIDE_CALLS", "MAPS", "CALIBRATION_CHATS"), 2),
    **dict.fromkeys(("CHAIN_OUTPUTS", "MAP_OUTPUTS", "CHAT_OUTPUTS"), 3),
    **dict.fromkeys(("CHAIN_TOKENS", "MAP_TOKENS", "CHAT_TOKENS"), 10),
    **dict.fromkeys(("CHATS_FOR_S", "CHAT_LEAD_S"), 0.02),
}
NEAR = ablations.Variant("groups", hints=True)
FULL, SLOW = pytest.mark.full, pytest.mark.slow
PARTS = [
    pytest.param(crowds.COLUMNS, crowds.chains_beside_chats, marks=FULL, id="beside_chats"),
    pytest.param(flood.COLUMNS, flood.flood, marks=FULL, id="flood"),
    pytest.param(handed.COLUMNS, handed.handed, marks=FULL, id="handed"),
    pytest.param(crowds.COLUMNS, crowds.chains_at_once, marks=FULL, id="chains"),
    pytest.param(crowds.COLUMNS, crowds.map_reduces_at_once, marks=FULL, id="map_reduces"),
    pytest.param(replicas.COLUMNS, replicas.mixed, marks=SLOW, id="replicas"),
    pytest.param(
        ablations.COLUMNS,
        partial(ablations.ablation, variant=NEAR),
        marks=pytest.mark.slow,
        id="ablations",
    ),
]


@pytest.mark.parametrize("columns, part", PARTS)
async def test_parts_run(
    columns: tuple[str, ...], part: Part, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With little work, on a server with one replica."""
    for name, value in SMALL.items():
        monkeypatch.setattr(crowds, name, value)
    for name, value in {"CHATS_FOR_S": 0.1, "MAP_REDUCES": 1, "MAPS": 2}.items():
        monkeypatch.setattr(replicas, name, value)
    monkeypatch.setattr(replicas, "MAP_REDUCES_ON", 0)
    monkeypatch.setattr(flood, "IDLE_PROBES", 1)
    args = parse_args(["--short", "--delay-ms", "1"])
    args.crowd, args.many, args.flood, args.handed_outputs = 2, 3, 4, 20
    async with benches(args, server.url) as both:
        rows = await part(both, args)
    assert rows and all(len(row) == len(columns) for row in rows)


def test_all_parts_can_be_chosen() -> None:
    found = parts(parse_args(["--defaults"]))
    assert [name for name, _ in itertools.groupby(part.name for part in found)] == [
        *NAMES,
        ABLATIONS,
    ]
    assert not any("--max-running-requests" in part.options for part in found)
    with pytest.raises(SystemExit):
        parse_args(["--only", "chains,none"])
