"""Replicas on other machines, which are processes of this one: what they serve, and losses."""

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from srt.client.face import AsyncClient
from tests.e2e.machines import Machine, join_address, running_machine, wait_replicas
from tests.e2e.server import Server, running_server
from tests.e2e.test_resume import GREEDY, SCHEMA, nothing, round_of
from tests.waiting import SOON_S

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("Once upon a time", {"max_new_tokens": 40, "temperature": 0.0}),
    "drawn": ("My name is", {"max_new_tokens": 30, "temperature": 0.9, "seed": 7}),
    "schema": ("As JSON: ", GREEDY | {"max_new_tokens": 80, "json_schema": SCHEMA}),
}
SAME = (
    *("text", "output_ids", "output_logprobs", "prompt_logprobs", "output_top_logprobs"),
    *("completion_tokens", "captures"),
)
SLOW = pytest.mark.slow
OPTIONS = (
    *("--cluster-insecure", "--check-invariants", "--max-queue-wait", "600"),
    *("--resume-timeout", "300"),
)


async def answers(server: Server, replica: int | None = None) -> dict[str, Any]:
    """What is generated for CALLS, of what is the same wherever that is."""
    found = {}
    async with AsyncClient(server.ring) as client:
        for name, (text, sampling) in CALLS.items():
            output = await client.generate(
                text,
                sampling=sampling,
                routed_replica=replica,
                return_logprob=True,
                logprob_start_len=0,
                top_logprobs=2,
            )
            assert replica is None or output.routed_replica == replica
            known = msgspec.structs.asdict(output)
            found[name] = {field: known[field] for field in SAME}
    return found


@pytest.mark.full
def test_a_head_without_weights_serves_as_soon_as_an_agent_has_joined(
    server: Server, tmp_path: Path
) -> None:
    """What is asked before waits for it, and so does what is asked after a loss."""
    expected = asyncio.run(answers(server))
    head = Server(tmp_path, *OPTIONS, "--dp", "0", "--remote-replicas", "1")

    async def ask() -> None:
        asked = asyncio.create_task(answers(head))
        await asyncio.sleep(0)
        with running_machine(tmp_path, join_address(head)) as machine:
            assert await asked == expected
            (scheduler,) = machine.schedulers()
            os.kill(scheduler, signal.SIGKILL)
            assert await answers(head) == expected

    try:
        head.wait_answering()
        assert not head.is_ready()
        asyncio.run(ask())
    finally:
        assert head.stop() == 0, head.log()


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp = tmp_path_factory.mktemp("head")
    with running_server(tmp, *OPTIONS, "--dp", "1", "--remote-replicas", "2") as server:
        yield server


@pytest.fixture
def machine(head: Server, tmp_path: Path) -> Iterator[Machine]:
    with running_machine(tmp_path, join_address(head)) as machine:
        wait_replicas(head, [0, 1], 3)
        yield machine
    wait_replicas(head, [0], 3)


@pytest.fixture(scope="module")
def undisturbed(head: Server) -> Any:
    return asyncio.run(round_of(head, nothing))


@pytest.mark.full
def test_both_replicas_give_the_same(head: Server, machine: Machine) -> None:
    assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))


@pytest.mark.full
@pytest.mark.parametrize(
    "lost",
    [
        *("scheduler", "agent"),
        *(pytest.param(each, marks=SLOW) for each in ("hub", "stopped agent", "added agent")),
    ],
)
def test_nothing_is_lost(
    head: Server, machine: Machine, undisturbed: Any, tmp_path: Path, lost: str
) -> None:
    """Twice each: what happens first may depend on what was first."""
    others: list[Machine] = []

    async def disturb() -> None:
        await asyncio.sleep(1.0)
        if lost == "scheduler":
            os.kill(machine.schedulers()[0], signal.SIGKILL)
        elif lost == "agent":
            machine.kill()
        elif lost == "hub":
            os.kill(head.pids()["hub"], signal.SIGKILL)
        elif lost == "stopped agent":
            machine.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5.0)
            machine.process.send_signal(signal.SIGCONT)
        else:
            others.append(Machine(tmp_path, join_address(head), name="other"))

    for _ in range(2):
        assert asyncio.run(round_of(head, disturb)) == undisturbed
        if lost == "agent":
            break
        if others:
            wait_replicas(head, [0, 1, 2], 3)
            assert others.pop().stop() == 0
        wait_replicas(head, [0, 1], 3)


def _wait_log(machine: Machine, text: str) -> None:
    deadline = time.monotonic() + SOON_S
    while text not in machine.log():
        assert time.monotonic() < deadline, machine.log()
        time.sleep(0.05)


@pytest.mark.full
def test_who_has_no_place_is_told(head: Server, machine: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path, join_address(head), "--replicas", "2", name="other")
    _wait_log(other, "of the places for other machines' replicas 1 are free")
    assert other.stop() == 0


@pytest.mark.full
def test_random_bytes_at_the_port(head: Server, machine: Machine) -> None:
    host, port = join_address(head).removeprefix("tcp://").split(":")
    rng = random.Random(0)
    for size in (1, 10, 64, 1000, 100_000):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(rng.randbytes(size))
    assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))
    assert httpx2.get(head.url + "/ready").status_code == 200
