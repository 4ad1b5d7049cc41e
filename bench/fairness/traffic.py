"""A server with keys, and traffic of several of them at once, each from a process of its own."""

import asyncio
import math
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec

from bench.figures import percentile
from bench.open_loop import Exchange, OpenLoopReport
from bench.peers.catalogue import Srt
from bench.peers.process import running
from srt.files.model_files import DEFAULT_MODEL, resolve_model

GENERATOR = "bench.open_loop"
LOG, RESTARTED = "server.log", "; restarting it"
RAMP_S = 4.0  # of a run, before its answers count as throughput
ADMIN = "fairness-admin"
SOURCES = {"b": "127.0.0.2"}  # of connections; of all others 127.0.0.1
KEYS = {"a": "fairness-a", "b": "fairness-b", "one": "fairness-one", "four": "fairness-four"}
_LINES = (
    f"{ADMIN} name=watcher admin",
    f"{KEYS['a']} name=a",
    f"{KEYS['b']} name=b",
    f"{KEYS['one']} name=one share=1",
    f"{KEYS['four']} name=four share=4",
)
_METRIC = re.compile(r"^(srt_forward_(?:seconds|steps)_total) (\S+)$", re.M)


class Traffic(msgspec.Struct, frozen=True):
    """What a key sends: requests at a rate per second, or this many at a time."""

    rate: float = 0.0
    concurrency: int = 0
    max_tokens: int = 16


class Served:
    """The server at `url`, whose model is `model`. Reports of its load are kept in `folder`."""

    def __init__(self, url: str, model: str, folder: Path) -> None:
        self._url, self._model, self._folder = url, model, folder

    async def send(
        self, traffic: Mapping[str, Traffic], seconds: float, seed: int = 0
    ) -> dict[str, OpenLoopReport]:
        """Send the traffic of these keys for as long, all at once, each from an address of its
        own."""
        processes = [
            await self._generator(key, load, seconds, seed + number)
            for number, (key, load) in enumerate(traffic.items())
        ]
        for process in processes:  # all have made their requests before the first one begins
            assert process.stdout is not None
            await process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
        runs = zip(traffic, processes, strict=True)
        return {key: await self._report(key, process) for key, process in runs}

    async def steps(self) -> tuple[float, float]:
        """Seconds in forward passes, and how many there were, so far."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with httpx2.AsyncClient(base_url=self._url, headers=headers) as http:
            found = dict(_METRIC.findall((await http.get("/metrics")).text))
        seconds, steps = sorted(found.items())
        return float(seconds[1]), float(steps[1])

    def restarts(self) -> int:
        """The parts of the server that died, or were silent for too long, and began anew."""
        return (self._folder / LOG).read_text(errors="replace").count(RESTARTED)

    async def _generator(self, key: str, load: Traffic, seconds: float, seed: int) -> Process:
        command = [sys.executable, "-m", GENERATOR, "--url", self._url, "--model", self._model]
        command += ["--cpu", str(max(os.sched_getaffinity(0))), "--key", KEYS[key]]
        command += ["--rate", str(load.rate), "--concurrency", str(load.concurrency)]
        command += ["--max-tokens", str(load.max_tokens), "--seconds", str(seconds)]
        command += ["--seed", str(seed), "--json", str(self._path(key)), "--together"]
        command += ["--source", SOURCES.get(key, "127.0.0.1")]
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)

    async def _report(self, key: str, process: Process) -> OpenLoopReport:
        if status := await process.wait():
            raise RuntimeError(f"the generator of {key} ended with status {status}")
        return msgspec.json.decode(self._path(key).read_bytes(), type=OpenLoopReport)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


@asynccontextmanager
async def served(options: Sequence[str], folder: Path) -> AsyncIterator[Served]:
    """A server with the keys, and its log and their file in a folder."""
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text("\n".join(_LINES))
    options = [*options, "--api-key-file", str(keys)]
    model = resolve_model(DEFAULT_MODEL).path
    async with running(Srt(), model, folder / LOG, options) as url:
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers) as http:
            name = (await http.get("/v1/models")).json()["data"][0]["id"]
        yield Served(url, name, folder)


def answered(report: OpenLoopReport) -> list[Exchange]:
    """The requests that were answered as a whole."""
    return [e for e in report.exchanges if e.status == 200 and not e.failed]


def answered_share(report: OpenLoopReport) -> float:
    """Of all that were sent; 1.0 of none."""
    sent = len(report.exchanges)
    return len(answered(report)) / sent if sent else 1.0


def rate(report: OpenLoopReport, until_s: float = math.inf) -> float:
    """Answers per second that ended while requests were sent, or before `until_s`, after the
    ramp."""
    end_s = min(report.seconds, until_s)
    return sum(RAMP_S <= e.ended < end_s for e in answered(report)) / (end_s - RAMP_S)


def ttft_s(report: OpenLoopReport, percent: float) -> float:
    """A percentile of the times to the first token; 0.0 if nothing was answered."""
    return percentile([e.first - e.sent for e in answered(report)], percent) or 0.0
