"""A step that was laid out in two parts is the same as one that is laid out at once."""

import random
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from scheduler_proc.batch import Adjust, Details, ForwardBatch, Masks, Samples
from scheduler_proc.core.steps.batch_concat import joined
from scheduler_proc.core.steps.split import part_of
from scheduler_proc.core.steps.step import LateTokens, Step
from tests.running.profiles import seeds
from tests.scheduler_proc.core.test_scheduler_random import Wishes
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar


def steps_of(seed: int) -> list[Step]:
    """Steps of reqs with all kinds of wishes."""
    rng = random.Random(seed)
    driver = Driver(max_total_tokens=2000, chunked_prefill_size=40)
    for i in range(12):
        prompt = [rng.randint(0, 3) for _ in range(rng.randint(1, 40))]
        wishes = Wishes.drawn(rng) if rng.random() < 0.6 else Wishes()
        if rng.random() < 0.6:
            wishes = wishes.with_details(rng, len(prompt))
        grammar = FakeGrammar(9) if rng.random() < 0.3 else None
        driver.add(str(i), prompt, 8, eos=[EOS], min_new=i % 3, grammar=grammar, **wishes._asdict())
    steps: list[Step] = []
    seal = driver.core.seal

    def noted(plan: Any) -> Step | None:
        step = seal(plan)
        if step is not None:
            rows = [replace(row) for row in step.rows]
            steps.append(Step(step.batch, rows, step.late_tokens))
        return step

    driver.core.seal = noted  # type: ignore[method-assign]
    driver.run()
    return steps


def assert_same(got: ForwardBatch, expected: ForwardBatch) -> None:
    ours, theirs = plain(got), plain(expected)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        if name == "suppressed":
            assert [(s.row, s.ids.tolist()) for s in ours[name]] == [
                (s.row, s.ids.tolist()) for s in theirs[name]
            ]
        else:
            assert ours[name].dtype == theirs[name].dtype, name
            assert np.array_equal(ours[name], theirs[name]), name


def plain(batch: ForwardBatch) -> dict[str, Any]:
    """Every array by its name, as far as it matters: masks that are used, in the order of their
    rows, changes that change something, and groups that are not empty."""
    found: dict[str, Any] = {}
    for field in fields(ForwardBatch):
        value = getattr(batch, field.name)
        if isinstance(value, Masks):
            found |= {"masked": value.rows >= 0, "words": value.words[value.rows[value.rows >= 0]]}
        elif isinstance(value, Adjust):
            changes = np.flatnonzero((value.repeat != 1) | (value.add != 0))
            owners = np.repeat(np.arange(batch.num_samples), np.diff(value.indptr))
            if len(changes) > 0:
                found |= {"adjust.owners": owners[changes]}
                found |= {
                    f"adjust.{name}": getattr(value, name)[changes] for name in value._fields[1:]
                }
        elif isinstance(value, Samples | Details):
            if isinstance(value, Samples) or max(map(len, value[1:])) > 0:
                columns = value._asdict().items()
                found |= {f"{field.name}.{name}": column for name, column in columns}
        elif value is not None:
            found[field.name] = value
    return found


@pytest.mark.parametrize("seed", seeds(1))
def test_the_parts_of_a_step_joined_are_the_step(seed: int) -> None:
    rng = random.Random(seed)
    seen: set[str] = set()
    for step in steps_of(seed):
        if len(step.rows) < 2:
            continue
        cut = rng.randint(1, len(step.rows) - 1)
        numbers = range(len(step.rows))
        whole = joined(part_of(step, numbers[:cut]), part_of(step, numbers[cut:]))
        assert_same(whole.batch, step.batch)
        for row, expected in zip(whole.rows, step.rows, strict=True):
            assert (row.req, row.sample) == (expected.req, expected.sample)
            assert row.sample_detail == expected.sample_detail
            assert row.known_detail == expected.known_detail
        seen |= plain(step.batch).keys()
    assert {"words", "adjust.ids", "details.ids"} <= seen


def test_late_tokens_stay_at_their_places() -> None:
    step = next(step for step in steps_of(0) if len(step.rows) > 4)
    first, second = part_of(step, range(2)), part_of(step, range(2, len(step.rows)))
    late = LateTokens(np.array([0]), np.array([7])), LateTokens(np.array([1]), np.array([3]))
    whole = joined(replace(first, late_tokens=late[0]), replace(second, late_tokens=late[1]))
    assert list(whole.late_tokens.at) == [0, first.batch.num_tokens + 1]
    assert list(whole.late_tokens.samples) == [7, 3]
