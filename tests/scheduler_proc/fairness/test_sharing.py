"""Callers that share a core, in virtual time: what one may take from another."""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from bench.hit_rate.simulator import StepCost
from scheduler_proc.core.queueing.queue_order import POLICIES
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.fairness.credits import Account, Credits
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fairness.simulated import (
    VOCAB,
    Asked,
    Shared,
    poisson,
    unique,
)

CAPACITY = 7.0  # reqs of 128 and 16 tokens a second, with the default costs
# As measured on two cores with AVX-512: 29 reqs of 100 and 16 tokens a second, by 0.08 s in a step.
MEASURED = StepCost(0.0045, 0.0005, 0.00024)
CHEAP = StepCost(0.02, 0.0005, 0.0001)  # prompts cost so little that rows are what is scarce


def config(pool: int = 60_000, **more: Any) -> SchedulerConfig:
    return SchedulerConfig(max_total_tokens=pool, context_len=8192, vocab_size=VOCAB, **more)


def percentile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def below_its_share(until_s: float) -> list[Asked]:
    return poisson("below", "B", 0.3 * CAPACITY, until_s, unique(128))


@pytest.mark.parametrize(
    ("load", "length"),
    [(3, 128), (10, 512), *(pytest.param(n, 128, marks=pytest.mark.full) for n in (1, 10, 100))],
)
def test_a_flood_delays_others_by_a_step_and_costs_no_throughput(load: int, length: int) -> None:
    """Without turns the second caller would wait for the whole queue of the first."""
    until_s = 40.0 if load < 100 else 20.0
    flood = poisson("flood", "A", load * CAPACITY * 128 / length, until_s, unique(length))
    others = below_its_share(until_s - 5.0)
    alone = Shared(config()).run(others)
    first = Shared(config()).run(flood, until_s)
    both = Shared(config()).run(flood + others, until_s)
    assert both.answered("B") == 1.0
    bound_s = 2 * percentile(alone.ttfts_s("B"), 0.99) + both.longest_step_s
    assert percentile(both.ttfts_s("B"), 0.99) <= bound_s
    assert both.tokens.total() >= 0.97 * first.tokens.total()


def test_first_tokens_beside_a_flood_take_twice_what_they_take_alone_and_a_step() -> None:
    """Steps are long: what comes is in the next one, however late, and that has less of others."""
    flood = poisson("flood", "A", 60.0, 20.0, unique(100))
    others = poisson("below", "B", 9.0, 18.0, unique(100))
    alone = Shared(config(), MEASURED).run(others)
    first = Shared(config(), MEASURED).run(flood, 20.0)
    both = Shared(config(), MEASURED).run(flood + others, 20.0)
    bound_s = 2 * percentile(alone.ttfts_s("B"), 0.99) + both.mean_step_s
    assert percentile(both.ttfts_s("B"), 0.99) <= 0.85 * bound_s
    assert percentile(both.ttfts_s("B"), 0.5) <= 1.65 * first.mean_step_s
    assert both.tokens.total() >= 0.97 * first.tokens.total()


@pytest.mark.parametrize("cost", [StepCost(), CHEAP])
def test_rows_with_long_outputs_give_way_after_the_bound(cost: StepCost) -> None:
    """All rows are one caller's, for a thousand tokens each."""
    bound_s, until_s = 0.5, 25.0
    flood = [Asked(0.0, "A", prompt, 1000) for prompt in map(unique(64), [random.Random(1)] * 70)]
    others = [one._replace(at_s=one.at_s + 12.0) for one in below_its_share(10.0)]
    shared = Shared(config(fair_wait_s=bound_s), cost)
    both = shared.run(flood + others, until_s)
    assert both.answered("B") == 1.0 and both.retracted > 0
    full_s = cost.step_s + 64 * cost.row_s
    assert both.ttfts_s("B")[-1] <= bound_s + 10 * 3.6 * full_s  # its prompt takes some steps too


@pytest.mark.parametrize(("asked", "planned"), [([7], 50), ([7, 8], 50), ([7, 7], 60), ([], 60)])
def test_a_step_with_all_of_others_prompts_is_shorter(asked: list[int], planned: int) -> None:
    """It has room for 60 prompt tokens. The second of two equal prompts waits for the first, so
    these are not all."""
    driver = Driver(max_total_tokens=1000, chunked_prefill_size=60)
    for number in range(10):
        driver.add(f"a{number}", range(100 * number, 100 * number + 20), caller="A")
    driver.step()
    for number, first in enumerate(asked):
        driver.add(f"b{number}", [first, *range(1, 10)], caller="B")
    plan = driver.core.prepare(driver.now)
    assert plan is not None and plan.num_tokens == planned


