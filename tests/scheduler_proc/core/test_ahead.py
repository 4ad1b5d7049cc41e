"""Prompts that are computed ahead of time: only while nobody else waits, and nobody is the worse
for it."""

from collections.abc import Collection
from typing import Any

import pytest

from scheduler_proc.core.ahead import AHEAD_TOKENS
from scheduler_proc.fairness.credits import Credits
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


def test_it_ends_where_its_call_overtakes_it_and_what_it_has_computed_stays() -> None:
    driver = make()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    for _ in range(3):
        driver.step()
    driver.add("call", PROMPT, max_new=9)
    driver.run()
    assert driver.finishes["ahead"] == Finish("abort")
    assert driver.cached["call"] >= 2 * AHEAD_TOKENS
    counters = driver.core.state.counters
    assert counters.computed_prompt_tokens == len(PROMPT)  # each of them once


def test_it_pauses_while_another_prompt_is_computed() -> None:
    driver = make()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    driver.step()
    for number in range(4):
        driver.add(f"long{number}", [number, *PROMPT], max_new=20)
        state = driver.core.state
        (ahead,) = state.live.ahead.values()
        before = ahead.held.kv_len
        driver.step()  # all of the step's budget is theirs
        assert ahead.held.kv_len == before
    driver.run()
    assert driver.finishes["ahead"].type == "length"


def test_its_row_is_beyond_those_of_others() -> None:
    """Which are as many as ever, and for which others may wait meanwhile."""
    driver = make()
    for number in range(6):
        driver.add(f"r{number}", [number, 7], max_new=30)
    driver.step()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    for _ in range(3):
        driver.step()
    state = driver.core.state
    assert (len(state.running), len(state.waiting)) == (5, 2)
    driver.add("b", [1, 2], max_new=1, caller="b")
    driver.run()
    assert driver.finishes["ahead"].type == "length"
    assert state.counters.retracted == 0
    assert state.memory.table.num_free_rows == 4


def test_it_evicts_nothing_that_a_waiting_request_has_matched() -> None:
    driver = make(max_total_tokens=400, max_running_requests=1, context_len=400)
    driver.add("first", PROMPT, max_new=1)
    driver.run()
    driver.add("runs", [1, 2, 3], max_new=60)
    driver.step()
    driver.add("call", [*PROMPT, 7], max_new=1)
    driver.step()
    for number in range(20):
        driver.add(f"ahead{number}", [number, *PROMPT[:170]], max_new=0, hints=AHEAD)
        driver.step()
    driver.run()
    assert driver.cached["call"] == len(PROMPT)
    assert {driver.finishes[f"ahead{i}"].type for i in range(20)} == {"abort"}


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


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_its_tokens_are_charged_to_its_caller_and_not_to_the_call_again(
    is_cut_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged = {"a": 0, "b": 0}
    use = Credits.charge

    def charge(credits: Credits, caller: str, tokens: int) -> None:
        charged[caller] += tokens
        use(credits, caller, tokens)

    monkeypatch.setattr(Credits, "charge", charge)
    driver = make()
    driver.add("ahead", PROMPT[:150], max_new=0, hints=AHEAD, caller="a")
    if is_cut_short:
        driver.step()
        driver.step()
        driver.abort("ahead")
    else:
        driver.run()
    driver.add("other", [7] * 10, caller="b")
    driver.add("call", PROMPT, caller="a")
    driver.run()
    assert driver.finishes["ahead"].type == ("abort" if is_cut_short else "length")
    assert charged == {"a": len(PROMPT), "b": 10}  # prompts; outputs are charged apart


@pytest.mark.parametrize("rows", [4, 6])
def test_nobody_gives_way_to_it_and_it_refills_no_credit(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two others, which both have prompts ahead again and again."""
    driver = make(max_running_requests=rows, fair_wait_s=0.02)
    for number in range(4):
        driver.add(f"r{number}", [number, *[7] * 60], max_new=60, caller="a")
    while len(driver.cached) < 4:
        driver.step()
    asked = set[str]()
    able = Credits.able

    def note(credits: Credits, callers: Collection[str]) -> set[str]:
        asked.update(callers)
        return able(credits, callers)

    monkeypatch.setattr(Credits, "able", note)
    for number in range(30):
        for caller in "bc":
            rid = f"{caller}{number}"
            driver.add(rid, [number, *PROMPT], max_new=0, hints=AHEAD, caller=caller)
        driver.step()
    driver.run()
    assert not asked and driver.core.state.counters.retracted == 0
    driver.add("call", PROMPT, caller="b")
    driver.run()
    assert asked == {"b"}


def test_it_waits_while_its_caller_is_in_debt() -> None:
    """One that is admitted pauses, another one ends."""
    driver = make(max_running_requests=1)
    driver.add("long", [1, *PROMPT], max_new=40, caller="a")
    while "long" not in driver.cached:
        driver.step()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD, caller="a")
    driver.step()
    driver.add("next", [2, 3], max_new=1, caller="b")
    driver.step()
    (ahead,) = driver.core.state.live.ahead.values()
    before = ahead.held.kv_len
    driver.step()
    assert ahead.held.kv_len == before
    driver.run()
    assert driver.finishes["ahead"].type == "length"


@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_of_callers_with_hints_and_prompts_ahead(seed: int) -> None:
    policy, lag, losses = ("app", "lpm")[seed % 2], (1 + seed // 2) % 2, 0.02 * (seed % 3)
    traffic = drive(
        *(171 + seed, 150, lag, policy, 300),
        constrained=0.2,
        losses=losses,
        callers=["a", "a", "a", "b", "c"],
        hinting=0.6,
        ahead=0.6,
        fair_wait_s=0.02,
    )
    state = traffic.driver.core.state
    assert traffic.num_ahead > 10 and (seed > 0 or state.counters.retracted > 0)
    assert not state.waiting.callers and not state.live.ahead
