"""When the queue is looked at, and when it waits for memory."""

from scheduler_proc.core.requests.admission import RETRY_STEPS, Admissions


def test_a_look_at_the_queue_says_anew_whether_memory_stops_it() -> None:
    """One that has let some in waits for the step's budget, and is looked at in each step."""
    admissions = Admissions()
    assert admissions.are_due(0) and not admissions.are_stopped
    admissions.stopped(100, 3)
    assert not admissions.are_due(99 + RETRY_STEPS) and admissions.are_stopped
    assert admissions.are_due(100 + RETRY_STEPS) and not admissions.are_stopped
    assert admissions.are_due(101 + RETRY_STEPS)
    admissions.stopped(101 + RETRY_STEPS, 4)
    assert admissions.are_stopped and not admissions.are_due(102 + RETRY_STEPS)
    admissions.memory_changed()
    assert not admissions.are_stopped and admissions.are_due(102 + RETRY_STEPS)
