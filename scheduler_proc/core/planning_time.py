"""When the next step is planned, while one runs.

At once, for the thread that computes is never to wait for a plan: that is how it is while one
caller has requests. But a request that comes after that is computed a whole step later than it
could be, and where a caller fills all steps, each one that another sends waits for a long one more.
So where callers share the model, the next step is planned when the larger part of the one that runs
is over, as far as is known how long it takes.
"""

import math

from scheduler_proc.core.state import SchedulerState
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import StepCosts

SHARED_S = 10.0  # for as long callers count as sharing, after two have had requests at a time
# What is left of a step for planning the next one: steps may be shorter than they are expected to
# be, and to plan one and lay it out takes some milliseconds.
LEFT_SHARE = 0.25
LEAST_LEFT_S = 0.015


class PlanningTime:
    """Looks at the callers of `state`, and changes nothing there."""

    def __init__(self, state: SchedulerState) -> None:
        self._credits = state.waiting.credits
        self._shared_s = -math.inf  # when callers last shared

    def is_late(self, now: float) -> bool:
        """Whether the next step is to be planned late: callers share, or did lately."""
        if self._credits.num_live > 1:
            self._shared_s = now
        return now - self._shared_s <= SHARED_S


def delay_s(running: StepSize, costs: StepCosts | None) -> float:
    """How long after its start the step that runs, of that size, is to go on before the next one is
    planned late, in seconds. 0 if what steps cost is not known yet."""
    seconds = 0.0 if costs is None else costs.step_s(running)
    return max(0.0, seconds - max(LEAST_LEFT_S, LEFT_SHARE * seconds))
