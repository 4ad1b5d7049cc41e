"""A real server for tests: `python -m srt.launch` in a subprocess, and ways to look at it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from tests.waiting import SOON_S

START_TIMEOUT_S = 120.0


class Server:
    """A launched server. `url` is its HTTP address, `ring` its ipc:// one.

    It computes with one thread unless `args` say otherwise: the results are the same bits, and
    threads of several servers that spin on the same cores take each other's time. Its pool has
    room for one request of the whole context, not for four: each page of it takes time to get."""

    def __init__(self, tmp: Path, *args: str, launcher: str = "srt.launch") -> None:
        self.directory = tmp / "ring"
        self._log = tmp / "log"
        command = [sys.executable, "-m", *launcher.split(), "--ring-dir", str(self.directory)]
        command += ["--grammar-cache-dir", str(tmp / "grammars")]
        for name, value in (("--threads", "1"), ("--max-total-tokens", "8192")):
            if name not in args:
                command += [name, value]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--port", "0", *args], stderr=log, start_new_session=True
            )
        self.url = ""

    @property
    def ring(self) -> str:
        return f"ipc://{self.directory}"

    def log(self) -> str:
        return self._log.read_text()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until /ready says 200 (the address comes from the start-up log)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            self.url = self.url or self._url_from_log()
            if self.url and self.is_ready():
                return
            time.sleep(0.05)
        raise AssertionError("not ready in time:\n" + self.log())

    def wait_answering(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it has said where it is: it may not be ready to serve."""
        deadline = time.monotonic() + timeout_s
        while not (url := self._url_from_log()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        self.url = url

    def is_ready(self) -> bool:
        try:
            return httpx2.get(self.url + "/ready", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def incarnation(self) -> int:
        """Of the scheduler, as the gateway has heard."""
        ring = httpx2.get(self.url + "/health", timeout=SOON_S).json()["ring"]
        return int(ring["incarnation"])

    def _url_from_log(self) -> str:
        for line in self.log().splitlines():
            if " ready   http://" in line:
                return line.split(" ready   ")[1].split()[0]
        return ""

    def pids(self) -> dict[str, int]:
        """The launcher's children: process ids by part; not those of their own children."""
        names = {"tokenizer_proc": "tokenizer", "scheduler_proc": "scheduler"}
        names |= {"detokenizer_proc": "detokenizer", "srt.gateway": "gateway"}
        names |= {"scheduler_proc.grammar.worker": "compiler", "srt.programs": "programs"}
        names |= {"tests.e2e.faulty_scheduler": "scheduler", "srt.cluster": "hub"}
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                parent = _stat(int(entry.name))[1]
            except (OSError, ValueError):
                continue
            if parent == str(self.process.pid) and str(self.directory) in words:
                module = words[words.index("-m") + 1]
                if module in names:
                    name = names[module]
                    # With several replicas there are several incarnations.
                    if name == "scheduler" and "," in words[words.index("-m") + 4]:
                        name = f"scheduler.{words[words.index('-m') + 6]}"
                    found[name] = int(entry.name)
        return found

    def stats(self) -> dict[str, Any]:
        """The scheduler's statistics. A step may take longer than the gateway waits for them."""
        deadline = time.monotonic() + SOON_S
        while time.monotonic() < deadline:
            answer = httpx2.get(self.url + "/server_info", timeout=SOON_S).json()
            for internal in answer["internal_states"]:
                return dict(internal)
        raise AssertionError("the scheduler does not answer:\n" + self.log())

    def wait_idle(self, timeout_s: float = SOON_S) -> dict[str, Any]:
        """Wait until nothing runs or waits; then every slot is free or in the tree."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            stats = self.stats()
            if stats["num_running_reqs"] == stats["num_queue_reqs"] == 0:
                assert stats["num_used_tokens"] == 0, stats
                free_and_cached = stats["num_free_tokens"] + stats["num_cached_tokens"]
                assert free_and_cached == stats["max_total_tokens"], stats
                return stats
            time.sleep(0.05)
        raise AssertionError(f"still busy: {self.stats()}")

    def kill(self) -> None:
        """End all of its processes at once, if there are any."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SOON_S)

    def stop(self) -> int:
        """Send SIGTERM; returns the launcher's exit status."""
        return terminated(self.process)


def terminated(process: "subprocess.Popen[bytes]") -> int:
    """The exit status after SIGTERM, if it still runs. Its group is killed if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(SOON_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


@contextmanager
def running_server(tmp: Path, *args: str, launcher: str = "srt.launch") -> Iterator[Server]:
    """A server that is ready, and is stopped at the end; its exit must be clean."""
    server = Server(tmp, *args, launcher=launcher)
    try:
        server.wait_ready()
        yield server
    finally:
        log = server.log()
        if server.process.poll() is None:
            assert server.stop() == 0, log


def gone(pids: list[int], timeout_s: float) -> bool:
    """Whether all processes end within the time."""
    deadline = time.monotonic() + timeout_s
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """State, parent and so on of a process. Raises OSError if it does not exist."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
