"""What classes and priorities do among one caller's requests, and do not do to others'."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scheduler_proc.core.queueing.classes import DEFAULT, WEIGHTS
from scheduler_proc.core.queueing.queue_order import POLICIES
from scheduler_proc.trace.recorded import replay
from srt.wire.hints import CLASSES, Hints, ServiceTier
from tests.running.profiles import examples
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output

WORST_SHARE = 1 / (sum(WEIGHTS))  # of the class with the smallest weight, beside all others


class Asked(NamedTuple):
    """One request of a test; the prompt is its number and as many tokens as make it `length`."""

    tier: ServiceTier = ""
    priority: int = 0
    caller: str = ""
    length: int = 4
    max_new: int = 1
    hints: Hints | None = None


def one_row(**config: Any) -> Driver:
    """A core that admits one request at a time, without ageing."""
    settings = {"max_running_requests": 1, "max_total_tokens": 4000, "max_wait_s": 1e4}
    return Driver(check=False, **settings | config)


def add(driver: Driver, rid: str, asked: Asked) -> list[int]:
    """Add a request whose prompt nothing shares; returns the prompt."""
    prompt = [1000 + len(driver.cached) + len(driver.core.state.waiting), *range(asked.length - 1)]
    prompt = [number % 1000 for number in prompt]
    driver.add(
        rid,
        prompt,
        asked.max_new,
        caller=asked.caller,
        hints=asked.hints,
        tier=asked.tier,
        priority=asked.priority,
    )
    return prompt


def admitted(driver: Driver, count: int) -> list[str]:
    """The requests in the order in which they are admitted, until so many are."""
    order: list[str] = []
    while len(order) < count:
        driver.step()
        order += [rid for rid in driver.cached if rid not in order]
    return order


def order_of(asked: Sequence[Asked], **config: Any) -> list[int]:
    """The numbers of requests that wait together, as they are admitted."""
    driver = one_row(**config)
    for number, each in enumerate(asked):
        add(driver, str(number), each)
    return [int(rid) for rid in admitted(driver, len(asked))]


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "fcfs", "app"])
def test_the_class_comes_first_then_the_priority_then_the_policy(policy: str) -> None:
    asked = [
        Asked("flex", 9),
        Asked(),
        Asked("default", 4),
        Asked(priority=-1),
        Asked(priority=2),
        Asked("priority"),
        Asked("auto"),
        Asked("flex", -5),
    ]
    assert order_of(asked, schedule_policy=policy) == [4, 5, 2, 1, 6, 0, 3, 7]


def test_hints_order_those_of_the_same_class_and_priority() -> None:
    urgent, patient = Hints(perf="latency", arrival_s=1.0), Hints(perf="throughput", arrival_s=1.0)
    asked = [
        Asked(hints=patient),
        Asked(),
        Asked("flex", hints=urgent),
        Asked(hints=urgent),
        Asked("priority", hints=patient),
        Asked("default", 3, hints=patient),
    ]
    assert order_of(asked, schedule_policy="app") == [4, 5, 3, 1, 0, 2]
    assert order_of(asked, schedule_policy="fcfs") == [4, 5, 0, 1, 3, 2]


@pytest.mark.draws
def test_nobody_passes_another_caller_by_a_high_priority() -> None:
    """Whatever A asks for, B's requests come when they would come anyway."""
    rng = random.Random(1)
    for _ in range(examples(20)):
        callers = [rng.choice("AB") for _ in range(12)]
        tiers: list[ServiceTier] = ["", "flex", "priority"]
        plain = [Asked(caller=caller) for caller in callers]
        asked = [
            each._replace(tier=rng.choice(tiers), priority=rng.randint(-3, 3))
            if each.caller == "A"
            else each
            for each in plain
        ]
        orders = [order_of(each, schedule_policy="fcfs") for each in (plain, asked)]
        assert [callers[i] for i in orders[0]] == [callers[i] for i in orders[1]]
        assert [i for i in orders[0] if callers[i] == "B"] == [
            i for i in orders[1] if callers[i] == "B"
        ]


