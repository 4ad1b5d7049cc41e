"""Steps that are on a device: a thread waits for them, in the order in which they were launched.

The compute thread launches a step while the one before runs; this one notes when each ends. A step
that was launched on the samples of one that fails ends as that did, and nothing of it counts.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from scheduler_proc.batch import StepResult
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_cost import NOTHING
from scheduler_proc.executor.base import Pending
from scheduler_proc.process.metrics import StepClock


@dataclass(slots=True)
class InFlight:
    """A step that was launched at `began_s` (of time.perf_counter), or could not be (`error`; the
    steps before it end first all the same).

    `previous` is the result of the step before, if that ran when this was launched.
    """

    step: Step
    result: "Future[StepResult]"
    ended: "asyncio.Future[None]"
    previous: "Future[StepResult] | None"
    began_s: float
    pending: Pending | None = None
    error: BaseException | None = None
    is_measured: bool = True  # whether the device is at nothing else between the step before and it


class ResultThread:
    """Waits for steps, notes in `clock` what they take, and calls `ended` with each. The thread
    starts with the first step. Others may look at the step that it waits for, `at`."""

    at: InFlight | None = None

    def __init__(self, clock: StepClock, ended: Callable[[InFlight], None]) -> None:
        self._clock, self._ended = clock, ended
        self._flights: SimpleQueue[InFlight | None] = SimpleQueue()
        self._ended_s = 0.0
        self._thread: threading.Thread | None = None

    def add(self, flight: InFlight) -> None:
        """Wait for this one after all that were added before. Called from one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="results", daemon=True)
            self._thread.start()
        self._flights.put(flight)

    def close(self) -> None:
        """No more steps."""
        self._flights.put(None)

    def _work(self) -> None:
        while (flight := self._flights.get()) is not None:
            self.at = flight
            try:
                flight.result.set_result(self._awaited(flight))
            except BaseException as error:
                flight.result.set_exception(error)
            self.at = None
            self._ended(flight)

    def _awaited(self, flight: InFlight) -> StepResult:
        try:
            if flight.previous is not None:
                # On the host, for the parts of the step if it fails.
                flight.step.finalize(flight.previous.result())
        except BaseException:
            with contextlib.suppress(Exception):
                _result(flight)
            raise
        self._clock.begin(max(flight.began_s, self._ended_s))
        size = NOTHING  # a step that raises says nothing of how long others take
        try:
            result = _result(flight)
            if flight.is_measured:
                size = flight.step.size
            return result
        finally:
            self._ended_s = time.perf_counter()
            self._clock.end(self._ended_s, size)


def _result(flight: InFlight) -> StepResult:
    if flight.pending is None:
        assert flight.error is not None
        raise flight.error
    return flight.pending.result()
