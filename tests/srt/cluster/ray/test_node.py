"""What runs on a node that Ray has chosen, without Ray: the agent's process and what keeps it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from srt.args import ServerArgs
from srt.cluster.curve import new_keys
from srt.cluster.keys import allow
from srt.cluster.ray.kept_agent import KeptOptions
from srt.cluster.ray.node import Node, agent_environment
from srt.cluster.ray.options import (
    RayOptions,
    check_ray,
    forget_keys,
    key_name,
    own_fields,
    resources_of,
)
from srt.files.model_files import DEFAULT_MODEL
from srt.wire.errors import ConfigError
from tests.waiting import SOON_S

NOBODY = "tcp://127.0.0.1:9"  # nobody listens there


def until(condition: Callable[[], Any]) -> Any:
    """What the condition gives once it holds."""
    deadline = time.monotonic() + SOON_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_an_agents_environment_has_nothing_of_ray() -> None:
    environ = {
        "RAY_JOB_ID": "1",
        "RAY_ADDRESS": "a",
        "OMP_NUM_THREADS": "1",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTHONPATH": "/a:/b",
        "HOME": "/home/me",
    }
    kept = agent_environment(environ)
    root, *others = kept.pop("PYTHONPATH").split(":")
    assert (Path(root) / "srt" / "cluster").is_dir() and others == ["/a", "/b"]
    assert kept == {"CUDA_VISIBLE_DEVICES": "3", "HOME": "/home/me"}


@pytest.mark.parametrize(
    "text",
    [
        *("", "8", "[]", "{}", '{"CPU": "8"}', '{"CPU": -1}', '{"CPU": true}', '{"CPU": NaN}'),
        *('{"CPU": 0}', '{"CPU": 1'),
    ],
)
def test_resources_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--replica-resources.*CPU"):
        resources_of(text)


def test_each_agent_has_the_threads_of_its_cpus() -> None:
    resources = resources_of('{"CPU": 8, "GPU": 1, "memory": 1e9, "rack": 0.5}')
    assert resources == {"CPU": 8.0, "GPU": 1.0, "memory": 1e9, "rack": 0.5}
    assert own_fields(ServerArgs(), resources) == {"device": "cpu", "threads": 8}
    assert own_fields(ServerArgs(threads=3), resources) == {"device": "cpu", "threads": 3}
    on_gpu = own_fields(ServerArgs(device="cuda"), resources_of('{"CPU": 0.5, "GPU": 1}'))
    assert on_gpu == {"device": "cuda"}


def test_an_agent_finds_the_model_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model", DEFAULT_MODEL):
        (tmp_path / name).mkdir()
    relative = ServerArgs(model="model", tokenizer="../" + tmp_path.name)
    own, as_they_are = own_fields(relative, {"rack": 1.0}), {"device": "cpu"}
    paths = {"model": str(tmp_path / "model"), "tokenizer": str(tmp_path)}
    assert own == as_they_are | paths
    assert own_fields(ServerArgs(model="org/name"), {"rack": 1.0}) == as_they_are
    assert own_fields(ServerArgs(), {"rack": 1.0}) == as_they_are  # the model, not the folder


def test_only_the_keys_of_these_agents_are_forgotten(tmp_path: Path) -> None:
    for name in ("ray-7000-0", "ray-7000-1", "ray-7000-2", "ray-7001-0", "west"):
        allow(tmp_path, new_keys().public, name)
    join = "tcp://127.0.0.1:7000"
    forget_keys(RayOptions(join, "", str(tmp_path), 2, {}))
    assert len([*(tmp_path / "allowed").iterdir()]) == 5
    forget_keys(RayOptions(join, "a key", str(tmp_path), 2, {}))
    left = sorted(path.name for path in (tmp_path / "allowed").iterdir())
    assert left == ["ray-7000-2", "ray-7001-0", "west"]
    assert key_name("tcp://[::1]:7001", 0) == "ray-7001-0"


def test_what_ray_needs_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_ray(ServerArgs(replica_resources="nonsense"))  # nobody has asked for Ray
    with pytest.raises(ConfigError, match="--remote-replicas, which is 0"):
        check_ray(ServerArgs(cluster="ray"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'srt-lang\[ray\]'"):
        check_ray(ServerArgs(cluster="ray", remote_replicas=1))


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**agent_environment(os.environ), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "srt.cluster.ray.kept_agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.full
def test_an_agent_ends_with_its_input_and_leaves_no_key(
    kept: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert kept.stdin and kept.stdout
    options = KeptOptions(NOBODY, new_keys().public, {"threads": 1})
    kept.stdin.write(msgspec.json.encode(options) + b"\n")
    kept.stdin.flush()
    public = kept.stdout.readline().decode().strip()
    assert len(bytes.fromhex(public)) == 32
    assert list(tmp_path.iterdir()) == []  # while it runs
    kept.stdin.write(b"\n")
    kept.stdin.flush()
    kept.stdin.close()
    kept.stdin = None
    assert kept.wait(SOON_S) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_node_starts_its_agent_again_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srt.cluster.ray.node._FIRST_PAUSE_S", 0.0)
    node = Node(NOBODY, new_keys().public, {}, "info")
    first = until(lambda: (state := node.state())["is_waiting"] and state)
    assert not node.join("another key") and node.join(first["public"])
    assert not node.state()["is_waiting"]
    os.kill(first["pid"], signal.SIGKILL)
    second = until(lambda: (state := node.state())["is_waiting"] and state)
    assert second["starts"] == 2 and second["public"] not in ("", first["public"])
    assert not node.join(first["public"]) and node.join(second["public"])
    assert node.leave(SOON_S)
    until(lambda: node.state()["pid"] == 0)
    assert node.state()["starts"] == 2 and not os.path.exists(f"/proc/{second['pid']}")


def test_a_node_whose_machine_starts_nothing_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: Any, **options: Any) -> None:
        tries.append(1)
        raise BlockingIOError("no more processes")

    tries: list[int] = []
    monkeypatch.setattr("srt.cluster.ray.node._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("srt.cluster.ray.node.subprocess.Popen", fail)
    node = Node(NOBODY, "", {}, "info")
    until(lambda: len(tries) > 2)
    assert "no more processes" in node.state()["last"]
    assert node.leave(SOON_S)
    before = len(tries)
    time.sleep(0.02)
    assert len(tries) == before
