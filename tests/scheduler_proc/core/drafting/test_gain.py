"""How many tokens to guess, and how often guesses were right."""

import random
from itertools import accumulate, product
from operator import mul

import pytest

from scheduler_proc.core.drafting.gain import (
    SHORTEST_WAIT,
    TRIAL_SHARE,
    Acceptance,
    Candidate,
    Pauses,
    lengths,
)
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import StepCosts
from tests.running.profiles import seeds

MEMORY_BOUND = StepCosts(base_s=0.0077, row_s=0.0003, token_s=0.0003, draft_s=0.0003)
COMPUTE_BOUND = StepCosts(base_s=0.001, row_s=0.003, token_s=0.003, draft_s=0.003)
REQ = 7


def steady(chance: float, most: int, least: int = 0) -> Candidate:
    """Each guess is as likely as the others, if those before it are right."""
    return Candidate([chance**k for k in range(1, most + 1)], least)


def rate_of(
    costs: StepCosts, served: int, rows: int, candidates: list[Candidate], drafted: list[int]
) -> float:
    """The expected tokens per second of these lengths, from their definition: one for each that is
    `served`, which waits for as long as the step takes."""
    tokens = served + sum(sum(c.reach[:k]) for c, k in zip(candidates, drafted, strict=True))
    seconds = costs.decode_s(rows) + sum(drafted) * costs.draft_s
    return tokens / (seconds + (costs.drafting_s if any(drafted) else 0.0))


def _falling(rng: random.Random) -> Candidate:
    chances = [rng.uniform(0.001, 0.999) for _ in range(rng.randint(1, 4))]
    return Candidate(list(accumulate(chances, mul)), int(rng.random() < 0.2))


@pytest.mark.parametrize("seed", seeds(20))
def test_no_other_lengths_are_expected_to_give_more(seed: int) -> None:
    rng = random.Random(seed)
    costs = StepCosts(
        rng.uniform(0, 10),
        rng.uniform(0.1, 4),
        1.0,
        rng.choice([0.0, rng.uniform(0, 1), rng.uniform(0, 5)]),
        rng.choice([0.0, rng.uniform(0, 3)]),
    )
    candidates = [_falling(rng) for _ in range(rng.randint(1, 4))]
    rows, waiting = len(candidates) + rng.randint(0, 3), rng.choice([0, 0, 1, 20])
    trials = sum(c.least for c in candidates)
    most = rng.choice([None, rng.randint(trials, trials + 6)])
    choices = product(*(range(c.least, len(c.reach) + 1) for c in candidates))
    fitting = [list(ks) for ks in choices if most is None or sum(ks) <= most]
    best = max(rate_of(costs, rows + waiting, rows, candidates, ks) for ks in fitting)
    chosen = lengths(costs, rows, candidates, waiting, most)
    assert chosen in fitting
    rate = rate_of(costs, rows + waiting, rows, candidates, chosen)
    assert rate == pytest.approx(best, rel=1e-9)


def test_of_trials_that_do_not_fit_some_are_made_and_nothing_else() -> None:
    candidates = [steady(0.9, 8), steady(0.01, 8, least=1), steady(0.02, 8, least=1)]
    assert lengths(MEMORY_BOUND, 3, candidates, most=2) == [0, 1, 1]
    assert lengths(MEMORY_BOUND, 3, candidates, most=1) == [0, 0, 1]
    assert lengths(MEMORY_BOUND, 3, candidates, most=0) == [0, 0, 0]


def test_where_there_is_little_room_the_likeliest_guesses_have_it() -> None:
    candidates = [steady(0.5, 8), steady(0.9, 8), steady(0.7, 8)]
    assert lengths(MEMORY_BOUND, 3, candidates, most=4) == [0, 3, 1]
    # Nothing at all if so few do not pay what drafting costs.
    costs = MEMORY_BOUND._replace(drafting_s=0.008)
    assert sum(lengths(costs, 3, candidates)) > 0
    assert lengths(costs, 3, candidates, most=1) == [0, 0, 0]


def test_a_guess_is_charged_what_it_costs_prompts_that_wait() -> None:
    """Each of them waits longer, as each row does."""
    sums = [sum(lengths(MEMORY_BOUND, 2, [steady(0.8, 8)] * 2, n)) for n in (0, 2, 8, 32, 1000)]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > sums[2] > sums[4] == 0


def test_what_waits_for_memory_drafts_long_and_what_computes_only_what_is_nearly_sure() -> None:
    candidates = [steady(p, 8) for p in (0.02, 0.5, 0.95)]
    assert lengths(MEMORY_BOUND, 3, candidates) == [0, 1, 8]
    assert lengths(COMPUTE_BOUND, 3, candidates) == [0, 0, 1]
    assert lengths(MEMORY_BOUND, 3, []) == []


