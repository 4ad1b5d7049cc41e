"""Random traffic through the actor's loop and the compute thread, with steps on a fake device."""

import asyncio
import random
import time
from typing import Any

import pytest

from scheduler_proc.core.steps.step import Step
from tests.scheduler_proc.core.test_scheduler_random import Traffic
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_device import FakeDevice
from tests.scheduler_proc.process.test_actor_steps import LoopOnly
from tests.waiting import SOON_S

POOL = 220


def busy_driver(seed: int, **device: Any) -> Driver:
    """A driver over a fake device, with so little memory that reqs are retracted."""
    return Driver(
        executor=FakeDevice(POOL, 256, seed=seed, **device),
        max_total_tokens=POOL,
        max_running_requests=12,
        chunked_prefill_size=24,
        context_len=256,
        max_wait_s=1.0,
        random_seed=seed,
    )


async def traffic_on_device(
    seed: int, steps: int, constrained: float = 0.0, wishing: float = 0.0, **device: Any
) -> Traffic:
    """Random traffic for this many launches, at lag 1. Outputs are checked."""
    driver = busy_driver(seed, **device)
    actor, traffic = LoopOnly(driver, overlap=True), Traffic(seed, driver, constrained, wishing)
    actor.incarnations = [0]
    serving = asyncio.ensure_future(actor._serve())
    rng = random.Random(seed)

    async def settle(waits: bool) -> None:
        await asyncio.sleep(rng.choice([0, 0, 0.001]))
        while waits and actor._has_work() and not driver.executor.faults:
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.001)

    try:
        async with asyncio.timeout(SOON_S + 0.1 * steps):
            while len(driver.executor.launched) < steps and not driver.executor.faults:
                assert not serving.done(), serving.exception()
                with actor._core_lock:
                    driver.now = time.monotonic()
                    if len(driver.core.state.waiting) < 6:
                        traffic.arrive()
                    if rng.random() < 0.05:
                        traffic.abort_one()
                actor._entry.wake.set()
                await settle(waits=rng.random() < 0.02)
            await settle(waits=True)
    finally:
        serving.cancel()
        actor._compute.close()
        driver.executor.close()
    actor._entry.send_outputs()
    assert not driver.executor.faults
    traffic.check()
    cached = driver.core.state.memory.cache.evictable_size
    assert driver.core.state.memory.pool.free_size + cached == POOL, "slots leaked"
    return traffic


def overlapped(driver: Driver) -> float:
    """The share of the steps that were queued while the one before ran."""
    launched: list[tuple[Step, bool]] = driver.executor.launched
    return sum(is_behind for _, is_behind in launched) / len(launched)


def now_and_then(number: int) -> str:
    """Which launches fail: too few to fail two rows of one step."""
    return {0: "late", 37: "at launch"}.get(number % 74, "")


KINDS = [(0.0, 0.0), (0.0, 0.8), (0.5, 0.4)]


@pytest.mark.parametrize(("constrained", "wishing"), KINDS)
async def test_random_steps_on_a_device(constrained: float, wishing: float) -> None:
    """Each req gets the tokens that it would get alone; most steps are queued behind another."""
    traffic = await traffic_on_device(5, 200, constrained, wishing)
    assert overlapped(traffic.driver) > 0


async def test_random_steps_on_a_device_that_fails() -> None:
    traffic = await traffic_on_device(6, 250, 0.2, 0.4, fails=now_and_then)
    assert len(traffic.driver.executor.launched) >= 250


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
async def test_random_steps_on_a_device_long(seed: int) -> None:
    fails = now_and_then if seed % 2 else lambda number: ""
    traffic = await traffic_on_device(seed, 1000, *KINDS[seed % 3], fails=fails)
    assert traffic.driver.core.state.counters.retracted > 0


async def test_a_buffer_that_is_used_again_too_early_is_noticed() -> None:
    """The device finds the plan of one step in the place of another's: this test could not fail
    if the fake read its host memory at once."""
    with pytest.raises(AssertionError):  # a slot of another prefix, or wrong tokens
        await traffic_on_device(5, 200, sets=1, waits=False)
