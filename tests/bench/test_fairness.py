"""What bench.fairness makes of exchanges."""

import pytest

from bench.fairness.traffic import RAMP_S, answered_share, rate, ttft_s
from bench.open_loop import Exchange, OpenLoopReport


def test_answers_after_the_ramp_count() -> None:
    times = [0.0, RAMP_S, RAMP_S + 1, RAMP_S + 2, RAMP_S + 4]
    exchanges = [Exchange(t, first=t + 0.25, ended=t + 0.5, status=200) for t in times]
    exchanges += [Exchange(5.0, first=5.1, ended=5.1, status=429)]
    exchanges += [Exchange(5.0, first=5.1, ended=5.1, status=200, failed=True)]
    report = OpenLoopReport(exchanges, seconds=RAMP_S + 4, cpu_s=0.0)
    assert rate(report) == pytest.approx(3 / 4)
    assert rate(report, RAMP_S + 2) == pytest.approx(2 / 2)
    assert answered_share(report) == pytest.approx(5 / 7)
    assert ttft_s(report, 99) == pytest.approx(0.25)


def test_of_nothing_there_is_no_time() -> None:
    report = OpenLoopReport([], seconds=10.0, cpu_s=0.0)
    assert (answered_share(report), rate(report), ttft_s(report, 99)) == (1.0, 0.0, 0.0)
