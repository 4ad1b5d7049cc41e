"""How long a step may last while others decode."""

import math
import random
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step_cost import StepSize
from scheduler_proc.core.steps.step_target import (
    AUTO_STEPS,
    MAX_SLICE_S,
    MIN_SHARE,
    MIN_SLICE_S,
    Beside,
    CostMeter,
    DraftRoom,
    StepCosts,
    slice_beside,
    tokens_beside,
)
from scheduler_proc.media.spans import MediaFacts
from scheduler_proc.trace.recorded import replay
from srt.wire.filled_params import FilledParams
from tests.running.profiles import seeds
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor

COSTS = StepCosts(base_s=0.004, row_s=0.001, token_s=0.002, draft_s=0.002)
STREAMS, PROMPTS, PROMPT = 8, 12, 300


def seconds_of(size: StepSize) -> float:
    """What a step takes by COSTS, if that is not all it takes."""
    others_s = COSTS.token_s * size.others + COSTS.drafts_s(size.drafted)
    return (
        COSTS.base_s * (size.decodes == 0)
        + COSTS.decode_s(size.decodes) * (size.decodes > 0)
        + others_s
    )


def test_the_tokens_that_fit_into_the_target() -> None:
    assert COSTS.decode_s(6) == pytest.approx(0.010)
    assert tokens_beside(COSTS, Beside(6), 512, 0.061) == 25
    assert AUTO_STEPS == 3.6
    assert tokens_beside(COSTS, Beside(7), 512, 0.0) == int(2.6 * 11 / 2)


def test_never_more_than_the_whole_budget_nor_less_than_its_smallest_part() -> None:
    assert tokens_beside(COSTS, Beside(6), 512, 60.0) == 512
    assert tokens_beside(COSTS, Beside(6), 512, 0.001) == 512 // MIN_SHARE
    assert tokens_beside(COSTS, Beside(6), 8, 0.001) == 1
    assert tokens_beside(StepCosts(0.01, 0.001, 0.0, 0.0), Beside(6), 512, 0.0) == 512


@pytest.mark.parametrize(("others", "slice_s"), [(0, 0.050), (10, 0.030), (25, 0.025)])
def test_what_is_encoded_and_the_step_after_it_fit_into_the_target(
    others: int, slice_s: float
) -> None:
    assert slice_beside(COSTS, Beside(6), others, 0.060) == pytest.approx(slice_s)
    assert tokens_beside(COSTS, Beside(6), 512, 0.061, 0.010) == 20


def test_a_slice_is_never_nothing_nor_are_the_tokens_after_it() -> None:
    assert tokens_beside(COSTS, Beside(6), 512, 0.061, 1.0) == 512 // MIN_SHARE
    assert slice_beside(COSTS, Beside(6), 0, 0.001) == MIN_SLICE_S
    assert slice_beside(COSTS, Beside(6), 0, 0.0) == pytest.approx(2.6 * 0.010)


def test_slices_and_prompts_share_what_the_decodes_leave() -> None:
    facts = MediaFacts(1, False, False, in_slices=True)
    driver = Driver(
        max_total_tokens=4000, chunked_prefill_size=100, step_target_s=0.061, media=facts
    )
    planner, left_s = driver.core._planner, 0.061 - COSTS.decode_s(1)

    def planned() -> int:
        """Tokens of the prompt."""
        before = driver.core.state.running
        lengths = [req.held.kv_len for req in before.values()][1:] or [0]
        driver.step()
        return list(before.values())[1].held.kv_len - lengths[0]

    assert planner.take_slice() == MAX_SLICE_S
    driver.core.measure(COSTS)
    driver.add("stream", [1, 2, 3], 60)
    for _ in range(3):
        driver.step()
    assert planner.take_slice() == pytest.approx(left_s)
    driver.add("prompt", range(300), 1)
    assert planned() == 1
    assert planner.take_slice() == pytest.approx(left_s / 2)
    assert planned() == int(left_s / 2 / COSTS.token_s)
    assert planned() == int(left_s / COSTS.token_s)  # no slice was taken


def test_what_encodes_whole_parts_takes_no_time_from_prompts() -> None:
    driver = Driver(max_total_tokens=400, media=MediaFacts(1, False, False))
    driver.core.measure(COSTS)
    driver.add("stream", [1, 2, 3], 60)
    for _ in range(3):
        driver.step()
    assert driver.core._planner.take_slice() == math.inf


