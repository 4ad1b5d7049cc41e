"""A step that raises is run again by halves: which reqs end, what it costs, what the parts give."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.batch import DetailLogprobs, ForwardBatch, StepResult
from scheduler_proc.core.steps.split import part_of
from scheduler_proc.crash.recovery import MAX_SPLITS, UnclearFailure
from scheduler_proc.executor.native_executor import NativeExecutor
from srt.wire.filled_params import FilledParams
from tests.running.late import late
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor, PoisonedStep, reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


BAD = 999


class Counting(FakeExecutor):
    """Notes how many rows each run had; if `is_lost`, every run fails. Poison raises `error`."""

    def __init__(
        self, poison: frozenset[int] = frozenset([BAD]), error: Exception | None = None
    ) -> None:
        super().__init__(4000, 4096)
        self.poison = poison
        self.error = error or PoisonedStep()
        self.is_lost = False
        self.rows: list[int] = []

    def run(self, batch: ForwardBatch) -> StepResult:
        self.rows.append(batch.num_rows)
        if self.is_lost:
            raise PoisonedStep
        try:
            return super().run(batch)
        except PoisonedStep as error:
            raise self.error from error


def driver_of(executor: Counting, lag: int = 0) -> Driver:
    return Driver(lag, executor=executor, max_total_tokens=4000, chunked_prefill_size=2000)


def fill(driver: Driver, count: int, bad: tuple[int, ...] = ()) -> dict[str, list[int]]:
    """Add `count` reqs; those with numbers in `bad` are poisoned. Returns the others' prompts."""
    prompts = {f"r{i}": [i, *range(5), *[BAD] * (i in bad)] for i in range(count)}
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 4)
    return {rid: prompt for rid, prompt in prompts.items() if BAD not in prompt}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("bad", [0, 21, 63])
def test_only_the_guilty_ends(lag: int, bad: int) -> None:
    executor = Counting()
    driver = driver_of(executor, lag)
    good = fill(driver, 64, (bad,))
    driver.run()
    errors = {rid for rid, finish in driver.finishes.items() if finish.error is not None}
    assert errors == {f"r{bad}"}
    assert driver.outputs == {rid: reference_output(p, 4) for rid, p in good.items()}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("bad", [(7, 8), (0, 15, 31, 40, 63)])
def test_several_that_fail_end_the_process_and_the_next_one_tells_them_apart(
    lag: int, bad: tuple[int, ...]
) -> None:
    """Nobody has failed in the first. In the next, the named ones are tried alone, and end."""
    driver = driver_of(Counting(), lag)
    fill(driver, 64, bad)
    with pytest.raises(UnclearFailure) as failure:
        driver.run()
    assert failure.value.names == [(b"c", f"r{i}") for i in bad]
    assert driver.finishes == {}
    following = driver_of(Counting(), lag)
    following.core.suspect(failure.value.names)
    good = fill(following, 64, bad)
    following.run()
    errors = {rid for rid, finish in following.finishes.items() if finish.error is not None}
    assert errors == {f"r{i}" for i in bad}
    assert following.outputs == {rid: reference_output(p, 4) for rid, p in good.items()}


def test_one_of_64_costs_two_runs_for_each_halving() -> None:
    executor = Counting()
    driver = driver_of(executor)
    fill(driver, 64, bad=(21,))
    driver.step()
    assert len(executor.rows) == 1 + 2 * 6 and sum(executor.rows) == 64 * 3 - 2


def test_a_lost_device_costs_a_bounded_number_of_runs_and_no_request() -> None:
    executor = Counting()
    executor.is_lost = True
    driver = driver_of(executor)
    fill(driver, 64)
    with pytest.raises(UnclearFailure) as failure:
        driver.run()
    assert len(failure.value.names) == 64 and driver.finishes == {}
    assert len(executor.rows) <= 1 + 2 * MAX_SPLITS


@pytest.mark.parametrize("lag", [0, 1])
def test_several_that_lack_memory_end_and_nothing_else_does(lag: int) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    bad = (3, 9, 10)
    driver = driver_of(Counting(error=error), lag)
    good = fill(driver, 16, bad)
    driver.run()
    errors = {rid: finish.error for rid, finish in driver.finishes.items() if finish.error}
    assert errors.keys() == {f"r{i}" for i in bad}
    assert all("too little memory" in found.message for found in errors.values())
    assert driver.outputs == {rid: reference_output(p, 4) for rid, p in good.items()}


def test_of_two_that_fail_one_may_end_meanwhile() -> None:
    driver = driver_of(Counting())
    good = fill(driver, 8, bad=(1, 6))
    driver.between = lambda: driver.abort("r6") if 1 in driver.executor.rows else None
    driver.run()
    assert {rid for rid, end in driver.finishes.items() if end.error} == {"r1"}
    assert driver.outputs == {rid: reference_output(p, 4) for rid, p in good.items()}


