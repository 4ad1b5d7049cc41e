"""The actor's loop around the core, without sockets: the compute thread runs ahead of the loop."""

import asyncio
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import scheduler_proc.actor
from scheduler_proc.actor import SchedulerActor
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.core.planning_time import PlanningTime
from scheduler_proc.core.steps.step_target import StepCosts
from scheduler_proc.crash.journal import Blame
from scheduler_proc.process.admin import MAX_PENDING, Controls
from scheduler_proc.process.compute import ComputeThread
from scheduler_proc.process.core_lock import CoreLock
from scheduler_proc.process.encodes import Encodes
from scheduler_proc.process.entry import CoreEntry
from scheduler_proc.process.load_reports import Reports
from scheduler_proc.process.metrics import ExpertLoad, StatsLog, StepClock
from srt.tasks import TaskSet
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.pause import NO_PAUSE, Pause
from srt.wire.ring_messages import Abort, Control, ControlReply, PauseSet, TokenizedReq
from tests.running.late import late
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor, reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.waiting import SOON_S

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


class FailingExecutor(FakeExecutor):
    """Fails at the steps listed in `fails_at`, by raising `error`."""

    fails_at: tuple[int, ...] = ()
    error: Exception = RuntimeError("made to fail")

    def run(self, batch: ForwardBatch) -> StepResult:
        if self.steps + 1 in self.fails_at:
            self.steps += 1
            raise self.error
        return super().run(batch)


class NoReports(Reports):
    """Leaves the clock's measurements to the tests."""

    def tell_pace(self, *, at_once: bool = False) -> None:
        pass


class DriverEntry(CoreEntry):
    """What the core reports goes to its driver."""

    def __init__(self, driver: Driver, lock: CoreLock) -> None:
        super().__init__(driver.core, lock, lambda batch: None)
        self._driver = driver

    def send_outputs(self) -> None:
        self._driver._collect()


class LoopOnly(SchedulerActor):
    """The actor's loop over a driver's core; what it sends goes to the driver."""

    def __init__(self, driver: Driver, overlap: bool) -> None:
        self.args = SimpleNamespace(check_invariants=True, dp=1)  # type: ignore[assignment]
        self._replica, self.incarnations = 0, [0]
        self.driver = driver
        self._core = driver.core
        self._core_lock = CoreLock()
        self._planning_time = PlanningTime(driver.core.state) if overlap else None
        self._clock = StepClock()
        self._reports = NoReports(driver.core, self._clock, lambda message: None, has_router=False)
        self._compute = ComputeThread(self._clock)
        self._compute.executor = driver.executor
        self._blame = Blame(Path(tempfile.mkdtemp()), 0, driver.core, is_wary=False)
        self._compute.blame = self._blame
        self._stats_log = StatsLog(driver.core, ExpertLoad(driver.executor))
        self.replies: dict[str, str] = {}  # to operations: why they are refused, or ""
        self._controls = Controls(driver.core, dict, self._reply)
        self._intake = SimpleNamespace(rearm=lambda: None)  # type: ignore[assignment]
        self.tasks = TaskSet(self._on_failure)
        self._failure, self._stopping = None, asyncio.Event()
        self._entry = DriverEntry(driver, self._core_lock)
        self._encodes = Encodes(
            driver.core, self._core_lock, self._compute, self.tasks, self._want, self._entry.changed
        )

    def _reply(self, reply: ControlReply) -> None:
        self.replies[reply.rid] = reply.error.reason if reply.error else ""

    async def serve(self, seconds: float = SOON_S) -> None:
        """Run until the core has nothing left to do."""
        loop = asyncio.ensure_future(self._serve())
        async with asyncio.timeout(seconds):
            while self._has_work():
                await asyncio.sleep(0.001)
                assert not loop.done(), loop.exception()
        loop.cancel()
        self._compute.close()
        # The compute thread may have taken over the last result just now.
        self._entry.send_outputs()

    def _has_work(self) -> bool:
        with self._core_lock:
            return self._core.has_work


def make(fails_at: tuple[int, ...] = ()) -> Driver:
    executor = FailingExecutor(500, 4096)
    executor.fails_at = fails_at
    return Driver(executor=executor, max_total_tokens=500)


