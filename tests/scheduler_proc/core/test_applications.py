"""What the policy `app` does for applications that send one request after the other."""

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import pytest

from srt.wire.hints import Hints
from tests.scheduler_proc.driver import Driver

LENGTH = 6  # requests of a chain, each of which needs the answer before
ROWS = 4

HintsOf = Callable[[int, int], Hints | None]  # of a chain's request


def ends_of_chains(policy: str, chains: int, hints_of: HintsOf) -> list[int]:
    """The step after which each of the chains, which all begin at once, has its last answer."""
    driver = Driver(
        check=False,
        max_running_requests=ROWS,
        max_total_tokens=4000,
        schedule_policy=policy,
        max_wait_s=1e4,
    )
    done, ends = [0] * chains, [0] * chains

    def ask(chain: int) -> None:
        number = done[chain]
        prompt = [30 * number + chain, 1, 2]  # nothing of it is cached
        hints = hints_of(chain, number)
        driver.add(f"{chain}.{number}", prompt, max_new=8, hints=hints)

    for chain in range(chains):
        ask(chain)
    for step in range(10_000):
        driver.step()
        for chain in range(chains):
            if done[chain] < LENGTH and f"{chain}.{done[chain]}" in driver.finishes:
                done[chain] += 1
                if done[chain] == LENGTH:
                    ends[chain] = step
                else:
                    ask(chain)
        if all(ends):
            return ends
    raise AssertionError("some chain does not end")


def chain_hints(chain: int, number: int) -> Hints:
    return Hints(app=f"a{chain:02}", arrival_s=1.0 + chain, depth=LENGTH - 1 - number)


@pytest.mark.parametrize("chains", [2 * ROWS, 6 * ROWS])  # which use all rows to the end
def test_chains_that_come_first_are_served_first_and_none_is_late(chains: int) -> None:
    by_match = ends_of_chains("lpm", chains, chain_hints)
    by_app = ends_of_chains("app", chains, chain_hints)
    assert mean(by_match) / mean(by_app) > 1.2
    assert max(by_app) <= 1.05 * max(by_match)
    assert by_app[:ROWS] == [min(by_app)] * ROWS


def test_a_request_for_latency_passes_a_flood() -> None:
    """It waits for a row, and not for the 300 requests before it."""
    config: dict[str, Any] = {"max_running_requests": 2, "max_total_tokens": 4000}
    driver = Driver(check=False, schedule_policy="app", **config)
    for number in range(300):
        driver.add(f"t{number}", [number % 900, 1], max_new=4, hints=Hints(perf="throughput"))
    for _ in range(3):
        driver.step()
    driver.add("now", [7, 7], max_new=4, hints=Hints(perf="latency"))
    for _ in range(12):
        driver.step()
    assert "now" in driver.finishes
    driver.run()
    assert len(driver.finishes) == 301


def test_the_answer_says_that_a_request_s_hints_were_lowered() -> None:
    driver = Driver(max_total_tokens=100, schedule_policy="app")
    for name, is_lowered in (("a", False), ("b", True)):
        driver.add(name, [1], max_new=2, hints=Hints(is_lowered=is_lowered))
        (req,) = driver.core.state.waiting
        assert req.meta.hints_lowered == is_lowered
        driver.run()


def order_of_admission(asked: Sequence[tuple[str, Hints | None]], **config: Any) -> str:
    """The callers of reqs that wait together, in the order in which they are admitted."""
    order = ""
    driver = Driver(
        check=False,
        max_running_requests=1,
        max_total_tokens=4000,
        schedule_policy="app",
        max_wait_s=1e4,
        **config,
    )
    for number, (caller, hints) in enumerate(asked):
        driver.add(str(number), [number, *[7] * 39], hints=hints, caller=caller)
    seen: set[str] = set()
    while len(seen) < len(asked):
        driver.step()
        for rid in driver.cached.keys() - seen:
            order += asked[int(rid)][0]
            seen.add(rid)
    return order


URGENT = Hints(perf="latency", arrival_s=1.0)


def test_among_callers_with_credit_the_urgent_one_is_first() -> None:
    asked = [("a", None)] * 3 + [("b", None)] * 2 + [("b", URGENT)]
    assert order_of_admission(asked, chunked_prefill_size=512) == "baaabb"


def test_urgent_requests_do_not_pass_another_caller_s_share() -> None:
    """A flood of them is first among its own caller's only, as soon as its credit is used."""
    asked = [("a", None)] * 2 + [("b", None)] * 6 + [("a", URGENT)] * 20
    order = order_of_admission(asked, chunked_prefill_size=64)
    assert order.startswith("aa")  # it is first while it has credit
    until_last = order[: order.rindex("b")]
    assert until_last.count("a") <= until_last.count("b") + 4  # a quantum is two of them
