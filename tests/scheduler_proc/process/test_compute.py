"""The compute thread with an asynchronous executor: what it launches when, and what is known of it.

The fake device is held, so nothing here depends on how long anything takes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from scheduler_proc.core.steps.step_cost import StepSize
from srt.ring.crash_file import left_by
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import Reported, TokenizedReq
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_device import FakeDevice
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.scheduler_proc.process.test_actor_steps import LoopOnly
from tests.waiting import SOON_S

PROMPT = list(range(10))


class Held:
    """The actor's loop at lag 1 over a device that is held."""

    def __init__(self, **device: Any) -> None:
        self.device = FakeDevice(500, 4096, held=True, **device)
        self.driver = Driver(executor=self.device, max_total_tokens=500)
        self.actor = LoopOnly(self.driver, overlap=True)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The loop runs; at the end the device is let go, and all reqs end."""
        serving = asyncio.ensure_future(self.actor.serve())
        try:
            yield
            self.device.release(10_000)
            await serving
        finally:
            serving.cancel()
            self.device.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def launched(self, count: int) -> None:
        """Wait until this many steps have been launched, and nothing more happens."""
        await self.until(lambda: len(self.device.launched) >= count)
        await self.until(lambda: self.actor._compute._job is None)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(self.device.launched) == count

    def running(self) -> list[str]:
        """Who is noted as running."""
        record = left_by(self.actor._blame._path.parent, 0).record
        return sorted(rid for _, rid in record.running)


async def test_one_step_is_queued_behind_the_one_that_runs() -> None:
    """Also while that lasts: a third is planned when the first has ended."""
    held = Held()
    held.driver.add("a", PROMPT, 8)
    async with held.serving():
        for ended in range(6):
            await held.launched(ended + 2)
            held.device.release()
    assert held.driver.outputs["a"] == reference_output(PROMPT, 8)
    behind = [is_behind for _, is_behind in held.device.launched]
    assert behind[:6] == [False] + [True] * 5
    assert held.device.num_dropped == 0


async def test_steps_that_were_queued_in_time_leave_no_gap() -> None:
    held = Held()
    held.driver.add("a", PROMPT, 6)
    clock = held.actor._clock
    async with held.serving():
        for ended in range(5):
            await held.launched(ended + 2)
            assert clock.exposed_s == 0.0
            held.device.release()
    sizes = [size for size, _ in clock.steps]
    assert sizes[:5] == [StepSize(others=10), *[StepSize(decodes=1)] * 4]
    assert clock.step_s >= sum(seconds for _, seconds in list(clock.steps)[1:]) > 0


async def test_what_hangs_is_the_step_that_the_device_is_at() -> None:
    """A watch sees the same object for as long as one step runs, whatever is queued behind."""
    held = Held()
    held.driver.add("a", PROMPT, 6)
    compute = held.actor._compute
    async with held.serving():
        await held.launched(2)
        await held.until(lambda: compute.job is not None)
        first = compute.job
        await asyncio.sleep(0.01)
        assert compute.job is first
        assert compute.step is held.device.launched[0][0]
        held.device.release()
        await held.launched(3)
        await held.until(lambda: compute.step is held.device.launched[1][0])
        assert compute.job is not None and compute.job is not first
    await held.until(lambda: compute.job is None)


async def test_whoever_is_on_the_device_is_noted() -> None:
    """The step that runs may have a request that the one behind it has no more."""
    held = Held()
    held.driver.add("one", [1, 2, 3], 1)
    held.driver.add("more", PROMPT, 6)
    async with held.serving():
        await held.launched(2)
        rows = [[row.req.key[1] for row in step.rows] for step, _ in held.device.launched]
        assert sorted(rows[0]) == ["more", "one"] and rows[1] == ["more"]
        assert held.running() == ["more", "one"]
        held.device.release()
        await held.launched(3)
        assert held.running() == ["more"]


async def test_a_trial_has_the_device_to_itself() -> None:
    """Neither is it queued behind a step of others, nor one of theirs behind it."""
    held = Held()
    sampling = FilledParams(max_new_tokens=3, temperature=0.0)
    suspect = TokenizedReq(
        b"c", "suspect", 0, pack_ids([5, 6, 7]), sampling, reported=Reported(is_suspect=True)
    )
    held.driver.add("other", PROMPT, 8)
    async with held.serving():
        await held.launched(2)
        held.actor._blame.takes(suspect)
        held.actor._entry.add(suspect)
        while "suspect" not in held.driver.finishes:
            await asyncio.sleep(0.01)  # if something would be queued behind, it is by now
            held.device.release()
    assert held.driver.outputs["suspect"] == reference_output([5, 6, 7], 3)
    assert held.driver.outputs["other"] == reference_output(PROMPT, 8)
    launched = [([row.req.key[1] for row in step.rows], b) for step, b in held.device.launched]
    at = [rows for rows, _ in launched].index(["suspect"])
    assert launched[at - 1][0] == ["other"]
    assert [is_behind for _, is_behind in launched[at : at + 2]] == [False, False]


@pytest.mark.parametrize("kind", ["late", "at launch"])
@pytest.mark.parametrize("number", [1, 2, 4])
async def test_a_step_that_fails_once_costs_nobody_a_token(kind: str, number: int) -> None:
    """It is run again by halves; the step that was queued behind it has had no effect."""
    held = Held(fails=lambda at: kind if at == number else "")
    for rid in ("a", "b", "c"):
        held.driver.add(rid, [ord(rid), *PROMPT], 9)
    async with held.serving():
        for ended in range(number):
            await held.launched(ended + 2) if ended + 2 <= number or kind == "late" else None
            held.device.release()
    for rid in ("a", "b", "c"):
        assert held.driver.outputs[rid] == reference_output([ord(rid), *PROMPT], 9)
    assert held.device.num_dropped == (1 if kind == "late" else 0)


async def test_a_step_that_fails_alone_ends_its_request() -> None:
    held = Held(fails=lambda at: "late" if at in (3, 4) else "")
    held.driver.add("a", PROMPT, 9)
    async with held.serving():
        pass
    assert held.driver.finishes["a"].error is not None
    assert held.driver.outputs["a"] == reference_output(PROMPT, 9)[:2]
    measured = len(held.actor._clock.steps)
    assert measured == 2


async def test_rows_that_wait_for_a_token_are_launched_when_it_is_there() -> None:
    held = Held()
    held.driver.add("free", PROMPT, 12)
    held.driver.add("bound", [4, 5], 30, eos=[EOS], grammar=FakeGrammar(9))
    async with held.serving():
        await held.until(lambda: len(held.device.launched) == 1)
        held.device.release()
        await held.until(lambda: len(held.device.launched) == 2)
        assert not held.device.launched[1][1]  # its plan has waited for the first step's result
    expected = reference_output([4, 5], 30, frozenset([EOS]), grammar=FakeGrammar(9))
    assert held.driver.outputs["bound"] == expected
    assert held.driver.outputs["free"] == reference_output(PROMPT, 12)
