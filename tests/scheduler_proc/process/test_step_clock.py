"""The clock of the steps: what counts as time in which requests waited for the scheduler."""

import numpy as np

from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.process.step_clock import StepClock
from srt.wire.sampling import SamplingParams
from tests.scheduler_proc.driver import Driver


def test_the_time_between_steps_counts_unless_there_was_nothing_to_do() -> None:
    clock = StepClock()
    clock.begin(10.0)  # the first step: nothing before it
    clock.end(11.0)
    clock.begin(11.25)
    clock.end(12.25)
    assert (clock.step_s, clock.exposed_s) == (2.0, 0.25)
    clock.rest()
    clock.begin(20.0)
    clock.end(20.5)
    assert (clock.step_s, clock.exposed_s) == (2.5, 0.25)


def test_steps_are_noted_with_the_time_before_them() -> None:
    clock, size = StepClock(), StepSize(decodes=2, drafted=5)
    for begin in (10.0, 11.5):
        clock.begin(begin)
        clock.end(begin + 1.0, size)
    clock.begin(13.0)
    clock.end(14.0)  # failed
    assert list(clock.steps) == [(size, 1.0), (size, 1.5)]


def test_guesses_are_no_tokens_of_prompts() -> None:
    driver = Driver(max_total_tokens=100)
    driver.add("decodes", [1, 2], 9, sampling=SamplingParams())
    driver.step()
    driver.add("begins", [3, 4, 5], 9)
    plan = driver.core.prepare(0.0)
    assert plan is not None
    step = driver.core.seal(plan)
    assert step is not None
    assert step.size == StepSize(decodes=1, others=3)
    step.rows[0].draft = [7, 8]
    step.batch.input_ids = np.append(step.batch.input_ids, np.array([7, 8], np.int32))
    assert step.size == StepSize(decodes=1, others=3, drafted=2)
    assert step.size.tokens == step.batch.num_tokens
