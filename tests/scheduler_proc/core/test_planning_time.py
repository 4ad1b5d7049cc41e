"""When the next step is planned: at once for one caller alone, late where callers share."""

import numpy as np
import pytest

from scheduler_proc.core.planning_time import (
    LEAST_LEFT_S,
    LEFT_SHARE,
    SHARED_S,
    PlanningTime,
    delay_s,
)
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
    assert not planning.is_late(0.0)
    shared._add("a", Asked(0.0, "A", prompt))
    shared._add("b", Asked(0.0, "A", prompt))
    assert not planning.is_late(0.0)
    shared._add("c", Asked(1.0, "B", prompt))
    assert planning.is_late(1.0)
    shared.core.abort(Abort(b"c", "c", 0))
    assert planning.is_late(1.0 + SHARED_S)  # it may come back
    assert not planning.is_late(1.1 + SHARED_S)


def test_what_is_left_of_a_step_is_time_enough_to_plan() -> None:
    assert delay_s(LONG, COSTS) == pytest.approx((1 - LEFT_SHARE) * LONG_S)
    assert delay_s(SHORT, COSTS) == 0.0 < COSTS.step_s(SHORT) < LEAST_LEFT_S
    assert delay_s(LONG, None) == 0.0
