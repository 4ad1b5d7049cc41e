"""`bench.routing` in a short form: the router's bars with four replicas, and what they cost."""

import pytest

from bench.routing.__main__ import main
from bench.routing.cost import costs
from bench.routing.fleet import Fleet, Setting
from bench.routing.mixed import BY_HAND, HINTED, MIXED_BAR, MIXES, Mix
from bench.routing.runs import POLICY, SHARING, rows
from bench.routing.shapes import SHAPES, Words, source_of

POOL = 131_072


# The bars are not met with fewer requests. "tree" and "multiturn" have the most of them.
MARKS = dict.fromkeys(("groups", "zipf", "fewshot"), pytest.mark.full)
MARKS |= dict.fromkeys(("tree", "multiturn"), pytest.mark.slow)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, ())) for name in SHARING]
)
def test_the_default_policy_meets_its_bars(name: str) -> None:
    (row,) = (r for r in rows([name], [4], [0.0], POOL, 4.0, seed=0) if r.policy == POLICY)
    assert row.missed == []


@pytest.mark.full
@pytest.mark.parametrize("delay_s", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize("scale", [2.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_it_is_not_much_slower_than_the_best_other_with_eight(scale: float, delay_s: float) -> None:
    found = list(rows(["fewshot", "zipf"], [8], [delay_s], POOL, scale, seed=1))
    assert len(found) == 8 and not any(row.missed for row in found)


def test_one_replica_computes_what_the_costs_say() -> None:
    """The requests of one stream follow one another."""
    setting = Setting(1, "round-robin", POOL)
    workload = SHAPES["single"](source_of(0), 0.5)
    outcome = Fleet(workload, setting).run()
    words, cost = Words(), setting.cost
    tokens = sum(len(words.ids(root.text)) for root in workload.roots) - outcome.cached
    decodes = sum(root.out_tokens - 1 for root in workload.roots)
    steps = decodes + len(workload.roots)
    expected = steps * cost.step_s + decodes * cost.row_s + tokens * cost.token_s
    assert outcome.seconds == pytest.approx(expected, rel=0.02)
    assert outcome.busy_s == [pytest.approx(outcome.seconds)]


def test_a_late_router_still_ends_all_requests() -> None:
    outcome = Fleet(SHAPES["tree"](source_of(0), 0.25), Setting(3, POLICY, POOL, 5.0)).run()
    assert outcome.busiest < 3.0 and outcome.cached > 0


@pytest.mark.parametrize(
    ("mix", "until_s"),
    [(Mix(2, 1), 6.0), *(pytest.param(mix, 60.0, marks=pytest.mark.slow) for mix in MIXES)],
)
def test_chats_and_map_reduces_are_placed_as_well_as_by_hand(mix: Mix, until_s: float) -> None:
    found = mix.times(until_s=until_s)
    assert max(found[HINTED].over(found[BY_HAND])) <= MIXED_BAR


@pytest.mark.full
def test_a_slower_replica_gets_less_of_a_run() -> None:
    """Four times as slow, it should have a fifth of the work; with means for both, it is 0.95."""
    one, both = (
        Fleet(SHAPES["batch"](source_of(0), 2.0), setting).run().seconds
        for setting in (Setting(1, POLICY, POOL), Setting(2, POLICY, POOL, slower=4.0))
    )
    assert both < 0.9 * one


@pytest.mark.full
def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workloads", "groups", "--scale", "0.5", "--replicas", "2", "3", "--delay", "0.5"]
    assert main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| groups") for line in lines) == 8


def test_costs_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert [cost.us > 0 for cost in costs()] == [True] * 4
    main(["--cost"])
    assert "place it among 1,000 replicas" in capsys.readouterr().out
