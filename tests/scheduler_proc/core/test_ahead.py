"""Prompts that are computed ahead of time: beside others, and nobody is the worse for it."""

import random
from collections.abc import Collection
from typing import Any

import pytest

from scheduler_proc.core.ahead import AHEAD_TOKENS
from scheduler_proc.core.steps.step_target import StepCosts
from scheduler_proc.fairness.credits import Credits
from scheduler_proc.process.load_reports import PaceMeter
from srt.wire.hints import Hints
from srt.wire.messages import Finish
from tests.running.profiles import seeds
from tests.scheduler_proc.core.test_scheduler_random import drive
from tests.scheduler_proc.driver import Driver

AHEAD = Hints(perf="throughput", is_ahead=True)
PROMPT = list(range(100, 300))


def make(*, check: bool = True, **config: Any) -> Driver:
    defaults = {"max_total_tokens": 2000, "max_running_requests": 4, "chunked_prefill_size": 128}
    return Driver(check=check, **{**defaults, **config})


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


@pytest.mark.parametrize(("length", "ends"), [(330, False), (370, True)])
def test_a_request_has_its_memory_at_once(length: int, ends: bool) -> None:
    """What is left of its prompt is not kept free for it, and what it holds is given up."""
    driver = make(max_total_tokens=400, context_len=400)
    driver.add("runs", [1], max_new=10)
    driver.step()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    driver.step()
    driver.add("call", range(400, 400 + length), max_new=1)
    driver.step()
    running = {req.wish.rid for req in driver.core.state.running.values()}
    assert running == {"runs", "call"} | ({"ahead"} - driver.finishes.keys())
    assert ("ahead" in driver.finishes) is ends
    driver.run()


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


def _steps(seed: int, pool: int, *, has_ahead: bool) -> tuple[dict[str, int], dict[str, int], int]:
    """The steps at which requests have their first token and their end, with prompts of no use to
    them ahead of time or without, and how many of these were computed."""
    rng, other = random.Random(seed), random.Random(seed)
    sizes = {"max_total_tokens": pool, "context_len": 400, "chunked_prefill_size": 64}
    driver = make(check=False, lag=seed % 2, **sizes)
    driver.core.measure(StepCosts(0.01, 0.001, 0.0005, 0.0005))
    begun, ended, head = dict[str, int](), dict[str, int](), PROMPT[:60]
    for step in range(220):
        if step < 50 and rng.random() < 0.25:
            prompt = [
                *head[: rng.choice([0, 60])],
                *rng.choices(range(90), k=rng.randrange(1, 150)),
            ]
            driver.add(f"r{step}", prompt, max_new=rng.randrange(1, 60))
        if has_ahead and step < 50 and other.random() < 0.7:
            prompt = other.choices(range(90, 100), k=other.randrange(10, 300))
            driver.add(f"a{step}", prompt, max_new=0, hints=AHEAD)
        driver.step()
        for rid, outputs in driver.outputs.items():
            if outputs:
                begun.setdefault(rid, step)
        ended |= dict.fromkeys(driver.finishes.keys() - ended.keys(), step)
    num_done = sum(driver.finishes[rid].type == "length" for rid in ended if rid[0] == "a")
    return begun, {rid: step for rid, step in ended.items() if rid[0] == "r"}, num_done


@pytest.mark.parametrize("pool", [2000, 700])
def test_nobody_has_a_token_later_for_it(pool: int) -> None:
    """In steps. Where memory is short, the step that ends it may be one that another waits for."""
    for seed in range(3):
        begun, ended, _ = _steps(seed, pool, has_ahead=False)
        begun_beside, ended_beside, num_done = _steps(seed, pool, has_ahead=True)
        assert num_done > 3 and len(ended) > 5
        for before, beside in ((begun, begun_beside), (ended, ended_beside)):
            assert before.keys() == beside.keys()
            later = max(beside[rid] - before[rid] for rid in before)
            assert later <= (1 if pool < 2000 else 0)


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


def _beside_one_in_debt() -> Driver:
    """One ahead of time is admitted, and then its caller is in debt to `b`."""
    driver = make(max_running_requests=1)
    driver.add("long", [1, *PROMPT], max_new=40, caller="a")
    while "long" not in driver.cached:
        driver.step()
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD, caller="a")
    driver.step()
    driver.add("next", [2, 3], max_new=1, caller="b")
    driver.step()
    return driver


def test_one_that_pauses_ends_for_one_that_may_run() -> None:
    driver = _beside_one_in_debt()
    for number, caller in enumerate("ab"):
        driver.add(f"ahead{number}", [7, *PROMPT], max_new=0, hints=AHEAD, caller=caller)
    driver.step()
    assert driver.finishes == {"ahead": Finish("abort"), "ahead0": Finish("abort")}
    driver.run()
    assert driver.finishes["ahead1"].type == "length"


def test_it_waits_while_its_caller_is_in_debt() -> None:
    """One that is admitted pauses, another one ends."""
    driver = _beside_one_in_debt()
    (ahead,) = driver.core.state.live.ahead.values()
    before = ahead.held.kv_len
    driver.step()
    assert ahead.held.kv_len == before
    driver.run()
    assert driver.finishes["ahead"].type == "length"


def test_it_is_none_of_the_running_requests() -> None:
    """Of which the front and the router are told, and whose prompts it does not put off."""
    driver = make(max_running_requests=1)
    meter = PaceMeter(driver.core)
    driver.add("ahead", PROMPT, max_new=0, hints=AHEAD)
    driver.step()
    assert len(driver.core.state.running) == 1
    pace = meter.report(0.0, at_once=True)
    assert pace is not None and pace.free_places == 1
    assert meter.load(pace).running == 0 and driver.core.places == 1
    driver.run()
    counters = driver.core.state.counters
    assert (counters.admitted, counters.ended) == (0, 0)


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
