"""With guesses, right or wrong, the core gives what it gives without them, and its books add up."""

import pytest

from tests.running.profiles import seeds
from tests.scheduler_proc.core.test_scheduler_random import drive

KINDS = ((0.0, 0.0), (1.0, 0.0), (0.3, 0.7))  # plain, with grammars, with rules


@pytest.mark.parametrize("seed", seeds(6))
def test_random_traffic_with_guesses(seed: int) -> None:
    """In a pool so small that the tree is evicted from, and mostly reqs are retracted. Eighteen
    seeds have all combinations."""
    constrained, wishing = KINDS[seed % 3]
    right = (0.0, 0.7, 1.0)[(seed + seed // 3) % 3]
    traffic = drive(seed, 250, seed % 2, "lpm", 150, constrained, wishing, right=right)
    counters = traffic.driver.core.state.counters
    drafted, accepted = counters.drafted_tokens["own"], counters.accepted_draft_tokens["own"]
    assert traffic.driver.core.state.memory.cache.evicted_total > 0
    if right == 0.0:  # a grammar allows next to nothing that is wrong
        assert accepted <= 0.03 * drafted and (drafted > 100 or constrained == 1.0)
    else:
        assert drafted > 100 and accepted > 0.3 * right * drafted


@pytest.mark.parametrize("seed", seeds(2))
def test_guesses_outlive_their_cores_and_failed_steps(seed: int) -> None:
    traffic = drive(seed, 150, seed % 2, "lpm", 220, 0.3, 0.4, losses=0.1, right=0.8)
    assert traffic.driver.num_resumed > 10


@pytest.mark.parametrize("seed", seeds(2))
def test_random_traffic_with_guesses_where_they_pay(seed: int) -> None:
    """As many as there is room for, which the costs of steps decide; beside losses, failed steps
    and requests on trial."""
    constrained, wishing = KINDS[seed % 3]
    target_s = (0.0, 0.05, 1.0)[seed // 2 % 3]
    right = (0.9, 0.5)[seed // 3 % 2]
    sizes = (61 + seed, 200, (seed + 1) % 2, "lpm", 300, constrained, wishing)
    traffic = drive(
        *sizes,
        losses=0.02,
        right=right,
        measuring=0.5,
        speculative="auto",
        step_target_s=target_s,
    )
    assert seed > 1 or traffic.driver.core.state.counters.drafted_tokens["own"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_traffic_with_guesses_for_long(seed: int) -> None:
    """With everything at once."""
    right = (0.3, 0.8, 1.0)[seed % 3]
    drive(seed, 1000, seed % 2, "lpm", 200, 0.4, 0.5, losses=0.01, right=right)