def test_a_draft_that_may_not_come_costs_only_if_it_does() -> None:
    """But what drafting costs at all is paid in any case."""
    sure, unsure = steady(0.6, 8), steady(0.6, 8)._replace(chance=0.2)
    assert lengths(MEMORY_BOUND, 4, [sure]) == lengths(MEMORY_BOUND, 4, [unsure]) == [3]
    costs = MEMORY_BOUND._replace(drafting_s=0.001)
    assert lengths(costs, 4, [sure]) == [3]
    assert lengths(costs, 4, [unsure]) == [0]
    assert min(lengths(costs, 4, [unsure] * 4)) > 0


def test_one_token_later_the_rest_of_a_draft_is_left_if_the_first_was_right() -> None:
    later = Candidate([0.8, 0.4, 0.3], 1).after_one()
    assert later.reach == pytest.approx([0.5, 0.375])
    assert (later.chance, later.least) == (0.8, 1)
    assert Candidate([0.8]).after_one() == Candidate([0.8], 0, 0.8)


def test_what_drafting_costs_at_all_is_paid_once() -> None:
    costs = MEMORY_BOUND._replace(drafting_s=0.001)
    candidate = steady(0.5, 8)
    assert lengths(costs, 8, [candidate]) == [0]
    assert all(lengths(costs, 8, [candidate] * 8))


def test_chances_are_learned_within_few_trials() -> None:
    acceptance = Acceptance()
    assert acceptance.chance(REQ, "own", 3) == 0.5
    for step in range(4):
        acceptance.verified(REQ, "own", 3, 2, 0, step)
        acceptance.verified(REQ, "tree", 3, 2, 2, step)
    assert acceptance.chance(REQ, "own", 3) < 0.2
    assert acceptance.chance(REQ, "tree", 3) > 0.8
    for step in range(1000):
        acceptance.verified(REQ, "own", 3, 1, step % 5 > 0, step)
    assert acceptance.chance(REQ, "own", 3) == pytest.approx(0.8, abs=0.05)


def test_a_match_that_goes_on_counts_as_the_longer_one_that_it_is() -> None:
    acceptance = Acceptance()
    for step in range(1000):
        acceptance.verified(REQ, "own", 3, 12, 12 * (step % 2), step)
    assert acceptance.chance(REQ, "own", 3) == pytest.approx(0.5, abs=0.05)
    assert all(acceptance.chance(REQ, "own", length) > 0.95 for length in range(4, 15))
    assert acceptance.reach(REQ, "own", 3, 12) == pytest.approx([0.5] * 12, abs=0.1)
    assert acceptance.reach(REQ, "own", 3, 12) == sorted(
        acceptance.reach(REQ, "own", 3, 12), reverse=True
    )


def test_a_fresh_req_is_expected_to_do_as_others_did_with_matches_of_that_length() -> None:
    acceptance = Acceptance()
    for step in range(100):
        acceptance.verified(REQ, "own", 2, 1, step % 10 == 0, step)
        acceptance.verified(REQ, "own", 6, 1, step % 10 > 0, step)
    fresh = REQ + 1
    assert acceptance.chance(fresh, "own", 2) == pytest.approx(0.1, abs=0.05)
    assert acceptance.chance(fresh, "own", 6) == pytest.approx(0.9, abs=0.05)
    # What was never seen is as what is a little shorter, or unknown.
    assert 0.5 < acceptance.chance(fresh, "own", 7) < acceptance.chance(fresh, "own", 6)
    assert acceptance.chance(fresh, "own", 5) == pytest.approx(0.45, abs=0.05)
    assert acceptance.chance(fresh, "own", 33) == acceptance.chance(fresh, "own", 1 << 20)


def test_a_match_that_has_grown_long_is_expected_to_go_on() -> None:
    acceptance = Acceptance()
    chances = [acceptance.chance(REQ, "tree", length) for length in (8, 9, 17, 33)]
    assert chances == sorted(set(chances)) and chances[0] == 0.5 and chances[-1] > 0.8
    for step in range(10):
        acceptance.verified(REQ, "tree", 40, 1, 0, step)
    assert acceptance.chance(REQ, "tree", 40) < 0.2


def test_a_req_that_differs_from_the_others_is_known_by_it() -> None:
    acceptance = Acceptance()
    for step in range(200):
        for handle in range(8):
            acceptance.verified(handle, "own", 3, 1, handle < 4, step)
            acceptance.verified(handle, "own", 5, 1, handle < 4 or step % 2, step)
    good, bad, fresh = (acceptance.chance(handle, "own", 3) for handle in (0, 7, 8))
    assert bad < 0.25 < 0.4 < fresh < 0.6 < 0.75 < good
    acceptance.ended(0)
    assert acceptance.chance(0, "own", 3) == fresh


def test_a_req_alone_is_not_counted_twice() -> None:
    acceptance = Acceptance()
    for step in range(30):
        acceptance.verified(REQ, "own", 3, 1, step % 5 > 0, step)
    of_all = acceptance.chance(REQ + 1, "own", 3)
    assert acceptance.chance(REQ, "own", 3) == pytest.approx(of_all, abs=0.03)


