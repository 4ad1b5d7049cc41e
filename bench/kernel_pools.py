"""Whole steps over KV pools of 16-bit floats and of 16-bit integers, in turns: the table of
`bench.kernels --pools`."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

from bench.kernel_steps import STEPS, fill_pool
from bench.roofline import Runner, number, warm_up
from scheduler_proc.batch import ForwardBatch
from scheduler_proc.executor.native_executor import NativeExecutor

KINDS = ("float16", "int16")
PHASE = "attention"

POOL_COLUMNS = ("step", *(f"{kind}, ms" for kind in KINDS), "ratio", "ratio of attention")


class Ran(NamedTuple):
    """A run of a step: seconds, and those of its attention."""

    step_s: float
    attention_s: float


class PoolRow(NamedTuple):
    """A step: median seconds by kind of pool, and how many times as long the first kind takes: the
    median of the turns' ratios."""

    name: str
    seconds: tuple[float, ...]
    ratio: float
    attention_ratio: float

    def cells(self) -> list[str]:
        """Under POOL_COLUMNS."""
        ratios = (f"{self.ratio:.2f}", f"{self.attention_ratio:.2f}")
        return [self.name, *(number(1e3 * s) for s in self.seconds), *ratios]


def pool_rows(executors: Mapping[str, NativeExecutor], runner: Runner) -> Iterator[PoolRow]:
    """The steps that were asked for, of two executors, by KINDS."""
    for executor in executors.values():
        fill_pool(executor._pool)
    for step in STEPS:
        if not runner.wants(step.name):
            continue
        batch = step.batch(executors[KINDS[0]].vocab_size)
        for executor in executors.values():
            warm_up([partial(executor.run, batch)])
        turns = [[_ran(executors[kind], batch) for kind in KINDS] for _ in range(runner.repeat)]
        seconds = tuple(median(ran.step_s for ran in runs) for runs in zip(*turns, strict=True))
        yield PoolRow(
            step.name,
            seconds,
            median(a.step_s / b.step_s for a, b in turns),
            median(a.attention_s / b.attention_s for a, b in turns),
        )


def _ran(executor: NativeExecutor, batch: ForwardBatch) -> Ran:
    executor.profile()
    begun = time.perf_counter()
    executor.run(batch)
    seconds = time.perf_counter() - begun
    return Ran(seconds, executor.profile()[PHASE])
