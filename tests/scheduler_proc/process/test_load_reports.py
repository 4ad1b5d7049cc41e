"""What the scheduler reports to the front about its pace."""

import pytest
from msgspec.structs import replace

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step_cost import MAX_SURPRISE, StepCost, StepSize
from scheduler_proc.process.load_reports import REPORT_INTERVAL_S, PaceMeter
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints, PerfClass
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import Abort, Pace, ReplicaLoad, TokenizedReq
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor


class SizedExecutor(FakeExecutor):
    """Notes the tokens of each step."""

    def __init__(self, max_total_tokens: int, context_len: int) -> None:
        super().__init__(max_total_tokens, context_len)
        self.sizes: list[int] = []

    def run(self, batch: ForwardBatch) -> StepResult:
        self.sizes.append(len(batch.input_ids))
        return super().run(batch)


def cost_of(*steps: tuple[int, float]) -> StepCost:
    cost = StepCost()
    for tokens, seconds in steps:
        cost.add(tokens, seconds, keep=0.999)
    return cost


def test_the_line_through_the_steps() -> None:
    assert StepCost().line() == (0.0, 0.0)
    cost = cost_of(*[(1, 0.005), (2, 0.006), (64, 0.068), (512, 0.516)] * 20)
    assert cost.line() == pytest.approx((0.004, 0.001))


def test_steps_of_one_size_are_all_the_tokens() -> None:
    assert cost_of(*[(512, 0.5)] * 30).line() == pytest.approx((0.0, 0.5 / 512))


def test_a_line_never_says_that_more_tokens_take_less_time() -> None:
    base_s, token_s = cost_of((1, 0.5), (500, 0.1)).line()
    assert base_s == 0.0
    assert token_s > 0.0


def test_a_machine_that_stood_still_counts_little() -> None:
    cost = cost_of(*[(1, 0.005), (512, 0.5)] * 20)
    _, before = cost.line()
    cost.add(512, 600.0, keep=0.999)
    assert cost.line()[1] < before * MAX_SURPRISE


def test_a_slow_first_step_counts_little() -> None:
    """It reads the weights from the disk."""
    steps = [(500, 15.0), *[(1, 0.05)] * 16, (500, 0.5), *[(1, 0.05)] * 16, (500, 0.5)]
    assert cost_of(*steps).line()[1] < 0.002


def test_decodes_alone_do_not_make_prompts_dear() -> None:
    """One stream decodes for ten minutes after the last prompt."""
    cost = cost_of(*[(1, 0.05), (500, 0.55)] * 10)
    for _ in range(12_000):
        cost.add(1, 0.05, keep=0.9975)
    assert cost.line() == pytest.approx((0.049, 0.001), rel=0.01)


def wire(rid: str, length: int) -> TokenizedReq:
    return TokenizedReq(b"c", rid, 0, pack_ids(range(length)), FilledParams(), cache_salt=rid)


def meter_of(driver: Driver, lengths: list[int], max_new: int = 4) -> PaceMeter:
    """A meter of a core that is sent prompts of these lengths, which share nothing."""
    meter = PaceMeter(driver.core)
    for i, length in enumerate(lengths):
        prompt = [i * 100 + j for j in range(length)]
        driver.add(str(i), [token % 50 for token in prompt], max_new=max_new, salt=str(i))
        meter.entered(wire(str(i), length))
    return meter


def test_what_waits_has_not_left() -> None:
    driver = Driver(max_total_tokens=4096, max_running_requests=2)
    meter = meter_of(driver, [10, 20, 30])
    pace = meter.report(0.0)
    assert pace is not None
    assert (pace.left, pace.left_tokens, pace.free_places) == (0, 0, 2)
    driver.step()
    pace = meter.report(1.0)
    assert pace is not None
    assert (pace.left, pace.left_tokens, pace.free_places) == (2, 30, 0)
    driver.run()
    pace = meter.report(2.0)
    assert pace is not None
    assert (pace.left, pace.left_tokens, pace.free_places) == (3, 60, 2)


def test_what_waits_of_the_class_latency_is_reported_by_itself() -> None:
    """And the rows that would give way to it."""
    driver = Driver(
        max_total_tokens=4096,
        max_running_requests=2,
        chunked_prefill_size=30,
        schedule_policy="app",
    )
    meter = PaceMeter(driver.core)

    def add(rid: str, perf: PerfClass) -> None:
        hints = Hints(perf=perf)
        driver.add(rid, [int(rid)] * 20, max_new=40, hints=hints)
        meter.entered(replace(wire(rid, 20), hints=hints))

    for rid in ("1", "2", "3"):
        add(rid, "throughput")
    driver.step()
    add("4", "latency")
    reported = []
    for _ in range(2):
        pace = meter.report(0.0, at_once=True)
        assert pace is not None
        reported.append((pace.left, pace.left_first, pace.left_first_tokens, pace.giving_way))
        driver.step()
    assert reported == [(2, 0, 0, 2), (2, 1, 20, 1)]


