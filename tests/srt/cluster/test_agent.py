"""An agent that joins a hub: what it starts, says, and leaves behind."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from srt.cluster import agent as module
from srt.cluster import hub
from srt.cluster.agent import Agent, AgentOptions, Refusal
from srt.cluster.door import address_in
from srt.ring.child import MODULES
from srt.wire.errors import ConfigError
from tests.srt.cluster.test_hub import Head, running_head


@pytest.fixture
async def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Head]:
    for each in (hub, module):
        monkeypatch.setattr(each, "fingerprint", lambda *_: "f")
    monkeypatch.setitem(MODULES, "scheduler", "tests.srt.cluster.ending")
    async with running_head(tmp_path / "ring", cluster_insecure=True) as head:
        yield head


def an_agent(head: Head, tmp_path: Path, replicas: int = 1) -> Agent:
    own = {"ring_dir": str(tmp_path / "node"), "max_total_tokens": 64}
    return Agent(AgentOptions(address_in(head.ring.directory), None, replicas, own))


async def test_a_scheduler_that_ends_and_an_agent_that_stops(head: Head, tmp_path: Path) -> None:
    """Again and again: nothing is left, and the place is the same."""
    numbers = []
    incarnation = 4
    agent = an_agent(head, tmp_path)
    for _ in range(3):
        joining = asyncio.create_task(agent._join_once())
        assert (await head.news()).is_taken
        for _ in range(2):
            lost = await head.news()
            assert (lost.part, lost.is_taken, lost.lost) == ("scheduler.1", True, incarnation)
            assert lost.status == 3
            incarnation += 3
            head.publish(3, incarnation, 5)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        left = await head.news()
        while left.is_taken:  # it may have ended once more
            left = await head.news()
        assert not (tmp_path / "node").exists()
        incarnation += 6
        head.publish(3, incarnation, 5)
        numbers.append(len(os.listdir("/proc/self/fd")))
    assert len(set(numbers[1:])) == 1, numbers


async def test_what_it_is_refused_for(head: Head, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--replicas 4: the ring of the head has 3"):
        await an_agent(head, tmp_path, 4)._join_once()
    with pytest.raises(Refusal, match="2 are free, and the agent asks for 3"):
        await an_agent(head, tmp_path, 3)._join_once()
    assert not (tmp_path / "node").exists()
    with pytest.raises(ConfigError, match="--insecure with tcp://10"):
        Agent(AgentOptions("tcp://10.0.0.1:1", None))