def test_rows_that_end_while_the_parts_run_are_left_out() -> None:
    driver = driver_of(Counting())
    fill(driver, 8, bad=(1,))
    driver.between = lambda: driver.abort("r6")
    driver.run()
    assert {rid for rid, end in driver.finishes.items() if end.error} == {"r1"}
    assert driver.finishes["r6"].type == "abort"
    driver = driver_of(Counting())
    fill(driver, 4, bad=(1,))
    driver.between = lambda: driver.core.reset(0)
    driver.step()
    assert not driver.core.has_work


def mixed() -> Driver:
    """Reqs with everything that a row can have, one step before their next tokens."""
    driver = driver_of(Counting())
    likely = FilledParams(frequency_penalty=0.5, logit_bias={3: 15.0, 4: 15.1})
    wishes: list[dict[str, Any]] = [
        {"logprob_start": 0, "top_logprobs": 3},
        {"sampling": likely, "logprob_start": 2},
        {"eos": [EOS], "grammar": FakeGrammar(9)},
        {"logprob_start": 1, "top_logprobs": 2, "logprob_ids": [5, 6]},
        {"eos": [7, 8], "min_new": 3},
        {"sampling": FilledParams(allowed_token_ids=[1, 2, 500]), "logprob_start": 4},
        {"bad_ids": [[1], [2, 3]], "logprob_start": 7, "logprob_ids": [9]},
        {},
    ]
    for i, asked in enumerate(wishes):
        driver.add(f"r{i}", [i, 4, 5, 6, i % 3, 7, 8], 12, **asked)
    return driver


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_part_computes_what_the_whole_step_would(steps: int) -> None:
    rng = np.random.default_rng(steps)
    driver = mixed()
    for _ in range(steps):
        driver.step()
    plan = driver.core.prepare(0.0)
    assert plan is not None
    step = driver.core.seal(plan)
    assert step is not None and len(step.rows) == 8
    whole = driver.executor.run(step.batch)
    for _ in range(30):
        numbers = np.flatnonzero(rng.random(8) < 0.5).tolist() or [0]
        part = part_of(step, numbers)
        result = driver.executor.run(part.batch)
        assert_same(result, expected_of(step, whole, numbers))
        for row in part.rows:
            assert row.samples == (row.sample >= 0)
            assert (row.sample_detail >= 0) == (row.samples and row.req.wish.wants_details)


def expected_of(step: Any, whole: StepResult, numbers: list[int]) -> StepResult:
    """The part of a whole step's result that belongs to the rows of these numbers."""
    rows = step.rows
    samples = [row.sample for i, row in enumerate(rows) if i in numbers and row.sample >= 0]
    scored = np.repeat(np.arange(8), [row.num_logprobs for row in rows])
    logprobs = np.flatnonzero(np.isin(scored, numbers))
    details = None
    if step.batch.details is not None and whole.details is not None:
        asked_rows, top, indptr, _ = step.batch.details
        asked = np.isin(asked_rows, [*samples, *(len(whole.next_ids) + logprobs)])
        tops, ids = np.repeat(asked, top), np.repeat(asked, np.diff(indptr))
        parts = zip(whole.details, (tops, tops, ids), strict=True)
        details = DetailLogprobs(*(column[part] for column, part in parts))
    return StepResult(
        whole.next_ids[samples], whole.logprobs[samples], whole.prompt_logprobs[logprobs], details
    )


def assert_same(got: StepResult, expected: StepResult) -> None:
    for column, wanted in zip(got.columns, expected.columns, strict=True):
        np.testing.assert_array_equal(column, wanted)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_number_that_the_native_check_refuses_ends_its_own_request(
    lag: int, tmp_path: Path
) -> None:
    """If the front ever lets one through, the other requests get the tokens that they get alone."""
    load_or_skip()
    files = save_directory(random_llama(head_dim=16), tmp_path)
    executor = NativeExecutor(files, max_total_tokens=400, num_threads=1)

    def outputs(bad: tuple[int, ...]) -> dict[str, list[int]]:
        driver = Driver(lag, executor=executor, max_total_tokens=400, vocab_size=131)
        for i in range(7):
            penalty = 1e-50 if i in bad else 1.25
            sampling = FilledParams(repetition_penalty=penalty)
            driver.add(f"r{i}", range(i, 40, i + 2), 8, sampling=sampling, logprob_start=1)
        driver.run()
        failed = {rid for rid, finish in driver.finishes.items() if finish.error is not None}
        assert failed == {f"r{i}" for i in bad}
        assert all(len(driver.prompt_logprobs[rid]) > 0 for rid in driver.outputs)
        return driver.outputs

    alone = outputs(())
    del alone["r5"]
    assert outputs((5,)) == alone
    with pytest.raises(UnclearFailure):
        outputs((2, 5))