def test_classes_that_all_wait_share_by_weight_and_none_starves() -> None:
    """A flood of each class at once: all get their part of the first third, which is computed while
    all wait."""
    driver = one_row()
    for number in range(210):
        for tier in CLASSES:
            add(driver, f"{tier}.{number}", Asked(tier, length=150))
    counts = Counter(rid.split(".")[0] for rid in admitted(driver, 210))
    shares = [counts[name] / 210 for name in CLASSES]
    expected = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    assert shares == pytest.approx(expected, abs=0.03)
    assert shares[0] >= 0.8 * WORST_SHARE


def test_waiting_raises_the_share_of_a_class_up_to_the_highest() -> None:
    driver = one_row(max_wait_s=10.0)
    for number in range(150):
        for tier in ("flex", "priority"):
            add(driver, f"{tier}.{number}", Asked(tier, length=150))
    driver.now += 45.0  # sixteen times its weight
    counts = Counter(rid.split(".")[0] for rid in admitted(driver, 150))
    assert counts["flex"] == pytest.approx(75, abs=8)


def test_in_a_class_none_is_passed_by_one_that_came_much_later() -> None:
    driver = one_row(max_wait_s=5.0)
    add(driver, "running", Asked(max_new=40))
    driver.step()
    for number in range(20):  # each with a greater priority, a second after the other
        driver.now += 1.0
        add(driver, str(number), Asked("flex", number))
    order = [int(rid) for rid in admitted(driver, 21)[1:]]
    for place, number in enumerate(order):
        assert all(other - number <= 5 for other in order[:place])
    assert order[:2] == [5, 4]


def test_a_late_request_of_a_high_class_passes_a_queue_that_is_older_than_the_bound() -> None:
    driver = one_row(max_wait_s=1.0)
    for number in range(40):
        add(driver, f"old{number}", Asked("flex", max_new=3))
    driver.step()
    driver.now += 30.0
    add(driver, "new", Asked("priority"))
    assert "new" in admitted(driver, 4)


def run_with_preemption(driver: Driver, caller: str = "") -> dict[str, list[int]]:
    """Long flex requests take both rows; then one of a higher class comes."""
    prompts = {}
    for rid in ("f0", "f1"):
        prompts[rid] = add(driver, rid, Asked("flex", max_new=60, caller=caller, length=9))
    for _ in range(8):
        driver.step()
    prompts["high"] = add(driver, "high", Asked("default", max_new=5, caller=caller))
    return prompts


@pytest.mark.parametrize("lag", [0, 1])
def test_a_running_flex_request_is_retracted_for_a_higher_class(lag: int) -> None:
    driver = Driver(lag, max_running_requests=2, max_total_tokens=2000)
    prompts = run_with_preemption(driver)
    for _ in range(12):
        driver.step()
    assert driver.finishes.keys() == {"high"}
    classes = driver.core.state.waiting.classes
    assert (driver.core.state.counters.retracted, classes.num_preempted) == (1, 1)
    driver.run()
    assert classes.counts == {"flex": 2, "default": 1, "priority": 0}
    for rid, prompt in prompts.items():
        assert driver.outputs[rid] == reference_output(prompt, 5 if rid == "high" else 60)


def test_it_is_retracted_for_memory_too() -> None:
    driver = Driver(max_running_requests=8, max_total_tokens=300, chunked_prefill_size=64)
    driver.core.state.admissions.ratio.value = 0.1
    prompts = {"f": add(driver, "f", Asked("flex", max_new=40, length=200))}
    for _ in range(8):
        driver.step()
    prompts["high"] = add(driver, "high", Asked(max_new=5, length=150))
    for _ in range(14):
        driver.step()
    assert driver.finishes.keys() == {"high"}
    driver.run()
    for rid, prompt in prompts.items():
        assert driver.outputs[rid] == reference_output(prompt, 5 if rid == "high" else 40)


