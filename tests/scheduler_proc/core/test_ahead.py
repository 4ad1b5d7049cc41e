"""Prompts that are computed ahead of time: only while nobody else waits, and nobody is the worse
for it."""

from typing import Any

import pytest

from scheduler_proc.core.ahead import AHEAD_TOKENS
from srt.wire.hints import Hints
from srt.wire.messages import Finish
from tests.running.profiles import seeds
from tests.scheduler_proc.core.test_scheduler_random import drive
from tests.scheduler_proc.driver import Driver

AHEAD = Hints(perf="throughput", is_ahead=True)
PROMPT = list(range(100, 300))


def make(**config: Any) -> Driver:
    defaults = {"max_total_tokens": 2000, "max_running_requests": 4, "chunked_prefill_size": 128}
    return Driver(**{**defaults, **config})


def num_steps_until(driver: Driver, rid: str) -> int:
    for number in range(1000):
        if rid in driver.finishes:
            return number
        driver.step()
    raise AssertionError(f"{rid} does not end")


def test_a_prompt_that_was_computed_ahead_is_cached_for_its_call() -> None:
    driver = make()
    driver.add("ahead", PROMPT[:150], max_new=0, hints=AHEAD)
    driver.run()
    assert driver.finishes["ahead"].type == "length"
    driver.add("call", PROMPT, max_new=3)
    driver.run()
    assert driver.cached["call"] == 150
    plain = make()
    plain.add("call", PROMPT, max_new=3)
    plain.run()
    assert driver.outputs["call"] == plain.outputs["call"]


def test_it_runs_in_small_chunks_beside_others() -> None:
    driver = make()
    driver.add("runs", [1, 2, 3], max_new=60)
    driver.step()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    assert num_steps_until(driver, "ahead") >= len(PROMPT) // AHEAD_TOKENS
    assert driver.finishes["ahead"].type == "length"
    assert "runs" not in driver.finishes  # it went on meanwhile
    driver.run()


def test_it_ends_when_another_request_comes_and_what_it_has_computed_stays() -> None:
    driver = make()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    for _ in range(3):
        driver.step()
    driver.add("call", PROMPT, max_new=1)
    driver.run()
    assert driver.finishes["ahead"] == Finish("abort")
    assert driver.cached["call"] >= 2 * AHEAD_TOKENS


@pytest.mark.parametrize("busy", [3, 4])
def test_it_takes_no_row_that_another_may_need(busy: int) -> None:
    """Of four rows it takes none but the last but one."""
    driver = make()
    for number in range(busy):
        driver.add(f"r{number}", [number, 7], max_new=30)
    driver.step()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    driver.step()
    driver.step()
    assert driver.finishes["ahead"] == Finish("abort")
    driver.run()
    assert driver.core.state.counters.retracted == 0


def test_one_runs_at_a_time_and_none_waits() -> None:
    driver = make()
    for number in range(3):
        driver.add(f"a{number}", [number, *PROMPT], max_new=0, hints=AHEAD)
    driver.step()
    state = driver.core.state
    assert (len(state.running), len(state.waiting)) == (1, 0)
    driver.run()
    assert [driver.finishes[f"a{i}"].type for i in range(3)] == ["length", "abort", "abort"]


def test_it_takes_no_memory_that_running_requests_will_need() -> None:
    driver = make(max_total_tokens=150, context_len=150)
    driver.add("runs", PROMPT[:20], max_new=100)
    driver.step()
    driver.add("ahead", [5, *PROMPT[:120]], max_new=0, hints=AHEAD)
    driver.step()
    driver.step()
    assert driver.finishes["ahead"] == Finish("abort")
    driver.run()
    assert driver.core.state.counters.retracted == 0


@pytest.mark.parametrize("seed", seeds(2))
def test_random_traffic_beside_prompts_ahead(seed: int) -> None:
    """No output changes, and no slot is lost, also where cores are lost."""
    policy, lag = ("lpm", "app")[seed % 2], (1 + seed // 2) % 2
    traffic = drive(91 + seed, 200, lag, policy, 600, constrained=0.2, ahead=0.8, losses=0.02)
    assert traffic.num_ahead > 10 and (seed > 1 or traffic.num_ahead_done > 0)
