"""`python -m bench.scheduler_lag`: how long the model waits between steps, by how many of the
requests have penalties, whose rows must wait for the step before.

The scheduler's own loop, without sockets, over an executor that sleeps for --step-ms. Wall
milliseconds between the end of a step and the start of the next, median; the turns are interleaved.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from types import SimpleNamespace

from bench.roofline import markdown
from bench.scheduler import Loop, null_result
from scheduler_proc.actor import SWITCH_INTERVAL_S, SchedulerActor
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.recovery import Recovery
from scheduler_proc.scheduler import Scheduler
from scheduler_proc.stats import StatsLog
from scheduler_proc.step_clock import StepClock
from scheduler_proc.trace import TraceRecorder

CONTEXT, OUTPUTS = 512, 40
FIRST_STEPS = 3  # are left out: prefills, and the loop's beginning


class SleepingExecutor:
    """Gives the interpreter to the loop while it runs, as a model does."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def run(self, batch: ForwardBatch) -> StepResult:
        time.sleep(self._step_s)
        return null_result(batch)


class NothingToDo(Exception):
    """Ends the loop."""


class LoopAlone(SchedulerActor):
    """The loop over one core; what it tells goes nowhere."""

    def __init__(self, core: Scheduler, step_s: float) -> None:
        self.args = SimpleNamespace(check_invariants=False)  # type: ignore[assignment]
        self._core = core
        self._executor = SleepingExecutor(step_s)  # type: ignore[assignment]
        self._overlap = True
        self._compute = ThreadPoolExecutor(1)
        self._trace = TraceRecorder("", core.config)
        self._recovery = Recovery(core, self._trace)
        self._stats_log = StatsLog(core)
        self._clock = StepClock()
        self._wake = asyncio.Event()
        self._pending_flushes = {}

    async def _sleep(self) -> None:
        raise NothingToDo

    def _tell(self) -> None:
        self._core.take_output()

    def _tell_pace(self, *, at_once: bool = False) -> None:
        pass

    async def steps(self) -> list[float]:
        """Seconds of each step with what comes before it, until all is done."""
        with contextlib.suppress(NothingToDo):
            await self._serve()
        self._compute.shutdown()
        return [seconds for _, _, seconds in self._clock.steps]


def waits_ms(rows: int, penalised: int, step_s: float) -> list[float]:
    """Of each step of `rows` requests that decode."""
    loop = Loop(
        max_total_tokens=rows * (CONTEXT + 2 * OUTPUTS),
        context_len=2 * CONTEXT,
        max_running_requests=rows,
        chunked_prefill_size=rows * CONTEXT,
    )
    for i in range(rows):
        penalty = 0.5 if i < penalised else 0.0
        loop.add(loop.tokens(CONTEXT), OUTPUTS, presence_penalty=penalty)
    seconds = asyncio.run(LoopAlone(loop.core, step_s).steps())
    return [1e3 * (each - step_s) for each in seconds[FIRST_STEPS:]]


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler_lag",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--penalised", type=int, nargs="+", default=[0, 1, 8])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args(argv)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    waits: dict[int, list[float]] = {count: [] for count in args.penalised}
    for _ in range(args.repeat):
        for count in args.penalised:
            waits[count] += waits_ms(args.rows, count, args.step_ms / 1e3)
    lines = [[f"{args.rows}", f"{n}", f"{median(times):.2f}"] for n, times in waits.items()]
    print(markdown(("rows", "penalised", "waits, ms"), lines))


if __name__ == "__main__":
    main()
