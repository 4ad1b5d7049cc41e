"""`python -m bench.overload`: what a server still does when asked for far more than it can do.

A server is started, and its capacity measured with CLOSED requests in flight. Then requests arrive
at random at multiples of that rate, whatever becomes of the earlier ones, from a generator in a
process of its own (`bench.open_loop`), on one core, whose CPU time is reported. Answers count while
requests are being sent, after the first RAMP_S seconds; latencies are those of all that were sent.

"in time": complete answers whose first token came within the bound on the wait, per second. "of
best": that over the best level's. "at equal CPU": the same, with each level's rate divided by the
share of the cores that the generator left.
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from bench.cpu_time import added, cpu_seconds, descendants, module_of
from bench.figures import percentile
from bench.open_loop import Exchange, OpenLoopReport
from bench.overload_plot import draw
from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.roofline import markdown
from srt.benchmark.summary import now
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.machine import machine

CLOSED = 16
CALIBRATION_S = 20.0
RAMP_S = 5.0
MULTIPLES = (0.5, 1.0, 2.0, 5.0, 10.0)
QUICK_MULTIPLES = (0.5, 1.0, 10.0)
QUICK_SECONDS = 15.0
NO_LIMIT_S = 30.0  # what counts as in time on a server without a bound
GENERATOR = "bench.open_loop"
MODEL_THREADS = "model"
_MIB = 1024.0  # of the kernel's kB


class Level(Struct, kw_only=True):
    """One offered load. Rates are per second, CPU in cores, memory in MiB by process."""

    offered: float
    multiple: float
    answered: float
    in_time: float
    refused: int
    failed: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    refusal_p50_ms: float | None
    refusal_p99_ms: float | None
    generator_cpu: float
    server_cpu: dict[str, float]
    memory_mib: dict[str, float]


class Report(Struct, kw_only=True):
    """A run: the bound on the wait in s, and the levels in their order."""

    date: str
    machine: dict[str, Any]
    options: str
    bound_s: float
    capacity: float
    levels: list[Level]

    @property
    def best(self) -> float:
        """Answers in time per second, of the best level."""
        return max(level.in_time for level in self.levels)


COLUMNS = (
    *("load", "offered /s", "in time /s", "of best", "at equal CPU", "refused", "failed"),
    *("TTFT p50, s", "p99", "refusal p50, ms", "p99", "generator, cores", "server", "MiB"),
)


async def measure(args: argparse.Namespace) -> Report:
    """Run all levels against one server."""
    options = shlex.split(args.server_args)
    with tempfile.TemporaryDirectory() as directory:
        log = args.log or Path(directory) / "server.log"
        async with running(Srt(), resolve_model(DEFAULT_MODEL).path, log, options) as url:
            bench = _Bench(url, args)
            await bench.prepare()
            multiples = QUICK_MULTIPLES if args.quick else args.load
            return await bench.report(multiples)


class _Bench:
    """The levels, one after the other, on the server at `url`."""

    def __init__(self, url: str, args: argparse.Namespace) -> None:
        self._url, self._args = url, args

    async def prepare(self) -> None:
        async with httpx2.AsyncClient(base_url=self._url) as http:
            info = (await http.get("/server_info")).json()
            self._model = (await http.get("/v1/models")).json()["data"][0]["id"]
        self._bound_s = float(info["max_queue_wait"]) or NO_LIMIT_S

    async def report(self, multiples: Sequence[float]) -> Report:
        closed = ("--concurrency", str(CLOSED), "--seconds", str(CALIBRATION_S))
        run = await self._generate(*closed, "--seed", "0")
        answers = [e for e in run.exchanges if e.status == 200 and not e.failed]
        capacity = self._args.capacity or _rate(run, answers)
        if capacity == 0:
            raise RuntimeError(f"nothing was answered within {CALIBRATION_S:g} s")
        print(f"capacity {capacity:.2f}/s", flush=True)
        levels = []
        for number, multiple in enumerate(multiples, start=1):
            levels.append(await self._level(multiple, multiple * capacity, number))
            print(levels[-1], flush=True)
        return Report(
            date=now(),
            machine=machine(),
            options=self._args.server_args,
            bound_s=self._bound_s,
            capacity=capacity,
            levels=levels,
        )

    async def _level(self, multiple: float, rate: float, number: int) -> Level:
        seconds = self._args.seconds
        sending = asyncio.ensure_future(
            self._generate(
                "--rate", str(rate), "--seconds", str(seconds), "--seed", str(number + 1)
            )
        )
        await asyncio.sleep(RAMP_S)
        before = _server_cpu()
        await asyncio.sleep(seconds - RAMP_S)
        spent = added(before, _server_cpu())
        memory = _memory_mib()
        run = await sending
        answers = [e for e in run.exchanges if e.status == 200 and not e.failed]
        refusals = [e for e in run.exchanges if e.status == 429]
        in_time = [e for e in answers if e.first - e.sent <= self._bound_s]
        ttft = [e.first - e.sent for e in answers]
        refusal_ms = [1e3 * (e.ended - e.sent) for e in refusals]
        return Level(
            offered=len(run.exchanges) / seconds,
            multiple=multiple,
            answered=_rate(run, answers),
            in_time=_rate(run, in_time),
            refused=len(refusals),
            failed=len(run.exchanges) - len(answers) - len(refusals),
            ttft_p50_s=percentile(ttft, 50),
            ttft_p99_s=percentile(ttft, 99),
            refusal_p50_ms=percentile(refusal_ms, 50),
            refusal_p99_ms=percentile(refusal_ms, 99),
            generator_cpu=run.cpu_s / run.seconds,
            server_cpu={part: value / (seconds - RAMP_S) for part, value in spent.items()},
            memory_mib=memory,
        )

    async def _generate(self, *options: str) -> OpenLoopReport:
        command = [sys.executable, "-m", GENERATOR, "--url", self._url, "--model", self._model]
        command += ["--cpu", str(max(os.sched_getaffinity(0))), *options]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        data, _ = await process.communicate()
        return msgspec.json.decode(data, type=OpenLoopReport)


def _rate(run: OpenLoopReport, answers: Sequence[Exchange]) -> float:
    """How many of them ended per second, while requests were sent and after the ramp."""
    count = sum(RAMP_S <= e.ended < run.seconds for e in answers)
    return count / (run.seconds - RAMP_S)


def _server_cpu() -> dict[str, float]:
    """CPU seconds so far by part of the server; the model's threads are a part of their own."""
    whole = cpu_seconds(os.getpid(), engine_module="")
    parts = {name: value for name, value in cpu_seconds(os.getpid()).items() if name != GENERATOR}
    engine = sum(value for name, value in whole.items() if name != GENERATOR)
    return {**parts, MODEL_THREADS: engine - sum(parts.values())}


