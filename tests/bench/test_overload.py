"""The open-loop generator against a server of a few lines, and the table and plot of a report."""

import asyncio
import itertools
from xml.etree import ElementTree

from bench.open_loop import Generator, OpenLoopReport
from bench.overload import Level, Report, parts_table, table
from bench.overload_plot import draw

SOURCE = "127.0.0.2"  # of the generator's connections
STREAM = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"9\r\ndata: {}\n\r\n"
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}"
CUT = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: {}\n"


async def run(answers: list[bytes], concurrency: int = 0, rate: float = 0.0) -> OpenLoopReport:
    """A run against a server that gives these answers in turn."""
    turn = itertools.cycle(answers)
    serving: list[asyncio.Task[None] | None] = []
    addresses = set[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        addresses.add(writer.get_extra_info("peername")[0])
        while await reader.read(65536):
            answer = next(turn)
            writer.write(answer[:30])
            await writer.drain()
            writer.write(answer[30:])
            if answer == CUT:
                break
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        generator = Generator(f"http://127.0.0.1:{port}", itertools.repeat(b"{}"), source=SOURCE)
        report = await generator.run(rate, concurrency, seconds=0.3, seed=0)
        await asyncio.gather(*(task for task in serving if task is not None))
        assert addresses == {SOURCE}
        return report


async def test_answers_and_refusals() -> None:
    report = await run([STREAM, REFUSAL], concurrency=2)
    assert {e.status for e in report.exchanges} == {200, 429}
    assert not any(e.failed for e in report.exchanges)
    assert all(0.0 <= e.sent <= e.head <= e.first <= e.ended for e in report.exchanges)


async def test_a_cut_stream_has_failed() -> None:
    report = await run([CUT], rate=50.0)
    assert report.exchanges
    assert all(e.failed for e in report.exchanges)


async def test_arrivals_do_not_wait_for_answers() -> None:
    report = await run([STREAM], rate=200.0)
    assert 20 < len(report.exchanges) < 150


def level(multiple: float, in_time: float) -> Level:
    return Level(
        offered=multiple * 8,
        multiple=multiple,
        answered=in_time,
        in_time=in_time,
        refused=3,
        failed=0,
        ttft_p50_s=1.0,
        ttft_p99_s=2.0,
        refusal_p50_ms=None if multiple < 1 else 3.0,
        refusal_p99_ms=None if multiple < 1 else 9.0,
        generator_cpu=0.1,
        server_cpu={"srt.gateway": 0.2, "model": 1.7},
        memory_mib={"srt.gateway": 60.0},
    )


def report() -> Report:
    levels = [level(0.5, 4.0), level(1.0, 8.0), level(10.0, 7.6)]
    return Report(date="", machine={}, options="", bound_s=30.0, capacity=8.0, levels=levels)


def test_the_tables() -> None:
    last = [cell.strip() for cell in table(report()).splitlines()[-1].split("|")]
    assert last[1:5] == ["10", "80.0", "7.60", "0.95"]
    assert "1.700" in parts_table(report())


def test_the_plot_is_an_svg() -> None:
    for other in (None, report()):
        root = ElementTree.fromstring(draw(report(), other))
        assert root.tag.endswith("svg")
        assert len(root.findall(".//{*}polyline")) == (3 if other is None else 6)