def test_trials_are_set_aside_for_and_leave_prompts_half_if_they_can() -> None:
    costs = COSTS._replace(drafting_s=0.001)
    spare_s = Beside(6).spare_s(costs, 0.060)
    assert spare_s == pytest.approx(0.050)
    assert Beside(6, 2).left_s(costs, 0.060) == pytest.approx(spare_s - 0.005)
    assert Beside(6, 200).left_s(costs, 0.060) == pytest.approx(spare_s / 2)
    dear = costs._replace(drafting_s=0.040)
    assert Beside(6, 200).left_s(dear, 0.060) == pytest.approx(spare_s - 0.042)
    assert Beside(6).spare_s(costs, 0.0) == pytest.approx(2.6 * 0.010)


def test_guesses_have_what_is_left_of_a_target() -> None:
    costs = COSTS._replace(drafting_s=0.001)
    assert DraftRoom(8, 0.0).most(costs) == DraftRoom(8, 0.0029).most(costs) == 0
    assert DraftRoom(8, 0.0031).most(costs) == 1
    assert DraftRoom(8, 0.0151).most(costs) == 7
    assert DraftRoom(8, 1.0).most(costs) == DraftRoom(8).most(costs) == 8
    assert DraftRoom(8, 0.0011).most(costs._replace(draft_s=0.0)) == 8
    assert DraftRoom(8, 0.0009).most(costs._replace(draft_s=0.0)) == 0


def test_guesses_that_are_expected_count_before_prompts_are_planned() -> None:
    driver = Driver(max_total_tokens=4000, chunked_prefill_size=100, speculative="own", lag=1)
    driver.core.measure(COSTS)
    driver.add("stream", [1, 2, 3] * 20, 60)
    planner, seen = driver.core._planner, set[Beside]()
    while driver.core.has_work:
        driver.step()
        seen.add(planner._beside)
    assert max(beside.drafted for beside in seen) > 0
    assert all(beside.drafted == 0 for beside in seen if beside.decodes == 0)


def test_what_a_warm_up_has_shown_holds_until_there_is_more() -> None:
    """However wrong: other processes may have started beside it."""
    warm = [(StepSize(1, 0), 0.005), (StepSize(0, 32), 0.324), (StepSize(8, 0), 0.012)]
    meter = CostMeter(warm)
    costs = meter.news()
    assert costs == pytest.approx(StepCosts(0.004, 0.001, 0.010, 0.010), rel=0.01)
    meter.add(StepSize(0, 400), 0.800)
    costs = meter.news()
    assert costs is not None
    assert costs.token_s == pytest.approx(0.002, rel=0.05)
    for _ in range(20):
        meter.add(StepSize(4, 0), 0.016)
    costs = meter.news()
    assert costs is not None
    assert costs.decode_s(4) == pytest.approx(0.016, rel=0.05)


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("size", [StepSize(8, 60), StepSize(8, 0, 8), StepSize(8, 60, 8)], ids=str)
def test_a_warm_up_is_corrected_where_no_step_has_decodes_alone(
    factor: float, size: StepSize
) -> None:
    warm = [StepSize(1), StepSize(0, 32), StepSize(8)]
    meter, rng = CostMeter([(each, factor * seconds_of(each)) for each in warm]), random.Random(0)
    for _ in range(300):
        meter.add(size, rng.uniform(0.9, 1.1) * seconds_of(size))
    learned = meter.news()
    assert learned is not None
    assert learned.decode_s(8) == pytest.approx(
        COSTS.decode_s(8), rel=0.55 if size.drafted else 0.3
    )
    if size.others > 0:
        assert tokens_beside(learned, Beside(8), 512, 0.0) == pytest.approx(15, abs=6)


@pytest.mark.parametrize("share", [1.1, 1.3, 2.0])
def test_prompts_that_take_a_small_part_of_a_step_do_not_come_to_look_dear(share: float) -> None:
    costs = StepCosts(base_s=0.020, row_s=0.0001, token_s=0.0001, draft_s=0.0001)
    meter, target_s = CostMeter(), share * costs.decode_s(4)
    for decodes in range(1, 9):
        meter.add(StepSize(decodes), costs.decode_s(decodes))
    meter.add(StepSize(0, 300), costs.base_s + 300 * costs.token_s)
    learned = None
    for _ in range(1000):
        meter.add(StepSize(4), costs.decode_s(4))
        learned = meter.news() or learned
        assert learned is not None
        others = tokens_beside(learned, Beside(4), 512, target_s)
        meter.add(StepSize(4, others), costs.decode_s(4) + others * costs.token_s)
    right = tokens_beside(costs, Beside(4), 512, target_s)
    assert others == pytest.approx(right, rel=0.1, abs=1)