@pytest.mark.parametrize("overlap", [False, True])
async def test_every_output_is_right(overlap: bool) -> None:
    driver = make()
    prompts = {f"r{i}": [i + 1, *range(i % 3, 20)] for i in range(8)}
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 12)
    await LoopOnly(driver, overlap).serve()
    assert driver.outputs == {rid: reference_output(p, 12) for rid, p in prompts.items()}
    check_invariants(driver.core)


class Held(FakeExecutor):
    """The step after the first `before` ends when `may_end` is set."""

    def __init__(self, *sizes: int, before: int = 2) -> None:
        super().__init__(*sizes)
        self.before = before
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def run(self, batch: ForwardBatch) -> StepResult:
        if self.steps == self.before:
            self.has_begun.set()
            assert self.may_end.wait(SOON_S)
        return super().run(batch)


@pytest.mark.parametrize(("callers", "before"), [("AA", 2), ("AB", 2), ("AB", 0)])
async def test_where_callers_share_what_comes_during_a_step_is_in_the_next(
    callers: str, before: int
) -> None:
    """The next step is planned late, or when the one that runs has ended; for one caller alone, at
    once. The costs say that steps last for minutes. So it is with the first step after a rest."""
    executor = Held(500, 4096, before=before)
    driver = Driver(executor=executor, max_total_tokens=500)
    driver.core.measure(StepCosts(600.0, 0.01, 0.01, 0.01))
    for number, caller in enumerate(callers):
        driver.add(f"{number}", range(number, number + 9), 12, caller=caller)
    actor = LoopOnly(driver, overlap=True)
    serving = asyncio.ensure_future(actor.serve())
    await asyncio.to_thread(executor.has_begun.wait)
    await asyncio.sleep(0.01)  # the loop has heard of the step before, and plans the next one
    with actor._core_lock:
        driver.add("late", range(20, 29), 12, caller=callers[1])
    actor._entry.wake.set()
    executor.may_end.set()
    await serving
    assert driver.outputs["late"] == reference_output([*range(20, 29)], 12)
    # The last of its 12 tokens: the step after the held one is its first, or the one after that.
    assert executor.steps == before + 1 + 12 + (callers == "AA")


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_pause_begins_when_no_step_runs(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered then; one that waits for too long, or that is ended before, is refused. What
    waits in it is no garbage."""
    executor = Held(500, 4096)
    driver = Driver(executor=executor, max_total_tokens=500)
    prompts = {f"r{i}": [i + 1, *range(i % 3, 20)] for i in range(8)}
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 12)
    actor, rested = LoopOnly(driver, overlap), list[bool]()
    rest = "scheduler_proc.actor.garbage.rest"
    monkeypatch.setattr(rest, lambda: rested.append(driver.core.has_work))
    replies = actor.replies
    serving = asyncio.ensure_future(actor.serve())
    await asyncio.to_thread(executor.has_begun.wait)
    pause = NO_PAUSE.begun("retract", time.monotonic())

    def ask(rid: str, op: str, pause: Pause, timeout_s: float = SOON_S) -> None:
        actor._on_message(PauseSet(0, pause))
        actor._on_message(Control(b"c", rid, 0, op, timeout_s))

    async def answered(count: int) -> None:
        async with asyncio.timeout(SOON_S):
            while len(replies) < count:
                await asyncio.sleep(0.001)

    for number in range(MAX_PENDING + 1):  # keep no pause from waiting
        actor._on_message(Control(b"c", f"flush {number}", 0, "flush_cache", SOON_S))
    assert "too many operations wait" in replies.pop(f"flush {MAX_PENDING}") and not replies
    ask("late", "pause", pause, timeout_s=0.01)
    await answered(1)
    ask("ended", "pause", pause)
    ask("goes on", "continue", NO_PAUSE)
    ask("paused", "pause", pause)
    assert replies.keys() == {"late", "ended", "goes on"}
    assert "has not ended within 0.01 s" in replies["late"] and "continued" in replies["ended"]
    executor.may_end.set()
    await answered(4 + MAX_PENDING)
    assert not driver.core.state.running and len(driver.core.state.waiting) == 8
    steps = executor.steps
    actor._on_message(Control(b"c", "again", 0, "pause", SOON_S))
    actor._on_message(Control(b"c", "flush", 0, "flush_cache"))
    await answered(6 + MAX_PENDING)
    assert executor.steps == steps <= 4 and driver.core.state.memory.pool.free_size == 500
    ask("end", "continue", pause.ended(time.monotonic()))
    await serving
    assert "".join(replies[rid] for rid in replies.keys() - {"late", "ended"}) == ""
    assert True not in rested
    assert driver.outputs == {rid: reference_output(p, 12) for rid, p in prompts.items()}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fails_at", [(1,), (5,), (5, 6)])
async def test_a_failed_step_ends_its_reqs_and_nothing_else(
    overlap: bool, fails_at: tuple[int, ...]
) -> None:
    """The step queued after the failed one is taken back: it never runs on missing tokens."""
    driver = make(fails_at)
    driver.add("a", range(10), 12)
    actor = LoopOnly(driver, overlap)
    serving = asyncio.ensure_future(actor.serve())
    while "a" not in driver.finishes:
        await asyncio.sleep(0.001)
        assert threading.active_count() < 100
    finish = driver.finishes["a"]
    assert finish.type == "abort" and finish.error is not None
    assert driver.outputs.get("a", []) == reference_output(list(range(10)), 12)[: fails_at[0] - 1]
    await serving
    executor = driver.executor
    assert isinstance(executor, FailingExecutor)
    executor.fails_at = ()
    driver.add("b", range(10), 12)
    await LoopOnly(driver, overlap).serve()
    assert driver.outputs["b"] == reference_output(list(range(10)), 12)
    check_invariants(driver.core)


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_lost_device_ends_the_process_and_no_request(overlap: bool) -> None:
    """Without another run, which would fail too; the requests of the step are left as suspects."""
    driver = make(fails_at=(3,))
    assert isinstance(driver.executor, FailingExecutor)
    driver.executor.error = torch.AcceleratorError("CUDA error: an illegal memory access", 700)
    for i in range(3):
        driver.add(f"r{i}", [i, 1, 2], 9)
    actor = LoopOnly(driver, overlap)
    with pytest.raises(torch.AcceleratorError):
        await asyncio.wait_for(actor._serve(), SOON_S)
    actor._compute.close()
    assert driver.executor.steps == 3 and driver.finishes == {}
    assert actor._blame._file.read().running == [(b"c", f"r{i}") for i in range(3)]


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_step_without_memory_is_run_again_with_all_that_was_cached(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the step, not for its parts. The parts succeed: nobody has ended."""
    released: list[BaseException] = []
    monkeypatch.setattr(scheduler_proc.actor, "release_memory", released.append)
    driver = make(fails_at=(3, 4))
    assert isinstance(driver.executor, FailingExecutor)
    driver.executor.error = error = torch.OutOfMemoryError("CUDA out of memory")
    prompts = {f"r{i}": [i + 1, 1, 2] for i in range(4)}
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 9)
    await LoopOnly(driver, overlap).serve()
    assert released == [error]
    assert driver.outputs == {rid: reference_output(p, 9) for rid, p in prompts.items()}
    check_invariants(driver.core)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fails_at", [(), (1,), (4,)])