def test_others_than_flex_are_not_retracted_for_a_class() -> None:
    driver = Driver(max_running_requests=2, max_total_tokens=2000)
    for rid in ("a", "b"):
        add(driver, rid, Asked(max_new=30))
    driver.step()
    add(driver, "high", Asked("priority", max_new=5))
    driver.run()
    assert driver.core.state.counters.retracted == 0


def test_another_caller_s_flex_request_keeps_its_row_unless_shares_take_it() -> None:
    """A's high class is no reason for B to lose a row; that B has more rows than A is, after the
    bound, and then B loses a flex request first."""
    driver = Driver(max_running_requests=4, max_total_tokens=4000, fair_wait_s=2.0)
    tiers: Sequence[ServiceTier] = ("", "flex", "", "")
    for number, tier in enumerate(tiers):
        asked = Asked(tier, caller="B", max_new=400 - number, length=200)
        add(driver, f"b{number}", asked)
    for _ in range(30):
        driver.step()
    add(driver, "a", Asked("priority", caller="A"))
    for _ in range(3):
        driver.step()
    assert driver.core.state.counters.retracted == 0
    driver.now += 3.0
    add(driver, "more", Asked(caller="B"))
    for _ in range(3):
        driver.step()
    running = {req.wish.rid for req in driver.core.state.running.values()}
    assert "a" in driver.finishes and {"b0", "b2", "b3"} <= running


def check_classes(driver: Driver) -> None:
    """Each caller with classes has all its waiting reqs in them, and those without have none."""
    waiting = driver.core.state.waiting
    by_caller: dict[str, set[int]] = {}
    for req in waiting:
        by_caller.setdefault(req.wish.caller, set()).add(req.handle)
    assert set(waiting.classes.callers) <= by_caller.keys()
    for caller in waiting.classes.callers:
        assert waiting.classes.handles(caller) == by_caller[caller]
    for req in waiting:
        if req.wish.rank != DEFAULT or req.wish.priority:
            assert req.wish.caller in waiting.classes.callers


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.draws
@pytest.mark.parametrize("policy", POLICIES)
def test_random_traffic_of_classes(policy: str, lag: int, tmp_path: Path) -> None:
    """Little memory and few rows: all invariants hold, every request gets its own output, whoever
    was retracted, and the run is replayed exactly."""
    retracted = 0
    for seed in range(examples(1)):
        rng, trace = random.Random(seed), tmp_path / f"{policy}{seed}.trace"
        driver = Driver(
            lag,
            trace=trace,
            max_total_tokens=rng.choice([150, 400]),
            max_running_requests=rng.choice([2, 4]),
            chunked_prefill_size=rng.choice([8, 32]),
            schedule_policy=policy,
            max_wait_s=rng.choice([0.0, 0.5, 5.0]),
            fair_wait_s=0.2,
        )
        asked: dict[str, tuple[list[int], int]] = {}
        for _ in range(120):
            if rng.random() < 0.4:
                rid, max_new = f"r{len(asked)}", rng.choice([1, 5, 30])
                prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, 40))]
                asked[rid] = prompt, max_new
                driver.add(
                    rid,
                    prompt,
                    max_new,
                    caller=rng.choice(["", "", "b", "c"]),
                    tier=rng.choice(["", "", "flex", "priority", "auto"]),
                    priority=rng.choice([0, 0, 1, -1, 7]),
                    hints=rng.choice([None, Hints(perf="latency"), Hints(app="x")]),
                )
            driver.step()
            driver.now += 0.05
            check_classes(driver)
        driver.run()
        driver.close()
        check_classes(driver)
        for rid, (prompt, max_new) in asked.items():
            assert driver.outputs[rid] == reference_output(prompt, max_new)
        retracted += driver.core.state.counters.retracted
        replay(trace)
    assert retracted > 0


def test_without_classes_nothing_is_asked_of_them() -> None:
    driver = one_row()
    for number in range(5):
        add(driver, str(number), Asked(["", "auto", "default"][number % 3]))  # type: ignore[arg-type]
        assert not driver.core.state.waiting.classes.callers
    order = admitted(driver, 5)
    assert all(int(one) < int(other) for one, other in pairwise(order))
