"""Credits by themselves, on random traces: nobody starves, and weights divide what is charged."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.fairness.credits import (
    BURST,
    LEAST_WEIGHT,
    MOST_IDLE,
    MOST_LEVEL,
    MOST_WEIGHT,
    Credits,
)

QUANTUM = 100
MOST = 70  # tokens of one charge
WEIGHTS = st.lists(st.sampled_from([0.01, 0.5, 1.0, 4.0]), min_size=2, max_size=6)


def joined(weights: dict[str, float]) -> Credits:
    credits = Credits(QUANTUM)
    for caller, weight in weights.items():
        credits.join(caller, weight)
    return credits


@given(weights=WEIGHTS, seed=st.integers(0, 1000))
def test_whichever_able_caller_is_served_all_get_tokens_by_their_weights(
    weights: list[float], seed: int
) -> None:
    """All wait all the time, and a policy that favours one of them chooses among the able: what two
    callers were charged by weight differs by a quantum and one charge of each at most."""
    rng, callers = random.Random(seed), {f"c{i}": weight for i, weight in enumerate(weights)}
    credits, charged = joined(callers), Counter[str]()
    for _ in range(300):
        able = credits.able(callers)
        assert able
        served = min(able) if rng.random() < 0.9 else rng.choice(sorted(able))
        tokens = rng.randint(1, MOST)
        credits.charge(served, tokens)
        charged[served] += tokens
        by_weight = [charged[caller] / weight for caller, weight in callers.items()]
        bound = (2 * QUANTUM + MOST) / min(weights)
        assert max(by_weight) - min(by_weight) <= bound


def test_a_refill_gives_the_first_of_those_who_wait_a_quantum() -> None:
    credits = joined({"heavy": 4.0, "light": 1.0})
    credits.charge("heavy", 500)
    credits.charge("light", 500)
    assert credits.able(["heavy", "light"]) == {"heavy"}
    assert credits.left("heavy") == pytest.approx(QUANTUM)
    assert credits.left("light") == pytest.approx(-400 + (400 + QUANTUM) / 4)


def test_who_waits_alone_gets_one_token_so_that_the_next_to_come_is_before_it() -> None:
    credits = joined({"a": 1.0})
    credits.charge("a", 1000)
    assert credits.able(["a"]) == {"a"} and credits.left("a") == pytest.approx(1)
    credits.join("b", 1.0)
    credits.charge("a", 1)
    assert credits.able(["a", "b"]) == {"b"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5000)), max_size=50))
def test_credit_is_bounded_by_a_burst_and_debts_end_when_nobody_waits(
    charges: list[tuple[str, int]],
) -> None:
    credits = Credits(QUANTUM)
    accounts = {caller: credits.join(caller, 1.0) for caller in "abc"}
    for caller, tokens in charges:
        credits.charge(caller, tokens)
        credits.able("abc")
        accounts[caller].computed += tokens
        assert max(map(credits.left, "abc")) <= BURST * QUANTUM
    credits.settle()
    credits.forgive()
    assert min(map(credits.left, "abc")) >= 0.0


def test_who_has_a_prompt_to_compute_is_in_debt_for_it_though_nobody_waits() -> None:
    """Whoever comes meanwhile is before the rest of it."""
    credits = Credits(QUANTUM)
    account = credits.join("a", 1.0)
    credits.charge("a", 1000)
    account.computed += 300
    credits.settle()
    credits.forgive()
    assert credits.left("a") == -700


def test_a_new_weight_leaves_credit_and_debt_as_they_are() -> None:
    credits = joined({"a": 1.0})
    credits.charge("a", 350)
    left = credits.left("a")
    credits.join("a", 4.0)
    assert credits.left("a") == pytest.approx(left) and credits.weight("a") == 4.0


def test_callers_without_requests_are_remembered_up_to_a_bound() -> None:
    credits = joined({"debtor": 1.0})
    credits.charge("debtor", 10_000)
    credits.leave("debtor")
    for i in range(MOST_IDLE - 1):
        credits.join(str(i), 1.0)
        credits.leave(str(i))
    credits.join("debtor", 1.0)
    assert credits.left("debtor") < 0.0  # not by going away does one lose a debt
    for i in range(3 * MOST_IDLE):
        credits.join(str(i), 1.0)
        credits.leave(str(i))
    assert len(credits) == MOST_IDLE + 1


@given(
    charges=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10**12)), max_size=40),
    weights=st.tuples(*[st.sampled_from([LEAST_WEIGHT, 1.0, MOST_WEIGHT])] * 3),
)
def test_somebody_is_able_however_much_was_charged(
    charges: list[tuple[str, int]], weights: tuple[float, ...]
) -> None:
    """Else the scheduler would look for who is next for ever."""
    credits = joined(dict(zip("abc", weights, strict=True)))
    for number, (caller, tokens) in enumerate(charges):
        credits.charge(caller, tokens)
        assert credits.able("abc") and credits.able(caller) == {caller}
        if number % 3 == 0:
            credits.forgive()
        assert credits._level <= MOST_LEVEL


def test_what_all_have_left_is_the_same_after_their_level_begins_anew() -> None:
    credits = joined({"a": 1.0, "b": 1.0})
    credits.charge("a", int(MOST_LEVEL) + 1000)
    assert credits.able(["a", "b"]) == {"b"}
    credits.charge("b", int(MOST_LEVEL) + 50)
    assert credits.able(["a", "b"]) == {"b"} and credits._level == 0.0
    assert credits.left("b") - credits.left("a") == 950


def test_outputs_are_charged_when_they_are_settled() -> None:
    """Or when the last request of a caller ends."""
    credits = Credits(QUANTUM)
    accounts = [credits.join(caller, 1.0) for caller in "ab"]
    for account in accounts:
        account.fresh += 150
    credits.leave("a")
    credits.join("a", 1.0)
    assert credits.left("a") == -50 and credits.left("b") == QUANTUM
    credits.settle()
    credits.settle()
    assert credits.left("a") == credits.left("b") == -50