def test_a_part_of_a_long_queue_speaks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the long prompts came first or last."""
    monkeypatch.setattr("scheduler_proc.process.load_reports.MOST_COUNTED", 10)
    for lengths in ([90] * 10 + [10] * 40, [10] * 40 + [90] * 10):
        driver = Driver(max_total_tokens=4096, max_running_requests=2)
        meter = meter_of(driver, lengths)
        pace = meter.report(0.0)
        assert pace is not None
        assert (pace.left, pace.left_tokens) == (0, 0)


def test_a_request_costs_what_the_last_ones_did() -> None:
    """A step takes 1 ms, plus 2 ms for each token; each request has 5 outputs."""
    executor = SizedExecutor(4096, 4096)
    driver = Driver(executor=executor, max_total_tokens=4096, max_running_requests=4)
    meter = PaceMeter(driver.core)
    for i in range(40):
        driver.add(str(i), [7] * 20 + [i, *range(19)], max_new=5)
        driver.run()
        while executor.sizes:
            tokens = executor.sizes.pop(0)
            meter.stepped(StepSize(tokens), 0.001 + 0.002 * tokens)
    pace = meter.report(0.0)
    assert pace is not None
    assert pace.prompt_token_s == pytest.approx(0.002)
    assert pace.request_s == pytest.approx(5 * 0.002 + 0.001 * 5 / 4, rel=0.1)


def test_what_the_prompts_share_is_not_waited_for() -> None:
    """Neither what a prompt shares with one before, as at the front, nor what the tree has."""
    driver = Driver(max_total_tokens=4096, max_running_requests=1)
    driver.generate([5] * 30)
    meter = PaceMeter(driver.core)
    for i, prompt in enumerate(([1] * 20, [7] * 20 + [1], [7] * 20 + [2, 3], [5] * 30 + [4])):
        driver.add(str(i), prompt, max_new=50)
        wired = TokenizedReq(b"c", str(i), 0, pack_ids(prompt), FilledParams())
        meter.entered(wired)
    driver.step()  # the one whose prefix is cached goes first
    pace = meter.report(0.0)
    assert pace is not None
    entered = 20 + 21 + 2 + 31
    assert entered - pace.left_tokens == 20 + 21 + 2


def test_memory_that_stops_the_next_one_bounds_the_places() -> None:
    driver = Driver(max_total_tokens=100, max_running_requests=64)
    meter = meter_of(driver, [40, 40, 40], max_new=8)
    driver.step()
    pace = meter.report(0.0)
    assert pace is not None
    assert pace.free_places == 0
    driver.run()
    assert driver.core.places == 64


def test_the_places_that_memory_left_are_forgotten_with_the_queue() -> None:
    driver = Driver(max_total_tokens=100, max_running_requests=64)
    meter_of(driver, [40, 40, 40], max_new=30)
    driver.step()
    for rid in "012":
        driver.abort(rid)
    driver.step()
    assert driver.core.places == 64


def test_steps_of_prompts_and_others_are_reported_with_their_sizes() -> None:
    meter = PaceMeter(Driver(max_total_tokens=64).core)

    def load() -> ReplicaLoad:
        pace = meter.report(0.0, at_once=True)
        assert pace is not None
        return meter.load(pace)

    assert (load().extend_len, load().extend_s, load().decode_len, load().decode_s) == (0,) * 4
    for _ in range(100):
        meter.stepped(StepSize(2, 30), 0.4)
        meter.stepped(StepSize(3, 3), 0.1)
        meter.stepped(StepSize(4, 0, 2), 0.1)
    assert (load().extend_len, load().extend_s) == pytest.approx((32, 0.4))
    assert (load().decode_len, load().decode_s) == pytest.approx((6, 0.1))


@pytest.mark.full
def test_no_request_has_had_more_outputs_than_the_longest() -> None:
    """Even if all began together, longer ago than is remembered, and none has ended."""
    driver = Driver(max_total_tokens=40_000, check=False)
    meter = meter_of(driver, [4] * 40, max_new=2000)
    for _ in range(600):
        driver.step()
        meter.stepped(StepSize(40), 0.2)
    pace = meter.report(0.0)
    assert pace is not None
    assert pace.request_s == pytest.approx(600 * 0.2 / 40, rel=0.15)
    assert pace.running_s == 0.0


def test_a_retracted_request_needs_no_less_than_nothing() -> None:
    """Its outputs are in the tree too, so more of it is cached than its prompt has."""
    driver = Driver(max_total_tokens=100)
    meter = meter_of(driver, [4], max_new=80)
    for _ in range(40):
        driver.step()
    driver.core.state.retract(*driver.core.state.running.values())
    driver.core.state.waiting.ordered()
    pace = meter.report(0.0)
    assert pace is not None
    assert pace.left_tokens == 4


def test_reports_come_now_and_then() -> None:
    meter = meter_of(Driver(max_total_tokens=100), [10])
    assert isinstance(meter.report(5.0), Pace)
    assert meter.report(5.0 + REPORT_INTERVAL_S / 2) is None
    assert meter.report(5.0 + REPORT_INTERVAL_S / 2, at_once=True) is not None


def test_a_new_epoch_counts_from_nothing() -> None:
    driver = Driver(max_total_tokens=100)
    meter = meter_of(driver, [10])
    driver.core.reset(1)
    meter.reset()
    pace = meter.report(0.0)
    assert pace is not None
    assert (pace.incarnation, pace.left, pace.left_tokens) == (1, 0, 0)


def test_what_comes_and_goes_is_news_until_it_is_reported() -> None:
    core = Scheduler(SchedulerConfig(1000, 500, 100))
    meter = PaceMeter(core)
    assert not meter.is_news
    req = TokenizedReq(b"c", "r", 0, pack_ids([1, 2, 3]), FilledParams(max_new_tokens=1))
    meter.entered(req)
    core.add(req, 0.0)
    assert meter.is_news
    assert meter.report(0.0) is not None
    assert not meter.is_news
    core.abort(Abort(b"c", "r", 0))
    assert meter.is_news and meter.report(0.05) is None  # too soon, and so still news
    assert meter.is_news and meter.report(0.2) is not None
    assert not meter.is_news
