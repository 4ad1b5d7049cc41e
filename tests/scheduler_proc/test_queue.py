"""The order of admission: the policy's, within a bound on who may overtake whom."""

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.hit_rate.families import OUTPUT_TOKEN
from bench.hit_rate.simulator import Setting, simulate
from scheduler_proc.memory import TokenPool
from scheduler_proc.queue import POLICIES, WaitingQueue
from scheduler_proc.radix_cache import RadixCache
from scheduler_proc.req import Req
from srt.messages import TokenizedReq, pack_ids
from srt.sampling_params import SamplingParams
from tests.scheduler_proc.driver import Driver

PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=6)
GAPS = st.sampled_from([0.0, 0.0, 0.1, 1.0, 2.0, 5.0])


def req(handle: int, prompt: list[int], arrival_s: float, is_resumed: bool = False) -> Req:
    wire = TokenizedReq(b"c", str(handle), 0, pack_ids(prompt), SamplingParams(max_new_tokens=1))
    waiting = Req(handle, wire, 0, arrival_s, 1000)
    waiting.residency = int(is_resumed)
    return waiting


def queue_of(reqs: list[Req], policy: str, max_wait_s: float) -> WaitingQueue:
    queue = WaitingQueue(policy, max_wait_s, random.Random(0))
    for waiting in reqs:
        queue.add(waiting)
    return queue


def cache_with(*prompts: list[int]) -> RadixCache:
    pool = TokenPool(1000)
    cache = RadixCache(pool)
    for prompt in prompts:
        slots = pool.alloc(len(prompt))
        assert slots is not None
        cache.insert(np.array(prompt, np.int32), slots)
    return cache


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(st.tuples(PROMPTS, GAPS, st.booleans()), min_size=1, max_size=25),
    cached=st.lists(PROMPTS, max_size=5),
    max_wait_s=st.sampled_from([0.0, 0.5, 3.0, 1e9]),
)
def test_nobody_comes_after_a_req_that_arrived_more_than_max_wait_later(
    policy: str,
    arrivals: list[tuple[list[int], float, bool]],
    cached: list[list[int]],
    max_wait_s: float,
) -> None:
    """Those that were admitted before come first, in the order of their arrival."""
    now, reqs = 0.0, []
    for handle, (prompt, gap_s, is_resumed) in enumerate(arrivals):
        now += gap_s
        reqs.append(req(handle, prompt, now, is_resumed))
    queue = queue_of(reqs, policy, max_wait_s)
    order = queue.ordered(cache_with(*cached))
    assert sorted(r.handle for r in order) == list(range(len(reqs)))
    resumed = [r for r in reqs if r.residency > 0]
    assert order[: len(resumed)] == resumed
    for before, after in combinations(order[len(resumed) :], 2):
        assert before.arrival_s - after.arrival_s <= max_wait_s


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_a_batch_is_the_policys_as_a_whole_however_long_it_waits(policy: str) -> None:
    """No grid of time cuts it: all came within max_wait of the oldest."""
    reqs = [req(i, [1 + i % 2, 5, 5, 9 + i], 4.9 + 0.02 * i) for i in range(10)]
    order = queue_of(reqs, policy, 1.0).ordered(cache_with([2, 5, 5]))
    assert [r.handle for r in order] == [1, 3, 5, 7, 9, 0, 2, 4, 6, 8]


def test_the_bound_moves_as_the_oldest_is_admitted() -> None:
    """A better match that came too late for the oldest may go before the next one."""
    cache = cache_with([7, 7, 7])
    first, second, better = req(0, [1], 0.0), req(1, [2], 2.0), req(2, [7, 7, 7, 1], 4.0)
    queue = queue_of([first, second, better], "lpm", 3.0)
    assert queue.ordered(cache) == [first, second, better]
    queue.remove(first)
    assert queue.ordered(cache) == [better, second]


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(POLICIES),
    max_wait_s=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    pool=st.sampled_from([150, 400, 2000]),
)
def test_the_bound_holds_for_admissions_in_any_traffic(
    seed: int, policy: str, max_wait_s: float, pool: int
) -> None:
    """Also for those that stand aside while their prefix is being computed."""
    rng = random.Random(seed)
    prompts = [np.array([rng.randint(1, 2) for _ in range(rng.randint(1, 60))]) for _ in range(50)]
    for prompt in rng.sample(prompts, 20):
        prompt[: rng.randint(0, len(prompt))] = 1
    assert all(OUTPUT_TOKEN not in prompt for prompt in prompts)
    now, arrived_s = 0.0, []
    for _ in prompts:
        now += rng.choice([0.0, rng.expovariate(15.0)])
        arrived_s.append(now)
    setting = Setting(pool, policy, max_wait_s, outputs=5)
    assert simulate(prompts, arrived_s, setting).worst_overtaking_s <= max_wait_s


@pytest.mark.parametrize("lag", [0, 1])
def test_no_new_req_takes_the_memory_of_a_retracted_one(lag: int) -> None:
    driver = Driver(lag, max_total_tokens=80, check=False)
    rng, start = random.Random(1), driver.core._start_running

    def start_in_order(req: Req) -> None:
        waiting = list(driver.core.waiting)
        assert req.residency > 0 or all(other.residency == 0 for other in waiting)
        start(req)

    driver.core._start_running = start_in_order  # type: ignore[method-assign]
    for i in range(300):
        driver.add(str(i), [i, 1], max_new=rng.choice([1, 1, 1, 40]))
        driver.step()
    driver.run()
    assert driver.core.counters.retracted > 0