async def test_constrained_reqs_run_beside_free_ones(
    overlap: bool, fails_at: tuple[int, ...]
) -> None:
    """Also when a step fails once that other rows wait for: run again by halves, it succeeds."""
    driver = make(fails_at)
    driver.add("free", range(10), 12)
    driver.add("bound", [4, 5], 30, eos=[EOS], grammar=FakeGrammar(9))
    await LoopOnly(driver, overlap).serve()
    expected = reference_output([4, 5], 30, frozenset([EOS]), grammar=FakeGrammar(9))
    assert driver.outputs["bound"] == expected
    assert driver.outputs["free"] == reference_output(list(range(10)), 12)
    check_invariants(driver.core)


async def test_a_step_that_waits_for_a_token_does_not_wait_for_the_loop() -> None:
    """The loop is blocked from the fifth step on, until the sixth runs."""
    driver, loop = make(), asyncio.get_running_loop()
    stands_still, sixth, was_run = threading.Event(), threading.Event(), []
    executor: FakeExecutor = driver.executor
    run = executor.run

    def stand_still() -> None:
        stands_still.set()
        was_run.append(sixth.wait(5.0))

    def watched(batch: ForwardBatch) -> StepResult:
        if executor.steps == 4:
            time.sleep(0.05)  # until the plan of the sixth waits for this one
            loop.call_soon_threadsafe(stand_still)
            stands_still.wait(5.0)
        elif executor.steps == 5:
            sixth.set()
        return run(batch)

    executor.run = watched  # type: ignore[method-assign]
    driver.add("bound", [4, 5], 30, eos=[EOS], grammar=FakeGrammar(9))
    await LoopOnly(driver, overlap=True).serve()
    assert was_run == [True]


