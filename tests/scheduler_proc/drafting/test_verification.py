"""With guesses, right or wrong, the core gives what it gives without them, and its books add up."""

import pytest

from tests.scheduler_proc.test_scheduler_random import drive

KINDS = {"plain": (0.0, 0.0), "grammars": (1.0, 0.0), "rules": (0.3, 0.7)}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_random_traffic_with_guesses(kind: str, right: float, lag: int) -> None:
    """In a pool so small that the tree is evicted from, and mostly reqs are retracted."""
    constrained, wishing = KINDS[kind]
    traffic = drive(53, 250, lag, "lpm", 150, constrained, wishing, right=right)
    counters = traffic.driver.core.counters
    drafted, accepted = counters.drafted_tokens["own"], counters.accepted_draft_tokens["own"]
    assert traffic.driver.core.cache.evicted_total > 0
    if right == 0.0:  # a grammar allows next to nothing that is wrong
        assert accepted <= 0.03 * drafted and (drafted > 100 or constrained == 1.0)
    else:
        assert drafted > 100 and accepted > 0.3 * right * drafted


@pytest.mark.parametrize("lag", [0, 1])
def test_guesses_outlive_their_cores_and_failed_steps(lag: int) -> None:
    traffic = drive(61, 150, lag, "lpm", 220, 0.3, 0.4, losses=0.1, right=0.8)
    assert traffic.driver.num_resumed > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("right", [0.3, 0.8, 1.0])
def test_random_traffic_with_guesses_for_long(right: float, seed: int) -> None:
    """10,000 steps and more in all, with everything at once."""
    drive(seed, 1000, seed % 2, "lpm", 200, 0.4, 0.5, losses=0.01, right=right)
