"""A replica in a network namespace of its own, joined by keys: its link goes down, its key away."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from srt.client.face import AsyncClient
from srt.cluster.keys import ALLOWED, allow, make_keys, remove
from srt.cluster.protocol import LOST_S
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
from tests.e2e.test_resume import LONG
from tests.waiting import SOON_S

pytestmark = pytest.mark.full
ROUNDS = 20
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


@pytest.fixture(scope="module")
def machine(
    head: Server, namespace: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """Its key has the name "node" at the head. It leaves nothing."""
    tmp = tmp_path_factory.mktemp("node")
    args = let_in(head.directory.parent / "keys", tmp / "keys", "node")
    machine = Machine(tmp, join_address(head), *args, command=namespace.command)
    try:
        wait_replicas(head, [0, 1], 2)
        yield machine
    finally:
        schedulers = machine.schedulers()
        assert machine.stop() == 0, machine.log()
        assert gone(schedulers, SOON_S) and not machine.directory.exists()


async def long_answers(
    head: Server, disturb: Callable[[], object], replicas: int = 2
) -> list[tuple[list[int], str]]:
    """Long texts from both replicas, or from the first, with what happens while all are under
    way."""
    async with AsyncClient(head.ring) as client:
        answers = [
            await client.submit(
                text=f"{number} things are",
                sampling=sampling,
                routed_replica=number % replicas,
                stream=True,
            )
            for sampling in (SAMPLING, SAMPLING | {"temperature": 0.9, "seed": 5})
            for number in range(2)
        ]
        streams = [aiter(answer) for answer in answers]  # one that is forgotten is closed
        for stream in streams:
            await anext(stream)
        await asyncio.to_thread(disturb)
        outputs = [await answer.result() for answer in answers]
        return [(output.output_ids, output.text) for output in outputs]


@pytest.fixture(scope="module")
def undisturbed(head: Server) -> Any:
    return asyncio.run(long_answers(head, lambda: None, 1))


def test_the_same_over_a_link(head: Server, machine: Machine) -> None:
    assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True], ids=["for a moment", "until it is lost"])
def test_a_link_that_is_down(
    head: Server, machine: Machine, namespace: Namespace, undisturbed: Any, is_lost: bool
) -> None:
    def disturb() -> None:
        namespace.set_link("down")
        try:
            wait_replicas(head, [0], 2) if is_lost else time.sleep(LOST_S / 3)
        finally:
            namespace.set_link("up")

    assert asyncio.run(long_answers(head, disturb)) == undisturbed
    wait_replicas(head, [0, 1], 2)
    assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))


@pytest.mark.slow
@pytest.mark.parametrize("down_s", [2.0, 30.0])
def test_a_link_that_is_down_again_and_again(
    head: Server, machine: Machine, namespace: Namespace, undisturbed: Any, down_s: float
) -> None:
    def disturb() -> None:
        namespace.set_link("down")
        try:
            time.sleep(down_s)
        finally:
            namespace.set_link("up")

    for number in range(ROUNDS):
        assert asyncio.run(long_answers(head, disturb)) == undisturbed, number
        wait_replicas(head, [0, 1], 2)
        assert len(machine.schedulers()) == 1


@pytest.mark.slow
def test_a_key_that_is_removed_again_and_again(
    head: Server, machine: Machine, undisturbed: Any
) -> None:
    for _ in range(ROUNDS):
        test_a_key_that_is_removed(head, machine, undisturbed)


@pytest.mark.slow
def test_a_key_that_is_removed(head: Server, machine: Machine, undisturbed: Any) -> None:
    """Until it is allowed again."""
    keys = head.directory.parent / "keys"
    (key,) = (keys / ALLOWED / "node").read_text().split()

    def disturb() -> None:
        remove(keys, "node")
        wait_replicas(head, [0], 2)

    assert asyncio.run(long_answers(head, disturb)) == undisturbed
    assert "its key is not allowed any more" in head.log()
    allow(keys, key, "node")
    wait_replicas(head, [0, 1], 2)
