"""A replica in a network namespace of its own, joined by keys: its link goes down, its key away."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from srt.client.face import AsyncClient
from srt.cluster.keys import allow, load_keys, make_keys, remove
from tests.e2e.machines import (
    Machine,
    Namespace,
    join_address,
    let_in,
    wait_replicas,
    why_no_namespace,
)
from tests.e2e.server import Server, gone, running_server
from tests.e2e.test_machines import answers
from tests.e2e.test_resume import LONG, nothing
from tests.waiting import SOON_S

pytestmark = pytest.mark.full
SAMPLING = LONG | {"max_new_tokens": 200}


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    if reason := why_no_namespace():
        pytest.skip(reason)
    namespace = Namespace(1)
    yield namespace
    namespace.close()


@pytest.fixture(scope="module")
def head(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp = tmp_path_factory.mktemp("apart")
    make_keys(tmp / "keys")
    options = ["--cluster-bind", f"tcp://{namespace.here}:0", "--cluster-keys", str(tmp / "keys")]
    options += ["--check-invariants", "--max-queue-wait", "600", "--remote-replicas", "1"]
    with running_server(tmp, *options) as server:
        yield server


@pytest.fixture
def machine(head: Server, namespace: Namespace, tmp_path: Path) -> Iterator[Machine]:
    """Its key has the name "node" at the head."""
    args = let_in(head.directory.parent / "keys", tmp_path / "keys", "node")
    machine = Machine(tmp_path, join_address(head), *args, command=namespace.command)
    try:
        wait_replicas(head, [0, 1], 2)
        yield machine
    finally:
        schedulers = machine.schedulers()
        assert machine.stop() == 0, machine.log()
        assert gone(schedulers, SOON_S) and not machine.directory.exists()


async def long_answers(
    head: Server, disturb: Callable[[], Coroutine[Any, Any, None]], replicas: int = 2
) -> list[Any]:
    """Long texts from both replicas, or from the first, with what happens meanwhile."""
    async with AsyncClient(head.ring) as client:
        calls = [
            client.generate(
                f"{number} things are", sampling=sampling, routed_replica=number % replicas
            )
            for sampling in (SAMPLING, SAMPLING | {"temperature": 0.9, "seed": 5})
            for number in range(2)
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await disturb()
        return [(output.output_ids, output.text) for output in await asyncio.gather(*tasks)]


@pytest.fixture(scope="module")
def undisturbed(head: Server) -> Any:
    return asyncio.run(long_answers(head, nothing, 1))


def test_the_same_over_a_link(head: Server, machine: Machine) -> None:
    assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))


@pytest.mark.parametrize(
    ("down_s", "rounds"),
    [(2.0, 1), (8.0, 1), *(pytest.param(s, 20, marks=pytest.mark.slow) for s in (2.0, 30.0))],
)
def test_a_link_that_is_down(
    head: Server,
    machine: Machine,
    namespace: Namespace,
    undisturbed: Any,
    down_s: float,
    rounds: int,
) -> None:
    async def disturb() -> None:
        await asyncio.sleep(1.0)
        namespace.set_link("down")
        await asyncio.sleep(down_s)
        namespace.set_link("up")

    for _ in range(rounds):
        assert asyncio.run(long_answers(head, disturb)) == undisturbed
        wait_replicas(head, [0, 1], 2)
        assert len(machine.schedulers()) == 1
    assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_key_that_is_removed(
    head: Server, machine: Machine, undisturbed: Any, tmp_path: Path, rounds: int
) -> None:
    """And, in a further round, allowed again: the agent has waited for it."""
    heads = head.directory.parent / "keys"

    async def disturb() -> None:
        await asyncio.sleep(1.0)
        remove(heads, "node")

    for number in range(rounds):
        if number > 0:
            allow(heads, load_keys(tmp_path / "keys").public, "node")
            wait_replicas(head, [0, 1], 2)
        assert asyncio.run(long_answers(head, disturb)) == undisturbed
        wait_replicas(head, [0], 2)
    assert "its key is not allowed any more" in head.log()
