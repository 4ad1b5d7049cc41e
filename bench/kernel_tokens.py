"""Rows of a few new tokens, as jumps and drafts make them, against the tokens of a long prefill:
the table of `bench.kernels --tokens`.

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


def token_rows(executor: NativeExecutor, threads: int, repeat: int) -> Iterator[TokenRow]:
    """Rows of two tokens and more, of medians over `repeat` turns."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    fill_pool(executor._pool)
    counts = [*range(1, MOST_TOKENS + 1), PREFILL]
    steps = {
        count: Step("", 1, count + (CONTEXT if count <= MOST_TOKENS else 0), extend=count)
        for count in counts
    }
    calls = {n: partial(executor.run, step.batch(executor.vocab_size)) for n, step in steps.items()}
    times: dict[int, list[float]] = {count: [] for count in counts}
    for call in calls.values():
        warm_up([call])
    for _ in range(repeat):
        for count, call in calls.items():
            for _ in range(RUNS if count <= MOST_TOKENS else 1):
                times[count].append(_seconds(call, clock))
    seconds = {count: median(taken) for count, taken in times.items()}
    each = seconds[PREFILL] / PREFILL
    for count in range(2, MOST_TOKENS + 1):
        further = (seconds[count] - seconds[1]) / (count - 1)
        last = seconds[count] - seconds[count - 1]
        yield TokenRow(count, seconds[count], further, further / each, last / each)


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    begun = clock()
    call()
    return clock() - begun
