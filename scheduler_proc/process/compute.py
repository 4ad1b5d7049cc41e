"""The compute thread: runs steps one after the other, and does not wait for the loop in between.

The scheduler's actor owns one. A step is queued while the previous one runs, and gets that one's
tokens here; or a function of the actor's makes it here from what the previous one has sampled. The
loop learns of a step's end after the next one has started: waking the loop takes time, and then
both threads want the interpreter. Between two steps some of a picture or video may be encoded.

If the executor is asynchronous, the step is launched while the previous one runs on the device,
and gets its tokens there. Another thread then waits for the ends (`ResultThread`).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.batch import StepResult
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_cost import NOTHING
from scheduler_proc.crash.journal import Blame
from scheduler_proc.executor.base import AsyncExecutor, Executor, asynchronous, seeing
from scheduler_proc.process.in_flight import InFlight, ResultThread
from scheduler_proc.process.metrics import StepClock
from srt.ring.crash_file import Name
from srt.wire.media import MediaItem

MAX_START_S = 0.005  # how long the loop waits for a step to start before it goes on


class Launched(NamedTuple):
    """A step that is queued or runs in the compute thread, since `queued_s` of time.perf_counter.
    The loop waits for `ended` before it asks for the `result`."""

    step: Step
    result: "Future[StepResult]"
    ended: "asyncio.Future[None]"
    queued_s: float


class Encoding(NamedTuple):
    """A part of an item, or a slice of one, that is queued or encoded in the compute thread, for
    these requests. The result is whether the part is done."""

    item: MediaItem
    names: list[Name]
    result: "Future[bool]"
    ended: "asyncio.Future[None]"


class _News(NamedTuple):
    """What the loop gets: a future's value, and the job that has ended, to let go of: it may hold
    the last reference to a step, whose rows take long to free."""

    future: "asyncio.Future[Any]"
    value: Any
    job: Callable[[], None] | None = None


class ComputeThread:
    """Runs steps on `executor`, which `load` makes, and notes in `clock` what they take, and in
    `blame`, if there is one, whose they are."""

    executor: Executor
    blame: Blame | None = None
    is_encoding = False

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._job: Callable[[], None] | None = None
        self._step: Step | None = None
        self._results = ResultThread(clock, lambda flight: _tell([_News(flight.ended, None)]))
        self._flight: InFlight | None = None  # the step that was launched last
        self._has_encoded = False  # since then
        self._begun: bytes | None = None  # the item of a part that is not done
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._news: list[_News] = []  # not passed on to the loop yet
        self.thread = threading.Thread(target=self._work, name="compute", daemon=True)
        self.thread.start()

    @property
    def job(self) -> object | None:
        """What it is at, if anything: the same object as long as that is one step. Any thread may
        look."""
        return self._results.at or self._job

    @property
    def step(self) -> Step | None:
        """The step that has begun last. Any thread may look."""
        at = self._results.at
        return self._step if at is None else at.step

    async def load(self, make: Callable[[], Executor]) -> Executor:
        """Make the executor in the thread that will run it."""
        made: Future[Executor] = Future()
        await self._submit(made, lambda ended: make())
        self.executor = made.result()
        return self.executor

    def settled(self, step: Step) -> None:
        """The step is committed, or its rows have ended."""
        if self.blame is not None:
            self.blame.end(step)

    def close(self) -> None:
        """No more steps."""
        self._jobs.put(None)

    def launch(self, step: Step, before: Launched | None) -> Launched:
        """Queue the step after the step `before`, whose tokens it needs. If that has ended, the
        thread is idle: let it start on the step before the loop does anything else."""
        is_idle = before is not None and before.result.done() and not self.is_encoding
        started = threading.Event() if is_idle else None
        tell = _nobody_waits if started is None else started.set
        result: Future[StepResult] = Future()
        previous = None if before is None else before.result
        ended = self._submit(result, lambda ended: self._begin(step, previous, tell, result, ended))
        if started is not None:
            started.wait(MAX_START_S)
        return Launched(step, result, ended, time.perf_counter())

    async def launch_made(
        self, make: Callable[[StepResult], Step | None], before: Launched
    ) -> Launched | None:
        """Run the step that `make`, called in the thread, makes from the result of the step
        `before`. Returns when it starts; None if `make` gives none or the step before raised.

        Raises what `make` raises.
        """
        made: asyncio.Future[Step | None] = asyncio.get_running_loop().create_future()
        result: Future[StepResult] = Future()
        previous = before.result
        ended = self._submit(
            result, lambda ended: self._begin_made(make, previous, made, result, ended)
        )
        step = await made
        if step is None:
            result.result()  # raises what `make` has raised
            return None
        return Launched(step, result, ended, time.perf_counter())

    def encode(
        self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float, names: list[Name]
    ) -> Encoding:
        """Queue a part of an item, which these requests need, behind the steps that are queued; or
        about `seconds` of it, if the executor does not compute beside the host."""
        result: Future[bool] = Future()
        ended = self._submit(result, lambda ended: self._encode(item, pixels, part, seconds, names))
        return Encoding(item, names, result, ended)

    def drop_media(self, digests: list[bytes]) -> None:
        """Have the executor forget these items, after the steps that are queued."""
        self._submit(Future(), lambda ended: self._drop_media(digests))

    def _submit(
        self, result: "Future[Any]", call: "Callable[[asyncio.Future[None]], Any]"
    ) -> "asyncio.Future[None]":
        """Have the thread call `call` and store its result; returns a future for the loop, with
        which it is called. If it returns an InFlight, both come later."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def job() -> None:
            try:
                value = call(ended)
                if isinstance(value, InFlight):
                    self._results.add(value)
                    return
                result.set_result(value)
            except BaseException as error:
                result.set_exception(error)
            self._news.append(_News(ended, None, job))

        self._jobs.put(job)
        return ended

    # ---- in the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._job = job
            job()
            self._job = None
            if self._jobs.empty():
                self._tell()
        if self._begun is not None:
            self._drop_media([self._begun])
        self._results.close()

    def _begin_made(
        self,
        make: Callable[[StepResult], Step | None],
        previous: "Future[StepResult]",
        made: "asyncio.Future[Step | None]",
        result: "Future[StepResult]",
        ended: "asyncio.Future[None]",
    ) -> StepResult | InFlight | None:
        step = None
        try:
            before = previous.result()
        except BaseException:
            self._news.append(_News(made, None))
            return None
        try:
            step = make(before)
        finally:
            self._news.append(_News(made, step))
        return None if step is None else self._begin(step, previous, _nobody_waits, result, ended)

    def _begin(
        self,
        step: Step,
        previous: "Future[StepResult] | None",
        started: Callable[[], None],
        result: "Future[StepResult]",
        ended: "asyncio.Future[None]",
    ) -> StepResult | InFlight:
        """Run the step, or launch it; `started` is called when the loop may go on."""
        if (executor := asynchronous(self.executor)) is None:
            return self._run(step, None if previous is None else previous.result(), started)
        try:
            flight = self._flight = self._launch(executor, step, previous, result, ended)
            return flight
        finally:
            self._tell()
            started()

    def _run(
        self, step: Step, before: StepResult | None, started: Callable[[], None]
    ) -> StepResult:
        step.finalize(before)
        self._step = step
        if self.blame is not None:
            self.blame.begin(step)
        started()
        self._clock.begin(time.perf_counter())
        self._tell()
        size = NOTHING  # a step that raises says nothing of how long others take
        try:
            result = self.executor.run(step.batch)
            size = step.size
            return result
        finally:
            self._clock.end(time.perf_counter(), size)

    def _launch(
        self,
        executor: AsyncExecutor,
        step: Step,
        previous: "Future[StepResult] | None",
        result: "Future[StepResult]",
        ended: "asyncio.Future[None]",
    ) -> InFlight:
        before = None
        if previous is not None and not previous.done():
            before = self._flight
            assert before is not None and before.result is previous
            if self.blame is not None and self.blame.on_trial(step, before.step):
                previous.exception()  # waits: nothing else may be on the device
        if previous is not None and previous.done():
            step.finalize(previous.result())
            previous = before = None
        self._step = step
        if self.blame is not None:
            self.blame.begin(step, None if before is None else before.step)
        flight = InFlight(step, result, ended, previous, time.perf_counter())
        flight.is_measured, self._has_encoded = not self._has_encoded, False
        if before is None or before.pending is not None:
            try:
                flight.pending = executor.launch(step, None if before is None else before.pending)
            except Exception as error:
                flight.error = error
        return flight

    def _encode(
        self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float, names: list[Name]
    ) -> bool:
        executor = seeing(self.executor)
        assert executor is not None
        self._tell()  # of the step before
        flight = self._flight
        running = None if flight is None or flight.result.done() else flight
        if running is not None and self.blame is not None and self.blame.is_trial_of(names):
            running.result.exception()  # waits: nothing else may be on the device
            running = None
        step = None if running is None else running.step
        note = nullcontext() if self.blame is None else self.blame.encoding(names, step)
        began_s = time.perf_counter()
        self._begun = item.digest
        self.is_encoding = self._has_encoded = True
        try:
            with note:
                is_done = executor.encode(item, pixels, part, seconds)
            self._begun = None if is_done else self._begun
            return is_done
        finally:
            self.is_encoding = False
            took_s = time.perf_counter() - began_s
            self._clock.encoded(took_s, is_between=asynchronous(self.executor) is None)

    def _drop_media(self, digests: list[bytes]) -> None:
        executor = seeing(self.executor)
        assert executor is not None
        for digest in digests:
            executor.drop_media(digest)

    def _tell(self) -> None:
        """The loop of what has happened."""
        news, self._news = self._news, []
        if news:
            _tell(news)


def _nobody_waits() -> None:
    """For a step to start."""


def _tell(news: list[_News]) -> None:
    """Pass these on to the loop, if there still is one."""
    if not (loop := news[0].future.get_loop()).is_closed():
        loop.call_soon_threadsafe(_pass_on, news)


def _pass_on(news: list[_News]) -> None:
    for future, value, _ in news:
        if not future.done():  # else whoever waited has been cancelled
            future.set_result(value)
