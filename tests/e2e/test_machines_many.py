"""Agents, their schedulers and the hub are lost again and again under load; agents come and go."""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machines import Machine, join_address, wait_replicas
from tests.e2e.server import Server, gone, running_server
from tests.e2e.test_machines import OPTIONS
from tests.e2e.test_resume import nothing, round_of
from tests.waiting import SOON_S

pytestmark = pytest.mark.slow
ROUNDS = 20
LATEST_S = 3.0  # of a round
Act = Callable[[], Coroutine[Any, Any, None]]


class Ring:
    """A head with a replica of its own, and an agent."""

    def __init__(self, head: Server, tmp: Path) -> None:
        self._head, self._tmp = head, tmp
        self.machine = self._start("node")
        self.ever = {self.machine.process.pid}  # processes

    def _start(self, name: str) -> Machine:
        return Machine(self._tmp, join_address(self._head), name=name)

    async def scheduler(self) -> None:
        """Kill the remote scheduler."""
        for pid in self.machine.schedulers():
            os.kill(pid, signal.SIGKILL)

    async def agent(self) -> None:
        """Kill the agent, and start another one."""
        self.machine.kill()
        self.machine = self._start("node")

    async def hub(self) -> None:
        """Kill the hub."""
        os.kill(self._head.pids()["hub"], signal.SIGKILL)

    async def another(self) -> None:
        """Start another agent, and stop it as soon as it serves."""
        other = self._start("other")
        await asyncio.to_thread(wait_replicas, self._head, [0, 1, 2], 3)
        self.look()
        assert await asyncio.to_thread(other.stop) == 0, other.log()
        assert not other.directory.exists()

    def look(self) -> None:
        """Keep in mind which processes there are."""
        self.ever |= {self.machine.process.pid, *self.machine.schedulers()}
        self.ever |= {self._head.process.pid, *self._head.pids().values()}


@pytest.mark.parametrize("what", ["scheduler", "agent", "hub", "another"])
def test_twenty_rounds(tmp_path: Path, what: str) -> None:
    """No request fails, and nothing is left at the end."""
    rng = random.Random(what)
    with running_server(tmp_path, *OPTIONS, "--remote-replicas", "2") as head:
        undisturbed = asyncio.run(round_of(head, nothing))
        ring = Ring(head, tmp_path)
        try:
            for number in range(ROUNDS):
                wait_replicas(head, [0, 1], 3)
                ring.look()
                found = asyncio.run(round_of(head, _later(rng, getattr(ring, what))))
                assert found == undisturbed, number
            wait_replicas(head, [0, 1], 3)
            ring.look()
        finally:
            assert ring.machine.stop() == 0, ring.machine.log()
    assert gone([*ring.ever], SOON_S)
    assert not ring.machine.directory.exists() and not head.directory.exists()


def _later(rng: random.Random, act: Act) -> Act:
    wait_s = rng.uniform(0.0, LATEST_S)

    async def disturb() -> None:
        await asyncio.sleep(wait_s)
        await act()

    return disturb
