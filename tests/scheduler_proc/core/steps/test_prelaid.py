"""A step that was laid out before the newest tokens of some rows were known is the same as one
that is laid out afterwards."""

import random
from typing import Any

import pytest

from scheduler_proc.core.steps.batch_concat import joined
from scheduler_proc.core.steps.batch_layout import lay_out
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.prelaid import Guess
from scheduler_proc.core.steps.step import Row, Step
from srt.wire.filled_params import FilledParams
from tests.running.profiles import seeds
from tests.scheduler_proc.byte_language import grammar_of, retokeniser
from tests.scheduler_proc.core.steps.test_batch_concat import assert_same
from tests.scheduler_proc.core.test_scheduler_random import Wishes
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar


class Checked:
    """Counts guesses, and compares each one that comes true with a step laid out afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.true = self.ended = self.false = 0
        self._plan: Plan | None = None
        completed, seal = Guess.completed, Plan.seal

        def check(guess: Guess, rows: list[Row]) -> Step | None:
            assert self._plan is not None
            others = guess._step.batch.adjust
            step, rows = completed(guess, rows), list(rows)
            assert guess._step.batch.adjust is others, "all changes are copied while the step waits"
            self.false += step is None
            if step is not None and len(rows) < len(self._plan.deferred):
                self.ended += 1
            elif step is not None:
                self.true += 1
                self._compare(step, rows)
            return step

        def noted(plan: Plan) -> Step:
            self._plan = plan
            return seal(plan)

        monkeypatch.setattr(Guess, "completed", check)
        monkeypatch.setattr(Plan, "seal", noted)

    def _compare(self, step: Step, rows: list[Row]) -> None:
        plan: Any = self._plan
        samples = [row.sample for row in rows]
        expected = lay_out(rows, plan.table, plan.sampling)
        expected = expected if plan.ahead is None else joined(plan.ahead, expected)
        assert_same(step.batch, expected.batch)
        assert [row.sample for row in rows] == samples
        assert list(step.late_tokens.at) == list(expected.late_tokens.at)


@pytest.mark.parametrize("seed", seeds(1))
def test_a_guess_that_comes_true_is_the_step(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    driver = Driver(lag=1, max_total_tokens=2000, chunked_prefill_size=40)
    guesses = Checked(monkeypatch)
    for i in range(12):
        prompt = [rng.randint(0, 3) for _ in range(rng.randint(1, 40))]
        wishes = Wishes.drawn(rng) if rng.random() < 0.6 else Wishes()
        grammar = FakeGrammar(9) if rng.random() < 0.3 else None
        driver.add(str(i), prompt, 8, eos=[EOS], min_new=i % 3, grammar=grammar, **wishes._asdict())
    driver.run()
    assert guesses.true > 4


def test_a_step_may_start_before_its_tokens_are_committed() -> None:
    """Also where penalties count them."""
    penalised = FilledParams(frequency_penalty=0.5)
    outputs, early = [], []
    for lag in (0, 1):
        driver = Driver(lag=lag, max_total_tokens=2000)
        for i in range(6):
            sampling = penalised if i % 2 else FilledParams()
            driver.add(str(i), [i, 1], 12, eos=[EOS], grammar=FakeGrammar(9), sampling=sampling)
        driver.add("free", [7, 7], 20)
        driver.run()
        outputs.append(driver.outputs)
        early.append(driver.num_early)
    assert outputs[0] == outputs[1]
    assert early[0] == 0 < early[1]


@pytest.mark.parametrize("kept", ["bad", "logprobs", "min_new"])
def test_other_wishes_wait_for_the_commit(kept: str) -> None:
    driver = Driver(lag=1, max_total_tokens=2000)
    driver.add(
        "r",
        [1, 2],
        12,
        eos=[EOS],
        grammar=FakeGrammar(9),
        bad_ids=[[997, 998]] if kept == "bad" else [],
        logprob_start=-1 if kept == "logprobs" else None,
        min_new=8 if kept == "min_new" else 0,
    )
    driver.run()
    assert driver.num_early == 0 and len(driver.outputs["r"]) > 2


def test_a_row_that_ended_with_the_token_is_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts, bad = {"a": [1, 2, 3], "b": [4, 5, 6]}, [[997, 998]]  # in no output
    alone = {rid: reference_output(prompt, 20) for rid, prompt in prompts.items()}
    stop = alone["a"][5]
    guesses = Checked(monkeypatch)
    driver = Driver(lag=1, max_total_tokens=2000)
    driver.add("a", prompts["a"], 20, eos=[stop], bad_ids=bad)
    driver.add("b", prompts["b"], 20, bad_ids=bad)
    driver.run()
    assert driver.outputs["a"] == alone["a"][: alone["a"].index(stop) + 1]
    assert driver.outputs["b"] == alone["b"]
    assert guesses.ended > 0


def test_a_jump_is_laid_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that only replaces the newest token by another."""
    pattern, outputs = '(a|b) name: "[abc]{1,3}", (abn|cab)', []
    guesses = Checked(monkeypatch)
    for lag in (0, 1):
        driver = Driver(lag=lag, max_total_tokens=2000)
        driver.retokeniser = retokeniser()
        for i in range(6):
            driver.add(str(i), [i, 1, 2], 40, eos=[EOS], grammar=grammar_of(pattern).start())
        driver.run()
        outputs.append(driver.outputs)
    assert outputs[0] == outputs[1]
    assert guesses.false > 0
