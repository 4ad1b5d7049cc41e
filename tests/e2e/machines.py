"""Agents for tests: `python -m srt agent` in a subprocess, as on another machine."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

from srt.cluster.door import address_in
from srt.cluster.keys import allow, make_keys, set_head_key
from tests.e2e.server import Server, gone, terminated
from tests.waiting import SOON_S


class Machine:
    """An agent with its schedulers. `command` stands before it, as one that enters a namespace."""

    def __init__(
        self, tmp: Path, join: str, *args: str, command: Sequence[str] = (), name: str = "node"
    ) -> None:
        self.directory = tmp / name
        self._log = tmp / f"{name}.log"
        words = [*command, sys.executable, "-m", "srt", "agent", "--join", join]
        words += ["--ring-dir", str(self.directory)]
        if "--keys" not in args:
            words.append("--insecure")
        if "--threads" not in args:
            words += ["--threads", "1"]
        with self._log.open("a") as log:
            self.process = subprocess.Popen([*words, *args], stderr=log, start_new_session=True)

    def log(self) -> str:
        return self._log.read_text()

    def schedulers(self) -> list[int]:
        """The process ids of its schedulers."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if "scheduler_proc" in words and str(self.directory) in words:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """End the agent, and nothing else."""
        self.process.kill()
        self.process.wait(SOON_S)

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        return terminated(self.process)


def join_address(server: Server) -> str:
    """Where agents join this server."""
    return address_in(server.directory)


@contextmanager
def running_machine(tmp: Path, join: str, *args: str, name: str = "node") -> Iterator[Machine]:
    """An agent, which leaves nothing when it is stopped at the end."""
    machine = Machine(tmp, join, *args, name=name)
    try:
        yield machine
    finally:
        schedulers = machine.schedulers()
        if machine.process.poll() is None:
            assert machine.stop() == 0, machine.log()
        assert gone(schedulers, SOON_S), machine.log()
        assert not machine.directory.exists(), machine.log()


def let_in(head: Path, node: Path, name: str) -> tuple[str, str]:
    """Make keys in the directory `node`, which the head whose keys are in `head` lets in under this
    name; returns the agent's options."""
    keys = make_keys(node)
    set_head_key(node, make_keys(head).public)
    allow(head, keys.public, name)
    return "--keys", str(node)


def wait_replicas(server: Server, ready: Sequence[int], total: int) -> None:
    """Wait until these replicas, and no others, are ready."""
    deadline = time.monotonic() + 2 * SOON_S
    parts: dict[str, str] = {}
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            parts = httpx2.get(server.url + "/health", timeout=SOON_S).json()["ring"]["parts"]
            names = ["scheduler"] if total == 1 else [f"scheduler.{i}" for i in range(total)]
            if [i for i, name in enumerate(names) if parts.get(name) == "ready"] == list(ready):
                return
        time.sleep(0.05)
    raise AssertionError(f"{parts}\n{server.log()}")


class Namespace:
    """A network namespace, whose only way out is a link to this machine. Needs root."""

    def __init__(self, number: int) -> None:
        pid = os.getpid()
        self.name, self._link = f"srt-{pid}-{number}", f"srt{pid % 10**6}-{number}"
        # Of this process alone: others may test at the same time.
        net = f"10.{200 + pid // 240 % 50}.{pid % 240 + number}"
        self.here, self.there = f"{net}.1", f"{net}.2"
        self.command = ("ip", "netns", "exec", self.name)
        _ip("netns", "add", self.name)
        try:
            _ip(
                "link",
                "add",
                self._link,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                self.name,
            )
            _ip("addr", "add", f"{self.here}/24", "dev", self._link)
            _ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", self.name, "link", "set", device, "up")
            self.set_link("up")
        except BaseException:
            self.close()
            raise

    def set_link(self, state: str) -> None:
        """Set the link "up" or "down"."""
        _ip("link", "set", self._link, state)

    def close(self) -> None:
        """Remove it, with its link."""
        _ip("netns", "delete", self.name)


def why_no_namespace() -> str:
    """Why network namespaces cannot be made here; "" if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        Namespace(0).close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces: {error}"
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
