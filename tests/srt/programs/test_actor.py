"""The process: what it does for the core, and how much at once."""

import asyncio
from typing import Any

from srt.programs.actor import MAX_STARTS, ProgramsActor
from srt.programs.parts import Work
from srt.wire.programs import Call, Output, Program, Text
from tests.srt.programs.driver import Driver
from tests.waiting import SOON_S


class Runner:
    """Notes how many calls have been started between turns of others."""

    def __init__(self) -> None:
        self.counts: list[int] = [0]

    def settle(self) -> None:
        pass

    def start(self, work: Work) -> None:
        self.counts[-1] += 1


async def test_many_calls_are_started_in_pieces() -> None:
    count = 5 * MAX_STARTS + 3
    driver = Driver(max_running=2 * count, max_of_caller=count)
    calls = [Call([Text("x"), Output(f"o{i}")]) for i in range(count)]
    driver.submit(driver.open(), Program(calls=calls, eager=True))
    actor: Any = ProgramsActor.__new__(ProgramsActor)
    actor._core, actor._runner, actor._is_due = driver.core, Runner(), False
    counts = actor._runner.counts
    actor._changed()
    async with asyncio.timeout(SOON_S):
        while sum(counts) < count:
            await asyncio.sleep(0)
            counts.append(0)
    assert max(counts) == MAX_STARTS
