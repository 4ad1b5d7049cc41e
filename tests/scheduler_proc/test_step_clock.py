"""The clock of the steps: what counts as time in which requests waited for the scheduler."""

from scheduler_proc.step_clock import StepClock


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
