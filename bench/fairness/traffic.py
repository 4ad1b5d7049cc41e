"""A server with keys, and traffic of several of them at once, each from a process of its own."""

import asyncio
import os
import re
import sys
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
RAMP_S = 4.0  # of a run, before its answers count as throughput
ADMIN = "fairness-admin"
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
        """Send the traffic of these keys for as long, all at once."""
        runs = (
            self._generate(key, load, seconds, seed + number)
            for number, (key, load) in enumerate(traffic.items())
        )
        return dict(zip(traffic, await asyncio.gather(*runs), strict=True))

    async def steps(self) -> tuple[float, float]:
        """Seconds in forward passes, and how many there were, so far."""
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with httpx2.AsyncClient(base_url=self._url, headers=headers) as http:
            found = dict(_METRIC.findall((await http.get("/metrics")).text))
        seconds, steps = sorted(found.items())
        return float(seconds[1]), float(steps[1])

    async def _generate(self, key: str, load: Traffic, seconds: float, seed: int) -> OpenLoopReport:
        command = [sys.executable, "-m", GENERATOR, "--url", self._url, "--model", self._model]
        command += ["--cpu", str(max(os.sched_getaffinity(0))), "--key", KEYS[key]]
        command += ["--rate", str(load.rate), "--concurrency", str(load.concurrency)]
        command += ["--max-tokens", str(load.max_tokens), "--seconds", str(seconds)]
        path = self._folder / f"{key}.json"
        command += ["--seed", str(seed), "--json", str(path)]
        process = await asyncio.create_subprocess_exec(*command)
        if status := await process.wait():
            raise RuntimeError(f"the generator of {key} ended with status {status}")
        return msgspec.json.decode(path.read_bytes(), type=OpenLoopReport)


@asynccontextmanager
async def served(options: Sequence[str], folder: Path) -> AsyncIterator[Served]:
    """A server with the keys, and its log and their file in a folder."""
    keys = folder / "keys"
    keys.touch(mode=0o600)
    keys.write_text("\n".join(_LINES))
    options = [*options, "--api-key-file", str(keys)]
    model = resolve_model(DEFAULT_MODEL).path
    async with running(Srt(), model, folder / "server.log", options) as url:
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


def rate(report: OpenLoopReport) -> float:
    """Answers per second that ended while requests were sent, after the ramp."""
    count = sum(RAMP_S <= e.ended < report.seconds for e in answered(report))
    return count / (report.seconds - RAMP_S)


def ttft_s(report: OpenLoopReport, percent: float) -> float:
    """A percentile of the times to the first token; 0.0 if nothing was answered."""
    return percentile([e.first - e.sent for e in answered(report)], percent) or 0.0
