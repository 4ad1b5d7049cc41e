"""A head that is restarted: its agents wait for the next one, and join it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.machines import join_address, running_machine, wait_replicas
from tests.e2e.server import Server, gone
from tests.e2e.test_machines import OPTIONS, answers
from tests.waiting import SOON_S

pytestmark = pytest.mark.full
ROUNDS = 20


@pytest.mark.parametrize(
    ("ending", "rounds"),
    [
        pytest.param("stopped", 1, marks=pytest.mark.slow),
        ("killed", 1),
        *(pytest.param(each, ROUNDS, marks=pytest.mark.slow) for each in ("stopped", "killed")),
    ],
)
def test_a_head_that_is_restarted(tmp_path: Path, ending: str, rounds: int) -> None:
    options = (*OPTIONS, "--remote-replicas", "1")
    head = Server(tmp_path, *options)
    try:
        head.wait_ready()
        address = join_address(head)
        expected = asyncio.run(answers(head, 0))
        with running_machine(tmp_path, address) as machine:
            for _ in range(rounds):
                wait_replicas(head, [0, 1], 2)
                schedulers, parts = machine.schedulers(), [*head.pids().values()]
                if ending == "killed":
                    os.kill(head.process.pid, signal.SIGKILL)  # its parts notice
                    head.process.wait(SOON_S)
                else:
                    assert head.stop() == 0, head.log()
                assert gone([*parts, *schedulers], SOON_S), machine.log()
                head = Server(tmp_path, *options, "--cluster-bind", address)
                head.wait_ready()
                wait_replicas(head, [0, 1], 2)
                assert asyncio.run(answers(head, 1)) == expected
    finally:
        assert head.stop() == 0, head.log()