def trials(costs: StepCosts, rows: int, reqs: int, steps: int) -> list[list[int]]:
    """The handles that are tried at each step, of reqs whose guesses are never right."""
    acceptance = Acceptance()
    tried = []
    for step in range(steps):
        due = [
            handle
            for handle in range(reqs)
            if acceptance.is_due(
                costs, rows, handle, Candidate(acceptance.reach(handle, "own", 3, 8)), step
            )
        ]
        for handle in due:
            acceptance.verified(handle, "own", 3, 1, 0, step)
        tried.append(due)
    return tried


def test_trials_cost_a_bounded_share() -> None:
    tried = sum(map(len, trials(COMPUTE_BOUND, 1, 1, 4000)))
    cost = COMPUTE_BOUND.draft_s / COMPUTE_BOUND.decode_s(1)
    assert 0.5 < tried * cost / 4000 / TRIAL_SHARE <= 1.5  # the first ones are hopeful
    assert sum(map(len, trials(MEMORY_BOUND, 1, 1, 800))) == pytest.approx(
        800 / SHORTEST_WAIT, abs=2
    )


def test_reqs_are_tried_in_the_same_steps_where_drafting_costs_at_all() -> None:
    costs = MEMORY_BOUND._replace(drafting_s=0.004)
    tried = [due for due in trials(costs, 16, 16, 2000) if due]
    cost = costs.drafting_s / costs.decode_s(16)
    assert 0.5 < len(tried) * cost / 2000 / TRIAL_SHARE <= 1.1
    assert sum(map(len, tried)) > 15 * len(tried)


def test_a_req_that_had_no_guess_when_it_was_to_draft_has_been_tried() -> None:
    acceptance, candidate = Acceptance(), steady(0.01, 8)
    assert acceptance.is_due(MEMORY_BOUND, 1, REQ, candidate, 100)
    acceptance.has_none(REQ, 100)
    for handle in (REQ, REQ + 1):  # one that comes now is not what tells more
        assert not acceptance.is_due(MEMORY_BOUND, 1, handle, candidate, 101)
        assert acceptance.is_due(MEMORY_BOUND, 1, handle, candidate, 120)


def test_short_reqs_are_tried_though_their_prompts_steps_guess() -> None:
    """Where one cold step has made guesses look dear: the wait is longer than a req."""
    costs = MEMORY_BOUND._replace(draft_s=3 * MEMORY_BOUND.decode_s(1))
    acceptance, step, tried = Acceptance(), 0, 0
    for handle in range(40):
        acceptance.verified(handle, "own", 3, 2, 2, None)
        for _ in range(50):
            step += 1
            candidate = Candidate(acceptance.reach(handle, "own", 3, 8))
            if acceptance.is_due(costs, 1, handle, candidate, step):
                acceptance.verified(handle, "own", 3, 1, 1, step)
                tried += 1
        acceptance.ended(handle)
    assert 2 <= tried <= 8


def test_a_core_that_always_drafts_pauses_now_and_then() -> None:
    pauses, paused = Pauses(), []
    for step in range(1000):
        if pauses.is_due(1):
            paused.append(step)
        pauses.ran(StepSize(1, 0, 0 if pauses.is_due(1) else 8))
        pauses.ran(StepSize(0, 100, 0))  # says nothing of decodes
    assert paused[:4] == [0, 5, 22, 87]
    assert 8 <= len(paused) <= 11
    for _ in range(1000):  # where others happen anyway none is needed
        pauses.ran(StepSize(1, 0, 0))
        pauses.ran(StepSize(1, 0, 8))
        assert not pauses.is_due(1)


def test_batches_of_each_size_pause() -> None:
    """Steps with prompts neither count as pauses nor need one."""
    pauses = Pauses()
    pauses.ran(StepSize(16, 100, 0))
    assert pauses.is_due(16)
    pauses.ran(StepSize(17, 0, 0))
    assert not pauses.is_due(16)
    assert not pauses.is_due(31)
    assert pauses.is_due(15)
    for _ in range(4):
        pauses.ran(StepSize(16, 100, 8))
        assert not pauses.is_due(16)
        pauses.ran(StepSize(16, 0, 8))
    assert pauses.is_due(16)


def test_a_source_that_was_wrong_at_first_is_tried_again() -> None:
    """Where another one is wrong, too, but less: what nobody tries any more is forgotten."""
    acceptance = Acceptance()
    for step in range(24):
        acceptance.verified(step // 3, "tree", 200, 8, 0, step)
    before = acceptance.chance(-1, "tree", 200)
    assert before < acceptance.chance(-1, "own", 3)
    for step in range(24, 2000):
        acceptance.verified(step // 10, "own", 3, 8, step % 4 == 0, step)
    assert acceptance.chance(-1, "tree", 200) > max(before, acceptance.chance(-1, "own", 3))
