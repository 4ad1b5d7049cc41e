"""Random traffic against the scheduler core, with the books checked after every step.

The model it is held against is a plain one: whatever the batching, caching, chunking, eviction
and retraction, each req yields `reference_output` of its own prompt, or ends by its abort.
"""

import random
from typing import NamedTuple

import pytest

from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar

POLICIES = ("lpm", "dfs-weight", "fcfs", "random")


class Asked(NamedTuple):
    """One req: its prompt, limits, stop ids and the length of its grammar (None: none)."""

    prompt: list[int]
    max_new: int
    stop: frozenset[int]
    min_new: int
    grammar_len: int | None

    @property
    def grammar(self) -> FakeGrammar | None:
        return None if self.grammar_len is None else FakeGrammar(self.grammar_len)

    @property
    def output(self) -> list[int]:
        grammar = self.grammar
        return reference_output(self.prompt, self.max_new, self.stop, self.min_new, grammar)


class Traffic:
    """Random arrivals and aborts over prompts that share prefixes of every length."""

    def __init__(self, seed: int, driver: Driver, constrained: float = 0.0) -> None:
        self.constrained = constrained  # the share of reqs with a grammar
        self.rng = random.Random(seed)
        self.driver = driver
        self.asked: dict[str, Asked] = {}
        self.aborted: set[str] = set()
        self.history: list[list[int]] = [[]]

    def arrive(self) -> None:
        rng, rid = self.rng, f"r{len(self.asked)}"
        prompt = list(rng.choice(self.history[-20:]))
        prompt = prompt[: rng.randint(0, len(prompt))]
        prompt += [rng.randint(0, 3) for _ in range(rng.randint(1, 30))]
        prompt = prompt[-100:]
        max_new = rng.choice([0, 1, 2, 5, 20, 40])
        stop = frozenset(rng.sample(range(1000), 100)) if rng.random() < 0.3 else frozenset()
        min_new = min(max_new, rng.randint(0, 3))
        constrained = rng.random() < self.constrained
        asked = Asked(prompt, max_new, stop, min_new, None)
        if constrained:
            asked = Asked(prompt, max_new, frozenset([EOS]), min_new, rng.randint(0, 25))
        self.asked[rid] = asked
        self.driver.add(
            rid,
            prompt,
            max_new,
            salt=rng.choice(["", "", "", "tenant"]),
            eos=asked.stop,
            min_new=min_new,
            grammar=asked.grammar,
            logprob_start=rng.choice([None, None, 0, rng.randint(0, len(prompt))]),
        )
        self.history.append(prompt + asked.output)

    def turn(self) -> None:
        if self.rng.random() < 0.35:
            for _ in range(self.rng.choice([1, 1, 2, 8])):
                self.arrive()
        if self.rng.random() < 0.02:
            self.abort_one()
        self.driver.step()

    def meddle(self) -> None:
        """Messages also come while a prepared step waits for the one before it."""
        if self.rng.random() < 0.02:
            self.abort_one()
        if self.rng.random() < 0.02:
            self.arrive()

    def abort_one(self) -> None:
        live = [rid for rid in self.asked if rid not in self.driver.finishes]
        if live:
            rid = self.rng.choice(live)
            self.driver.abort(rid)
            self.aborted.add(rid)

    def check(self) -> None:
        assert set(self.driver.finishes) == set(self.asked), "every req ends exactly once"
        for rid, asked in self.asked.items():
            expected = asked.output
            got = self.driver.outputs.get(rid, [])
            finish = self.driver.finishes[rid]
            if finish.type == "abort":
                assert rid in self.aborted or finish.error is not None
                assert got == expected[: len(got)]
                assert finish.error is None or finish.error.message == "made to fail"
            else:
                assert got == expected
                assert finish.type == ("stop" if got and got[-1] in asked.stop else "length")


def drive(
    seed: int,
    steps: int,
    lag: int,
    policy: str,
    pool: int,
    constrained: float = 0.0,
    **config: object,
) -> Driver:
    driver = Driver(
        lag=lag,
        max_total_tokens=pool,
        max_running_requests=12,
        chunked_prefill_size=24,
        schedule_policy=policy,
        max_wait_s=1.0,
        context_len=256,
        random_seed=seed,
        **config,
    )
    traffic = Traffic(seed, driver, constrained)
    driver.between = traffic.meddle
    driver.fails = lambda: traffic.rng.random() < 0.004
    for _ in range(steps):
        traffic.turn()
    driver.between = lambda: None
    driver.run()
    traffic.check()
    cached = driver.core.cache.evictable_size
    assert driver.core.pool.free_size + cached == pool, "slots leaked"
    return driver


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
def test_random_traffic_keeps_the_books_and_the_outputs(lag: int, policy: str) -> None:
    """1,250 steps each, 10,000 in all, in a pool so small that evictions and retractions occur."""
    driver = drive(seed=7 + lag, steps=1250, lag=lag, policy=policy, pool=220)
    assert driver.core.counters.retracted > 0 and driver.core.cache.evicted_total > 0


@pytest.mark.parametrize("lag", [0, 1])
def test_random_traffic_without_the_radix_cache(lag: int) -> None:
    driver = drive(seed=3, steps=600, lag=lag, policy="lpm", pool=400, disable_radix_cache=True)
    assert driver.core.counters.cached_tokens == 0


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("constrained", [0.5, 1.0])
def test_random_traffic_with_grammars(lag: int, constrained: float) -> None:
    driver = drive(11, 500, lag, "lpm", pool=150, constrained=constrained)
    assert driver.core.counters.retracted > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_traffic_long(seed: int) -> None:
    rng = random.Random(seed)
    constrained = rng.choice([0.0, 0.3, 1.0])
    pool = rng.choice([145, 300, 800])
    drive(seed, 3000, seed % 2, POLICIES[seed // 2 % 4], pool, constrained)