def test_costs_are_learned_from_steps_of_both_kinds() -> None:
    meter, rng = CostMeter(), random.Random(0)
    assert meter.news() is None
    for _ in range(300):
        decodes, others = rng.randint(1, 30), rng.choice([0, 0, rng.randint(1, 100)])
        noise = rng.uniform(0.9, 1.1)
        meter.add(
            StepSize(decodes, others), noise * (COSTS.decode_s(decodes) + COSTS.token_s * others)
        )
    learned = meter.news()
    assert learned == pytest.approx(COSTS, rel=0.15)
    assert meter.news() is None  # nothing has changed since


def test_before_there_are_decodes_alone_a_row_counts_as_a_token() -> None:
    """Otherwise there would be no bound while some req always prefills."""
    meter = CostMeter()
    for others in (100, 20) * 20:
        meter.add(StepSize(4, others), 0.010 + 0.002 * (4 + others))
    assert meter.news() == pytest.approx(StepCosts(0.010, 0.002, 0.002, 0.002), rel=0.1)


def test_what_drafts_cost_is_learned_apart() -> None:
    """Steps of prompts and decodes with drafts leave the other figures as they are."""
    meter, rng = CostMeter(), random.Random(0)
    costs = COSTS._replace(draft_s=0.0005, drafting_s=0.003)
    for i in range(600):
        decodes = rng.randint(1, 9)
        others = rng.choice([0, 0, rng.randint(1, 100)])
        drafted = rng.choice([0, decodes * rng.randint(1, 8)]) if i > 50 else 0
        seconds = costs.decode_s(decodes) + costs.token_s * others + costs.draft_s * drafted
        if drafted > 0:
            seconds += costs.drafting_s
        meter.add(StepSize(decodes, others, drafted), rng.uniform(0.9, 1.1) * seconds)
        if i == 50:
            before = meter.news()
            assert before is not None
            assert (before.draft_s, before.drafting_s) == (before.token_s, 0.0)
    assert meter.news() == pytest.approx(costs, rel=0.2)


def test_a_draft_that_stood_still_says_little_of_what_drafts_cost() -> None:
    meter = CostMeter()
    for others, drafted in [(50, 0), (0, 0), (0, 1), (0, 4)] * 20:
        meter.add(StepSize(1, others, drafted), 0.01 + 0.002 * others + 0.001 * drafted)
    meter.add(StepSize(1, 0, 4), 60.0)
    costs = meter.news()
    assert costs is not None
    assert costs.draft_s < 0.002
    assert costs.drafting_s < 0.002


def test_a_machine_that_was_busy_in_the_first_drafts_does_not_make_them_dear() -> None:
    """Where hardly anything is drafted any more, nothing would tell otherwise."""
    meter = CostMeter()
    for others, drafted in [(50, 0), (50, 0), (0, 0), (0, 0), (0, 2), (0, 3), (0, 1)]:
        seconds = 0.01 + 0.002 * others + 0.001 * drafted
        meter.add(StepSize(1, others, drafted), 4 * seconds if drafted else seconds)
    costs = meter.news()
    assert costs is not None
    assert costs.drafting_s + 4 * costs.draft_s < 0.015


def test_where_all_drafts_are_as_long_their_time_is_the_tokens() -> None:
    meter = CostMeter()
    for others, drafted in [(50, 0), (0, 0), (0, 4)] * 400:
        seconds = COSTS.decode_s(1) + 0.002 * others + 0.001 * drafted
        meter.add(StepSize(1, others, drafted), seconds)
    costs = meter.news()
    assert costs is not None
    assert (costs.draft_s, costs.drafting_s) == pytest.approx((0.001, 0.0), rel=0.05)


def test_drafts_that_cost_nothing_cost_nothing() -> None:
    """Not less, whatever the noise."""
    meter = CostMeter()
    some = [(50, 0, 0.1), (0, 0, 0.01), (0, 4, 0.009), (0, 8, 0.0095)]
    for others, drafted, seconds in some * 50:
        meter.add(StepSize(1, others, drafted), seconds)
    costs = meter.news()
    assert costs is not None
    assert (costs.draft_s, costs.drafting_s) == (0.0, 0.0)


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("seen", [20, 80])
def test_a_step_that_stood_still_says_little_of_the_next(others: int, seen: int) -> None:
    meter = CostMeter()
    for decodes in (1, 9) * seen:
        meter.add(StepSize(decodes, 0), COSTS.decode_s(decodes))
        meter.add(StepSize(decodes, 50), COSTS.decode_s(decodes) + 50 * COSTS.token_s)
    before = meter.news()
    assert before is not None
    meter.add(StepSize(9, others), 60.0)
    after = meter.news() or before
    assert after.decode_s(9) < 2 * before.decode_s(9)
    assert after.token_s < 4 * before.token_s
    for _ in range(20):
        meter.add(StepSize(9, 50), COSTS.decode_s(9) + 50 * COSTS.token_s)
    assert (meter.news() or after).token_s < 1.5 * before.token_s


