"""When the next step is planned: at once for one caller alone, late where callers share."""

import numpy as np
import pytest

from scheduler_proc.core.planning_time import LEAST_LEFT_S, LEFT_SHARE, SHARED_S, PlanningTime
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import StepCosts
from srt.wire.ring_messages import Abort
from tests.scheduler_proc.fairness.simulated import Asked, Shared
from tests.scheduler_proc.fairness.test_sharing import config

COSTS = StepCosts(0.01, 0.001, 0.002, 0.001)
LONG, SHORT = StepSize(decodes=30, others=30), StepSize(decodes=2)
LONG_S = 0.01 + 30 * 0.001 + 30 * 0.002


def test_one_caller_alone_does_not_wait() -> None:
    shared, prompt = Shared(config()), np.arange(9, dtype=np.int32)
    planning = PlanningTime(shared.core.state)
    shared._add("a", Asked(0.0, "A", prompt))
    shared._add("b", Asked(0.0, "A", prompt))
    assert planning.delay_s(LONG, COSTS, 0.0) == 0.0
    shared._add("c", Asked(1.0, "B", prompt))
    assert planning.delay_s(LONG, None, 1.0) == 0.0  # nothing is known of steps
    assert planning.delay_s(LONG, COSTS, 1.0) == pytest.approx((1 - LEFT_SHARE) * LONG_S)
    assert planning.delay_s(SHORT, COSTS, 1.0) == 0.0 < LEAST_LEFT_S
    shared.core.abort(Abort(b"c", "c", 0))
    assert planning.delay_s(LONG, COSTS, 1.0 + SHARED_S) > 0.0  # it may come back
    assert planning.delay_s(LONG, COSTS, 1.1 + SHARED_S) == 0.0
