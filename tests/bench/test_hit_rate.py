"""`bench.hit_rate` in a short form: the promised hit rates, with the server's default options."""

import numpy as np
import pytest

from bench.hit_rate.__main__ import main
from bench.hit_rate.families import FAMILIES
from bench.hit_rate.offline import PromptTree, belady_reuse
from bench.hit_rate.runs import BATCH_TARGET, cases, online_rows
from bench.hit_rate.simulator import Setting, simulate

SCALE = 0.15


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_reuses_nearly_all_that_can_be(family: str) -> None:
    for case in cases([family], SCALE, seed=0):
        assert case.batch(case.setting).reused >= BATCH_TARGET * case.optimum


def test_requests_that_come_in_time_reuse_as_much_as_without_a_bound() -> None:
    case = next(cases(["wide"], SCALE, seed=0))
    assert all(row.is_good for row in online_rows(case, seed=0, policies=["lpm"]))


def test_belady_keeps_what_is_needed_soonest() -> None:
    prompts = [np.array(tokens, np.int32) for tokens in ([1, 2], [3, 4], [5, 6])]
    tree = PromptTree([*prompts, *prompts])
    events = [0, ~0, 1, ~1, 2, ~2, 3, ~3, 4, ~4]
    assert (tree.total, tree.distinct) == (12, 6)
    assert belady_reuse(tree, events, 4, 0) == 2  # evicting the least recently used would give 0
    assert belady_reuse(tree, events, 6, 0) == 4


def test_the_simulated_clock_counts_steps_and_waits() -> None:
    """One prompt alone, then one that waits for the memory of the first."""
    prompts = [np.arange(1 + i, 101 + i, dtype=np.int32) for i in (0, 200)]
    setting = Setting(pool=120, outputs=2)
    outcome = simulate(prompts, [0.0, 0.01], setting)
    cost = setting.cost
    one_s = cost.step_s + 100 * cost.token_s + cost.step_s + cost.row_s
    assert outcome.seconds == pytest.approx(2 * one_s, abs=2 * cost.step_s)
    assert outcome.order == [0, 1] and outcome.reused == 0
    assert outcome.waits_s[1] == pytest.approx(one_s, abs=0.02)


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--families", "wide", "--scale", "0.05", "--max-wait", "5", "60"]
    assert main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| wide | 25 % | 1.5 | app | 60 |") for line in lines) == 1