class Timed(FakeExecutor):
    """An executor whose steps take the time that COSTS gives."""

    def __init__(self, seed: int) -> None:
        super().__init__(20_000, 4096)
        self.meter: CostMeter | None = CostMeter()
        self.now = 0.0
        self.largest = 0
        self._rng = random.Random(seed)

    def run(self, batch: ForwardBatch) -> StepResult:
        decodes = int((np.diff(batch.qo_indptr) == 1).sum())
        others = batch.num_tokens - decodes
        seconds = COSTS.decode_s(decodes) + others * COSTS.token_s
        seconds *= self._rng.uniform(0.9, 1.1)
        self.now += seconds
        self.largest = max(self.largest, others)
        if self.meter is not None:
            self.meter.add(StepSize(decodes, others), seconds)
        return super().run(batch)


class Served(NamedTuple):
    """The gaps between the tokens of each stream, and the time until all was done."""

    gaps_s: list[float]
    seconds: float
    largest: int  # the most tokens of prompts in one step


def serve(seed: int, *, bounded: bool, target_s: float = 0.0) -> Served:
    """Serve STREAMS requests that decode while prompts come."""
    executor = Timed(seed)
    driver = Driver(
        lag=1,
        check=False,
        executor=executor,
        max_total_tokens=20_000,
        chunked_prefill_size=PROMPT,
        step_target_s=target_s,
    )
    for i in range(STREAMS):
        driver.add(f"s{i}", [i, 1, 2], 400, sampling=FilledParams(stop=["told at once"]))
    came: dict[str, list[float]] = {}
    sent = 0
    while driver.core.has_work:
        costs = executor.meter.news() if bounded and executor.meter is not None else None
        if costs is not None:
            driver.core.measure(costs)
        counts = {rid: len(ids) for rid, ids in driver.outputs.items()}
        driver.step()
        for rid in driver.outputs:
            if rid[0] == "s" and len(driver.outputs[rid]) > counts.get(rid, 0):
                came.setdefault(rid, []).append(executor.now)
        if sent < PROMPTS and executor.steps >= 30 + 10 * sent:
            driver.add(f"p{sent}", [999 - sent] * PROMPT, 1)
            sent += 1
    gaps = [b - a for times in came.values() for a, b in pairwise(times)]
    return Served(gaps, executor.now, executor.largest)


@pytest.mark.parametrize("seed", seeds(1))
def test_streams_keep_their_pace_while_others_prefill(seed: int) -> None:
    """The 99th percentile of their gaps is at most four decode steps, at little cost in throughput;
    without a target it is more."""
    bounded, free = serve(seed, bounded=True), serve(seed, bounded=False)
    decode_s = COSTS.decode_s(STREAMS)
    assert np.quantile(bounded.gaps_s, 0.99) <= 4 * decode_s < np.quantile(free.gaps_s, 0.99)
    assert free.seconds / bounded.seconds >= 0.95
    assert free.largest == PROMPT - STREAMS


def test_a_target_of_ones_own() -> None:
    served = serve(0, bounded=True, target_s=0.1)
    assert 0.07 < np.quantile(served.gaps_s, 0.99) <= 0.12


def test_where_nobody_decodes_the_whole_budget_is_used() -> None:
    executor = FakeExecutor(4000, 4096)
    driver = Driver(executor=executor, max_total_tokens=4000, chunked_prefill_size=100)
    driver.core.measure(COSTS)
    driver.generate(range(300), 1)
    assert executor.steps == 3


def test_costs_are_part_of_a_trace(tmp_path: Path) -> None:
    driver = Driver(max_total_tokens=4000, chunked_prefill_size=100, trace=tmp_path / "trace")
    driver.add("stream", [1, 2, 3], 60)
    for _ in range(3):
        driver.step()
    driver.core.measure(COSTS)
    driver.add("prompt", range(300), 1)
    driver.run()
    driver.close()
    assert driver.core.state.counters.forward_steps > 30
    assert replay(tmp_path / "trace").state.counters == driver.core.state.counters