def test_a_row_is_free_a_step_after_the_bound() -> None:
    """The first look after it is that of the step after the one in which it passes."""
    bound_s, rng = 0.5, random.Random(8)
    flood = [Asked(0.0, "A", unique(64)(rng), 1000) for _ in range(70)]
    others = [Asked(12.0 + 1.37 * i, "B", unique(100)(rng), 4) for i in range(12)]
    both = Shared(config(fair_wait_s=bound_s), MEASURED).run(flood + others, 30.0)
    full_s = MEASURED.step_s + 64 * MEASURED.row_s
    own_s = full_s + 100 * MEASURED.token_s
    assert both.answered("B") == 1.0
    assert bound_s < both.ttfts_s("B")[-1] <= bound_s + 1.5 * full_s + own_s


def test_memory_with_long_outputs_gives_way_too() -> None:
    """There are rows enough, and the pool is full of one caller's."""
    bound_s, until_s = 0.5, 40.0
    flood = [Asked(0.0, "A", prompt, 1000) for prompt in map(unique(64), [random.Random(1)] * 70)]
    flood += poisson("more", "A", 200.0, until_s, unique(64), outputs=1000)  # at each step
    others = poisson("below", "B", 0.3, 20.0, unique(100), outputs=8)
    others = [one._replace(at_s=one.at_s + 15.0) for one in others]
    settings = config(3000, fair_wait_s=bound_s)
    waits_s = []
    for has_callers in (True, False):
        shared = Shared(settings, CHEAP, has_callers=has_callers)
        both = shared.run(flood + others, until_s)
        assert max(map(len, shared.waiting.values())) > 0
        waits_s.append([one.ttft_s if one.first_s else until_s for one in both.of("B")])
    assert max(waits_s[0]) <= bound_s + 1.0 < max(waits_s[1])


@pytest.mark.parametrize("pool", [30_000, 8_000])
def test_callers_with_equal_shares_do_not_take_rows_from_each_other_in_turn(pool: int) -> None:
    """Each wants more rows, or more memory, than its share, for as long as the other does."""
    rng = random.Random(2)
    asked = [Asked(0.0, caller, unique(64)(rng), 300) for caller in "AB" for _ in range(60)]
    both, plain = (
        Shared(config(pool), CHEAP, has_callers=has_callers).run(asked, 25.0)
        for has_callers in (True, False)
    )
    assert both.tokens.total() >= 0.97 * plain.tokens.total()
    assert both.retracted <= plain.retracted + len(asked)
    assert both.tokens["A"] == pytest.approx(both.tokens["B"], rel=0.05)


def test_two_prompts_that_fill_the_pool_each_do_not_evict_each_other_for_ever() -> None:
    """Each takes much longer than the bound after which it may have to give way."""
    rng = random.Random(3)
    asked = [Asked(0.1 * i, who, unique(3000)(rng), 30) for i, who in enumerate("ABC")]
    outcome = Shared(config(3100, fair_wait_s=0.05), check=True).run(asked, 200.0)
    assert [outcome.answered(who) for who in "ABC"] == [1.0, 1.0, 1.0]