def _memory_mib() -> dict[str, float]:
    """Resident memory of the server's processes, by module."""
    sizes: dict[str, float] = {}
    for pid in descendants(os.getpid()):
        name = module_of(pid)
        if name and name != GENERATOR:
            sizes[name] = sizes.get(name, 0.0) + _resident_kib(pid) / _MIB
    return sizes


def _resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def table(report: Report) -> str:
    """A line for each level."""
    cores = os.cpu_count() or 1
    fair = [level.in_time / (1 - level.generator_cpu / cores) for level in report.levels]
    lines = [
        [
            f"{level.multiple:g}",
            f"{level.offered:.1f}",
            f"{level.in_time:.2f}",
            f"{level.in_time / report.best:.2f}",
            f"{equal / max(fair):.2f}",
            str(level.refused),
            str(level.failed),
            _cell(level.ttft_p50_s, ".2f"),
            _cell(level.ttft_p99_s, ".2f"),
            _cell(level.refusal_p50_ms, ".0f"),
            _cell(level.refusal_p99_ms, ".0f"),
            f"{level.generator_cpu:.2f}",
            f"{sum(v for k, v in level.server_cpu.items() if k != MODEL_THREADS):.2f}",
            f"{sum(level.memory_mib.values()):.0f}",
        ]
        for level, equal in zip(report.levels, fair, strict=True)
    ]
    return markdown(COLUMNS, lines)


def parts_table(report: Report) -> str:
    """CPU, in cores, and memory of each process."""
    names = list(report.levels[-1].server_cpu)
    columns = ("load", *names, *(f"{name}, MiB" for name in report.levels[-1].memory_mib))
    lines = [
        [
            f"{level.multiple:g}",
            *(f"{level.server_cpu.get(name, 0.0):.3f}" for name in names),
            *(f"{size:.0f}" for size in level.memory_mib.values()),
        ]
        for level in report.levels
    ]
    return markdown(columns, lines)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--load", type=float, nargs="+", default=MULTIPLES, help="of the capacity")
    parser.add_argument("--capacity", type=float, help="requests per second, instead of measuring")
    parser.add_argument("--seconds", type=float, default=40.0, help="of sending at each load")
    parser.add_argument("--quick", action="store_true", help="three loads, for a first look")
    parser.add_argument("--server-args", default="", help="options for the server, in one string")
    parser.add_argument("--log", type=Path, help="file for the server's log")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--beside", type=Path, help="report of another run, to draw beside it")
    parser.add_argument("--plot", type=Path, help="draw an SVG there")
    args = parser.parse_args(argv)
    args.seconds = QUICK_SECONDS if args.quick else args.seconds
    report = asyncio.run(measure(args))
    print(report.date, report.machine, f"bound {report.bound_s:g} s")
    print("\n" + table(report) + "\n\n" + parts_table(report))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if args.plot:
        other = msgspec.json.decode(args.beside.read_bytes(), type=Report) if args.beside else None
        args.plot.write_text(draw(report, other))
    return 0


if __name__ == "__main__":
    sys.exit(main())
