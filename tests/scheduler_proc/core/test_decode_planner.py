"""How the reqs that decode get their slots."""

import random

import pytest

from scheduler_proc.core.decode_planner import DECODE_RUN
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output


def prompts_of(count: int, length: int) -> dict[str, list[int]]:
    rng = random.Random(0)
    return {f"r{i}": [rng.randrange(1000) for _ in range(length)] for i in range(count)}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("slots_each", [23, 40])  # one slot at a time, or runs
def test_a_step_evicts_once_for_all_that_decode(lag: int, slots_each: int) -> None:
    prompts = prompts_of(12, 16)
    driver = Driver(lag, max_total_tokens=12 * slots_each, chunked_prefill_size=12 * slots_each)
    driver.generate([7] * 11 * slots_each)  # fills the pool with what can be evicted
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 8)
    driver.step()
    evict, evictions = driver.core.state.memory.cache.evict, list[int]()

    def counted(n: int) -> int:
        evictions.append(n)
        return evict(n)

    driver.core.state.memory.cache.evict = counted  # type: ignore[method-assign]
    while driver.core.has_work:
        before = len(evictions)
        driver.step()
        assert len(evictions) <= before + 1
    assert evictions
    assert driver.core.state.counters.retracted == 0
    assert all(driver.outputs[rid] == reference_output(p, 8) for rid, p in prompts.items())


@pytest.mark.parametrize("lag", [0, 1])
def test_slots_set_aside_are_taken_back_before_anyone_is_retracted(lag: int) -> None:
    """The req that first decodes alone has a run of slots; then others need every one of them."""
    driver = Driver(lag, max_total_tokens=4 + DECODE_RUN + 3 * 3)
    driver.add("early", [1, 2, 3], 5)
    for _ in range(3):
        driver.step()
    assert driver.core.state.memory.room > driver.core.state.memory.easy_room
    prompts = {f"r{i}": [10 + i, 2, 3, 4] for i in range(3)}
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 4)
    driver.run()
    assert driver.core.state.counters.retracted == 0
    assert driver.outputs["early"] == reference_output([1, 2, 3], 5)
    assert all(driver.outputs[rid] == reference_output(p, 4) for rid, p in prompts.items())


@pytest.mark.parametrize("lag", [0, 1])
def test_those_with_fewest_outputs_give_up_their_memory(lag: int) -> None:
    """Among equals the latest does; the req that began to answer first is never retracted."""
    driver = Driver(lag, max_total_tokens=60)
    driver.core.state.admissions.ratio.value = 0.0  # admits all at once
    driver.core.state.admissions.ratio.raise_after_retraction = lambda running: None  # type: ignore[method-assign]
    retracted, retract = [], driver.core.state.retract

    def note(req: object) -> None:
        retracted.append(req.wish.rid)  # type: ignore[attr-defined]
        retract(req)  # type: ignore[arg-type]

    driver.core._planner._decodes._retract = note
    for i in range(5):
        driver.add(f"r{i}", [i, 1, 2, 3], 40)
    driver.run()
    assert "r0" not in retracted
    assert retracted[:3] == ["r4", "r3", "r2"]
    assert all(driver.outputs[f"r{i}"] == reference_output([i, 1, 2, 3], 40) for i in range(5))
