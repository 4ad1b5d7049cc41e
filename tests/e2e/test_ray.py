"""Replicas that Ray starts: on two raylets of this machine, with losses of all that Ray has."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from srt.cluster.keys import make_keys
from tests.e2e.machines import wait_replicas
from tests.e2e.server import Server
from tests.waiting import SOON_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]
ROOT = Path(__file__).parents[2]
PROMPTS = [f"Once upon a time {number} dogs" for number in range(4)]


class RayNode:
    """A raylet with what belongs to it, as `ray start --block` runs it."""

    def __init__(self, tmp: Path, *words: str) -> None:
        paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "600",  # 30 s are not enough on a busy machine
        }
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        command += ["--num-cpus", "2", "--object-store-memory", "80000000"]
        self._log = (tmp / f"ray-{len(list(tmp.iterdir()))}.log").open("w")
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=environ, start_new_session=True
        )

    def pid_of(self, name: str) -> int:
        """The process of this node whose program is called so; 0 if there is none."""
        assert self.process.poll() is None, Path(self._log.name).read_text()
        for pid in _children(self.process.pid):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return pid
        return 0

    def close(self) -> None:
        for pid in [*_children(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def _children(parent: int) -> list[int]:
    try:
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 2 * SOON_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, RayNode, RayNode]]:
    """Two raylets, and their address."""
    port = _free_port()
    address = f"127.0.0.1:{port}"
    same = ("--node-ip-address", "127.0.0.1", "--disable-usage-stats")
    short = tempfile.mkdtemp(prefix="ray-")  # paths of Ray's sockets must be
    words = ("--port", str(port), "--include-dashboard", "false", "--temp-dir", short)
    head = RayNode(tmp_path, "--head", *words, *same)
    nodes = [head]
    try:
        until(lambda: head.pid_of("raylet"), "the first raylet")
        nodes.append(RayNode(tmp_path, "--address", address, *same))
        until(lambda: nodes[1].pid_of("raylet"), "the second raylet")
        yield address, nodes[0], nodes[1]
    finally:
        for node in reversed(nodes):
            node.close()
        shutil.rmtree(short, ignore_errors=True)


def agents() -> dict[int, int]:
    """The processes of agents that Ray's actors keep, with their actors."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if b"srt.cluster.ray.kept_agent" in (entry / "cmdline").read_bytes():
                found[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    return found


def answers(server: Server) -> list[str]:
    """The texts of PROMPTS, drawn with seeds."""
    texts = []
    for seed, prompt in enumerate(PROMPTS):
        sampling = {"max_new_tokens": 16, "temperature": 0.8, "sampling_seed": seed}
        body = {"text": prompt, "sampling_params": sampling}
        answer = httpx2.post(server.url + "/generate", json=body, timeout=4 * SOON_S)
        assert answer.status_code == 200, answer.text
        texts.append(answer.json()["text"])
    return texts


@contextmanager
def under_load(server: Server, expected: list[str]) -> Iterator[None]:
    """Requests all the time, each of which has to be answered as without a loss."""
    stop, rounds, faults = threading.Event(), [0], []

    def run() -> None:
        while not stop.is_set():
            try:
                assert answers(server) == expected
                rounds[0] += 1
            except BaseException as error:
                faults.append(error)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not faults and rounds[0] > 0, faults


def lose_actor(head: RayNode, other: RayNode, server: Server) -> None:
    actor = next(iter(agents().values()))
    os.kill(actor, signal.SIGKILL)
    until(lambda: actor not in agents().values(), "the actor's agent has gone")
    wait_replicas(server, [0, 1], 2)


def lose_raylet(head: RayNode, other: RayNode, server: Server) -> None:
    before = agents()
    os.kill(other.pid_of("raylet"), signal.SIGKILL)
    until(lambda: len(agents().keys() - before.keys()) > 0, "another agent")
    wait_replicas(server, [0, 1], 2)


def lose_gcs(head: RayNode, other: RayNode, server: Server) -> None:
    """Agents are connected to the ring, not to Ray: that of the other raylet goes on. `ray start
    --block` ends the raylet that it has started beside the GCS."""
    before = agents()
    os.kill(head.pid_of("gcs_server"), signal.SIGKILL)
    time.sleep(5.0)
    assert agents().keys() & before.keys()


@pytest.mark.timeout(1800)  # on a busy machine Ray alone takes a minute to start
@pytest.mark.parametrize("lose", [lose_actor, lose_raylet, lose_gcs])
def test_no_request_fails_whatever_ray_loses(
    lose: Callable[[RayNode, RayNode, Server], None],
    cluster: tuple[str, RayNode, RayNode],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, head, other = cluster
    monkeypatch.setenv("RAY_ADDRESS", address)
    make_keys(tmp_path / "keys")
    words = ["--dp", "0", "--remote-replicas", "2", "--cluster", "ray"]
    words += ["--cluster-keys", str(tmp_path / "keys"), "--resume-timeout", "600"]
    words += ["--max-queue-wait", "600", "--queue-while-restarting"]
    server = Server(tmp_path, *words)
    try:
        server.wait_ready()
        wait_replicas(server, [0, 1], 2)
        expected = answers(server)
        with under_load(server, expected):
            lose(head, other, server)
    finally:
        server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(SOON_S)
    assert status == 0, server.log()
    head.close()
    until(lambda: not agents(), "nothing is left")
    assert [*(tmp_path / "keys" / "allowed").iterdir()] == []
