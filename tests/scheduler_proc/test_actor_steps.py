"""The actor's loop around the core, without sockets: the compute thread runs ahead of the loop."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from scheduler_proc.actor import SchedulerActor
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.invariants import check_invariants
from scheduler_proc.stats import StatsLog
from scheduler_proc.step_clock import StepClock
from scheduler_proc.trace import TraceRecorder
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor, reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar


class FailingExecutor(FakeExecutor):
    """Fails at the steps listed in `fails_at`; notes which threads called it."""

    fails_at: tuple[int, ...] = ()

    def run(self, batch: ForwardBatch) -> StepResult:
        if self.steps + 1 in self.fails_at:
            self.steps += 1
            raise RuntimeError("made to fail")
        return super().run(batch)


class LoopOnly(SchedulerActor):
    """The actor's loop over a driver's core; what it tells goes to the driver."""

    def __init__(self, driver: Driver, overlap: bool) -> None:
        self.args = SimpleNamespace(check_invariants=True)  # type: ignore[assignment]
        self.driver = driver
        self._core = driver.core
        self._executor = driver.executor
        self._overlap = overlap
        self._compute = ThreadPoolExecutor(1)
        self._trace = TraceRecorder("", driver.config)
        self._stats_log = StatsLog(driver.core)
        self._clock = StepClock()
        self._wake = asyncio.Event()
        self._pending_flushes = {}

    def _tell(self) -> None:
        self.driver._collect()

    async def serve(self, seconds: float = 10.0) -> None:
        """Until the core has nothing left to do."""
        loop = asyncio.ensure_future(self._serve())
        async with asyncio.timeout(seconds):
            while self._core.has_work:
                await asyncio.sleep(0.001)
                assert not loop.done(), loop.exception()
        loop.cancel()
        self._compute.shutdown()


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


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fails_at", [(1,), (5,), (5, 6)])
async def test_a_failed_step_ends_its_reqs_and_nothing_else(
    overlap: bool, fails_at: tuple[int, ...]
) -> None:
    """The step queued behind the failed one is taken back: it never runs on missing tokens."""
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
@pytest.mark.parametrize("fails_at", [(), (1,), (4,)])
async def test_constrained_reqs_run_beside_free_ones(
    overlap: bool, fails_at: tuple[int, ...]
) -> None:
    """Also when a step fails that others' rows were waiting for: their plan is taken back."""
    driver = make(fails_at)
    driver.add("free", range(10), 12)
    driver.add("bound", [4, 5], 30, eos=[EOS], grammar=FakeGrammar(9))
    await LoopOnly(driver, overlap).serve()
    executor = driver.executor
    assert isinstance(executor, FailingExecutor)
    if fails_at:
        assert {finish.type for finish in driver.finishes.values()} == {"abort"}
        executor.fails_at = ()
        driver.add("again", [4, 5], 30, eos=[EOS], grammar=FakeGrammar(9))
        await LoopOnly(driver, overlap).serve()
    expected = reference_output([4, 5], 30, frozenset([EOS]), grammar=FakeGrammar(9))
    assert driver.outputs["again" if fails_at else "bound"] == expected
    assert (
        driver.outputs.get("free", [])
        == reference_output(list(range(10)), 12)[: fails_at[0] - 1 if fails_at else None]
    )
    check_invariants(driver.core)
