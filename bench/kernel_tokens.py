"""Rows of a few new tokens, as jumps and drafts make them, against the tokens of a long prefill:
the tables of `bench.kernels --tokens`.

A decode of one token waits for the weights, so the next ones could cost little: what they share is
read once. The steps are timed in turns; on one thread by its CPU time, which other work on the
machine distorts less than the clock on the wall.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

from bench.kernel_steps import Step, fill_pool
from bench.roofline import number, warm_up
from scheduler_proc.executor.native_executor import NativeExecutor

CONTEXT, PREFILL = 256, 512
MOST_TOKENS = 9
RUNS = 3  # of a short step in each turn

PHASE_COLUMNS = (
    *("ms of", "1 token", f"{MOST_TOKENS} tokens", "each further one"),
    f"each of a prefill of {PREFILL}",
)
TOKEN_COLUMNS = ("tokens", "ms", "each further one, ms", "of a prefill's", "the last one's")


class TokenRow(NamedTuple):
    """A step of `tokens` of one row: seconds; those of each token after the first, on average, and
    of the last one, as shares of a token's of the prefill."""

    tokens: int
    seconds: float
    further_s: float
    share: float
    last_share: float

    def cells(self) -> list[str]:
        """Under TOKEN_COLUMNS."""
        times = [number(1e3 * self.seconds), number(1e3 * self.further_s)]
        return [f"{self.tokens}", *times, f"{self.share:.2f}", f"{self.last_share:.2f}"]


class TokenRuns(NamedTuple):
    """Medians by the number of new tokens: seconds of a step, and of its phases as one thread saw
    them."""

    seconds: dict[int, float]
    phases: dict[int, dict[str, float]]


def token_runs(executor: NativeExecutor, threads: int, repeat: int) -> TokenRuns:
    """One new token to MOST_TOKENS, and PREFILL, in `repeat` turns."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    fill_pool(executor._pool)
    counts = [*range(1, MOST_TOKENS + 1), PREFILL]
    steps = {
        count: Step("", 1, count + (CONTEXT if count <= MOST_TOKENS else 0), extend=count)
        for count in counts
    }
    calls = {n: partial(executor.run, step.batch(executor.vocab_size)) for n, step in steps.items()}
    times: dict[int, list[float]] = {count: [] for count in counts}
    phases: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for call in calls.values():
        warm_up([call])
    for _ in range(repeat):
        for count, call in calls.items():
            for _ in range(RUNS if count <= MOST_TOKENS else 1):
                executor.profile()
                times[count].append(_seconds(call, clock))
                phases[count].append(executor.profile())
    return TokenRuns(
        {count: median(taken) for count, taken in times.items()},
        {
            count: {name: median(run[name] for run in taken) for name in taken[0]}
            for count, taken in phases.items()
        },
    )


def token_rows(runs: TokenRuns) -> Iterator[TokenRow]:
    """Of two tokens and more."""
    seconds = runs.seconds
    each = seconds[PREFILL] / PREFILL
    for count in range(2, MOST_TOKENS + 1):
        further = (seconds[count] - seconds[1]) / (count - 1)
        last = seconds[count] - seconds[count - 1]
        yield TokenRow(count, seconds[count], further, further / each, last / each)


def phase_cells(runs: TokenRuns) -> Iterator[list[str]]:
    """Rows under PHASE_COLUMNS: where the time of a row's further tokens goes."""
    one, most, prefill = (runs.phases[count] for count in (1, MOST_TOKENS, PREFILL))
    for name in one:
        seconds = (one[name], most[name], (most[name] - one[name]) / (MOST_TOKENS - 1))
        yield [name, *(number(1e3 * s) for s in (*seconds, prefill[name] / PREFILL))]


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    call()
    return clock() - begun