@pytest.mark.parametrize("error", [ValueError, StopIteration])
async def test_what_fails_in_the_compute_thread_ends_the_loop(error: type[Exception]) -> None:
    """The process then restarts; a loop that waited for ever would not be noticed."""

    def fail(*_: object) -> None:
        raise error("made to fail")

    driver = make()
    driver.add("a", range(10), 12, bad_ids=[[997, 998]])
    actor = LoopOnly(driver, overlap=True)
    actor._seal_deferred = fail  # type: ignore[assignment, method-assign]
    with pytest.raises((ValueError, RuntimeError)):
        await asyncio.wait_for(actor._serve(), SOON_S)
    actor._compute.close()


async def test_messages_come_while_steps_wait_for_tokens() -> None:
    driver = make()
    driver.add("free", range(10), 60)
    actor = LoopOnly(driver, overlap=True)
    actor.incarnations = [0]
    serving = asyncio.ensure_future(actor.serve())
    for i in range(60):
        grammar = FakeGrammar(9 + i % 5)
        wire = TokenizedReq(
            b"c", f"r{i}", 0, pack_ids([4, i]), FilledParams(max_new_tokens=30), eos_ids=[EOS]
        )
        actor._entry.add(wire, grammar)
        await asyncio.sleep(0)
        if i % 3 == 0:
            actor._entry.abort(Abort(b"c", f"r{i}", 0))
    await serving
    for i in range(60):
        expected = reference_output([4, i], 30, frozenset([EOS]), grammar=FakeGrammar(9 + i % 5))
        output = driver.outputs.get(f"r{i}", [])
        assert output == (expected[: len(output)] if i % 3 == 0 else expected)
    assert driver.outputs["free"] == reference_output(list(range(10)), 60)
    check_invariants(driver.core)


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_poisoned_row_ends_alone(overlap: bool) -> None:
    driver = make()
    driver.executor.poison = frozenset([999])
    prompts = {f"r{i}": [i + 1, *range(i % 3, 20)] for i in range(9)}
    for rid, prompt in prompts.items():
        driver.add(rid, prompt, 12)
    driver.add("bad", [1, *range(1, 15), 999], 12)
    await LoopOnly(driver, overlap).serve()
    assert driver.finishes.pop("bad").error is not None
    assert all(finish.type == "length" for finish in driver.finishes.values())
    assert driver.outputs == {rid: reference_output(p, 12) for rid, p in prompts.items()}
    check_invariants(driver.core)


def test_nobody_waits_for_a_request_whose_grammar_is_loaded() -> None:
    """The pace says that it has left the queue; otherwise an idle server might refuse for ever."""
    actor = LoopOnly(make(), overlap=True)
    actor.incarnations = [0]
    actor._intake = SimpleNamespace(add=lambda req: None)  # type: ignore[assignment]
    actor._on_message(TokenizedReq(b"c", "r", 0, pack_ids([1]), FilledParams(), grammar="k"))
    assert actor._entry.wake.is_set()
    pace = actor._reports.pace.report(0.0, at_once=True)
    assert pace is not None
    assert (pace.left, pace.left_tokens) == (1, 1)


async def test_a_step_that_raises_is_not_measured() -> None:
    driver = make(fails_at=(2, 3))
    actor = LoopOnly(driver, overlap=True)
    for i in range(2):
        driver.add(str(i), [i, 1, 2], 3)
    await actor.serve()
    measured = len(actor._clock.steps)
    assert measured == driver.executor.steps - 2