def test_who_waits_for_a_prefix_holds_up_nobody_else() -> None:
    """C computes a long prompt, for whose prefix A's reqs wait, more than one look passes over and
    for longer than a later one may overtake; B's has nothing to do with that."""
    rng = random.Random(4)
    prefix = unique(8000)(rng)
    asked = [Asked(0.0, "C", prefix, 1)]
    asked += [
        Asked(0.1, "A", np.concatenate((prefix[:7000], unique(5)(rng))), 1) for _ in range(200)
    ]
    asked.append(Asked(1.5, "B", unique(20)(rng), 1))
    slow = StepCost(0.02, 0.0005, 0.002)
    outcome = Shared(config(max_wait_s=0.5), slow).run(asked)
    (own,) = outcome.of("B")
    assert own.ttft_s <= 3 * outcome.longest_step_s
    assert own.first_s is not None
    assert all(one.first_s is None or one.first_s > own.first_s for one in outcome.of("A"))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_queue_has_the_same_order_whatever_the_hashes_of_names(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded runs are replayed exactly, by another process."""

    def ordered(is_reversed: bool) -> list[int]:
        class Names(set[str]):
            def __iter__(self) -> Iterator[str]:
                return iter(sorted(super().__iter__(), reverse=is_reversed))

        def able_names(credits: Credits, callers: Collection[str]) -> set[str]:
            return Names(able(credits, callers))

        shared = Shared(config(schedule_policy=policy, max_wait_s=0.01))
        rng = random.Random(6)
        for number in range(40):
            shared._add(str(number), Asked(0.02 * number, f"c{number % 4}", unique(9)(rng)))
        with monkeypatch.context() as patch:
            patch.setattr(Credits, "able", able_names)
            return [req.handle for req in shared.core.state.waiting.ordered()]

    able = Credits.able
    assert ordered(is_reversed=False) == ordered(is_reversed=True)


@pytest.mark.parametrize("weight", [1.0, 4.0])
@pytest.mark.parametrize("outputs", [pytest.param((16, 16), marks=pytest.mark.full), (4, 200)])
def test_weights_divide_what_is_computed(weight: float, outputs: tuple[int, int]) -> None:
    """Both ask for more than there is; the number of reqs does not count, nor their lengths."""
    rate, until_s = 2 * CAPACITY, 60.0
    asked = poisson("light", "A", rate, until_s, unique(100), outputs[0])
    asked += poisson("heavy", "B", rate, until_s, unique(100), outputs[1], weight)
    tokens = Shared(config(max_running_requests=16)).run(asked, until_s).tokens
    assert tokens["B"] / tokens["A"] == pytest.approx(weight, rel=0.1)


def test_many_callers_with_a_common_prefix_share_it_as_one_would() -> None:
    rng = random.Random(0)
    prefix = unique(1000)(rng)

    def prompt(rng: random.Random) -> np.ndarray:
        return np.concatenate((prefix, unique(60)(rng)))

    asked = [one for i in range(64) for one in poisson("x", f"c{i}", 0.15, 20.0, prompt)]
    both = [
        Shared(config(8000), has_callers=has_callers).run(asked) for has_callers in (True, False)
    ]
    shares = [sum(one.cached for one in outcome.served) for outcome in both]
    assert shares[0] >= 0.98 * shares[1] > 0


def test_a_flood_of_unique_prompts_evicts_its_own() -> None:
    """The second caller's texts fit into its share of the pool, or nearly so."""
    rng, pool, until_s = random.Random(1), 9000, 80.0
    texts = [unique(400)(rng) for _ in range(14)]

    def prompt(rng: random.Random) -> np.ndarray:
        text = texts[min(int(rng.expovariate(0.25)), len(texts) - 1)]
        return np.concatenate((text, unique(20)(rng)))

    texts_of_b = poisson("texts", "B", 0.6, until_s, prompt)
    flood = poisson("flood", "A", 5.0, until_s, unique(250))
    alone = Shared(config(pool // 2)).run(texts_of_b, until_s).hit_rate("B")
    beside = Shared(config(pool)).run(texts_of_b + flood, until_s).hit_rate("B")
    without = Shared(config(pool), has_callers=False).run(texts_of_b + flood, until_s).hit_rate("B")
    assert beside >= 0.9 * alone > without  # which is what all that is for


@pytest.mark.parametrize("policy", POLICIES)
def test_one_caller_alone_is_served_as_if_there_was_no_credit(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same admissions at the same times, step by step, in a pool that is too small."""
    rng = random.Random(policy)
    texts = [unique(rng.randint(50, 600))(rng) for _ in range(5)]

    def prompt(rng: random.Random) -> np.ndarray:
        text = rng.choice(texts)
        return np.concatenate((text[: rng.randint(1, len(text))], unique(rng.randint(1, 90))(rng)))

    asked = poisson("one", "A", 12.0, 6.0, prompt, outputs=60)
    runs = []
    for left in (Credits.left, lambda credits, caller: 1.0):
        monkeypatch.setattr(Credits, "left", left)
        shared = Shared(
            config(1300, schedule_policy=policy, max_wait_s=3.0, max_running_requests=24)
        )
        outcome = shared.run(asked)
        assert outcome.retracted > 0
        runs.append((shared.admitted, shared.first, shared.ended, outcome.seconds))
    assert runs[0] == runs[1]


def test_credit_is_not_charged_twice_for_what_is_computed_again() -> None:
    """Two callers whose reqs are retracted as often as it takes: in the end both have used what the
    executor would have computed without that."""
    asked = poisson("twice", "A", 8.0, 4.0, unique(60), outputs=60)
    asked += poisson("twice", "B", 8.0, 4.0, unique(60), outputs=60)
    shared = Shared(config(700, max_running_requests=12), check=True)
    charged = Counter[str]()
    credits = shared.core.state.waiting.credits
    use = credits._use

    def counted(account: Account, tokens: int) -> None:
        (caller,) = (name for name in credits._accounts if credits._accounts[name] is account)
        charged[caller] += tokens
        use(account, tokens)

    credits._use = counted  # type: ignore[method-assign]
    outcome = shared.run(asked)
    assert outcome.retracted > 0
    assert charged == {caller: 120 * len(outcome.of(caller)) for caller in "AB"}
    assert all(one.ended_s is not None for one in outcome.served)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1e-4, 1e4, float("inf"), float("nan")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    """And harms nobody else."""
    prompt = np.arange(9, dtype=np.int32)
    shared = Shared(config(), check=True)
    shared._add("bad", Asked(0.0, "A", prompt, weight=weight))
    batch = shared.core.take_output(0.0)
    assert batch is not None
    (end,) = batch.ends
    assert end.finish.error is not None and "weight" in end.finish.error.message
    assert shared.run([Asked(0.1, "A", prompt)]).answered("A") == 1.0
