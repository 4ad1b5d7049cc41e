"""Whole steps of the embedded model on the native executor: the rows of `bench.kernels --steps`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from bench.roofline import Peaks, Runner, Timing, number, percent, warm_up
from scheduler_proc.batch import ForwardBatch
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.executor.native_pool import KVPool
from scheduler_proc.models.config import DecoderConfig
from tests.scheduler_proc.ragged import Row, make_batch

SLOTS = 32 * 1024


class Step(NamedTuple):
    """`rows` requests with `shared` slots in common, `own` more each, and `extend` new tokens."""

    name: str
    rows: int
    own: int
    shared: int = 0
    extend: int = 1
    permuted: bool = False

    @property
    def tokens(self) -> int:
        return self.rows * self.extend

    def batch(self, vocab: int) -> ForwardBatch:
        """A greedy step with random ids."""
        rng = np.random.default_rng(0)
        slots = rng.permutation(SLOTS) if self.permuted else np.arange(SLOTS)
        own = slots[self.shared : self.shared + self.rows * self.own]
        rows = [
            Row(
                rng.integers(0, vocab, self.extend),
                np.concatenate([slots[: self.shared], part]),
            )
            for part in own.reshape(self.rows, self.own)
        ]
        return make_batch(rows)


STEPS = (
    Step("decode B=1 ctx=16", 1, 16),
    Step("decode B=1 ctx=512", 1, 512),
    Step("decode B=8 ctx=512", 8, 512),
    Step("decode B=8 ctx=512, permuted", 8, 512, permuted=True),
    Step("decode B=32 ctx=64", 32, 64),
    Step("decode B=32 ctx=512", 32, 512),
    Step("decode B=32 ctx=1500 shared + 64", 32, 64, shared=1500),
    *(Step(f"{n} tokens of a row, ctx=512", 1, 512 + n, extend=n) for n in (2, 4, 9)),
    Step("8 rows of 2 tokens, ctx=1536 shared + 66", 8, 66, shared=1536, extend=2),
    Step("prefill 128", 1, 128, extend=128),
    Step("prefill 512", 1, 512, extend=512),
    Step("prefill 512 over 1500 cached", 1, 2012, extend=512),
)


class StepWork(NamedTuple):
    """What a step cannot do without: bytes to read, and flops of its two kinds of products."""

    num_bytes: float
    linear: float
    attention: float


class MeasuredStep(NamedTuple):
    """`phases` are mean seconds per step as thread 0 saw them."""

    step: Step
    timing: Timing
    phases: dict[str, float]
    work: StepWork


def step_rows(
    executor: NativeExecutor, config: DecoderConfig, runner: Runner
) -> Iterator[MeasuredStep]:
    """The steps that were asked for."""
    fill_pool(executor._pool)
    for step in STEPS:
        if runner.wants(step.name):
            calls = [partial(executor.run, step.batch(executor.vocab_size))]
            warm_up(calls)
            executor.profile()
            timing = runner.time(calls)
            phases = executor.profile()
            mean = {name: seconds / timing.calls for name, seconds in phases.items()}
            yield MeasuredStep(step, timing, mean, step_work(executor, config, step))


def fill_pool(pool: KVPool) -> None:
    """Pages that were never written are all the same page of zeros, which is read too fast."""
    numbers = np.random.default_rng(0).standard_normal(pool.elements.shape[-1])
    if pool.scales is not None:
        numbers = np.rint(1000 * numbers)
        pool.scales[:] = 1e-3
    pool.elements[:] = numbers


def step_work(executor: NativeExecutor, config: DecoderConfig, step: Step) -> StepWork:
    """Every weight is read once, the tied embedding as the head, and every slot once."""
    slot_bytes = executor.pool_bytes / executor.max_total_tokens
    attended = config.heads * config.head_dim
    projected = attended + 2 * config.kv_heads * config.head_dim
    layer = config.hidden * (projected + attended + 3 * config.intermediate)
    head = step.rows * config.hidden * config.vocab_size
    before = step.shared + step.own - step.extend
    pairs = step.tokens * before + step.rows * step.extend * (step.extend + 1) // 2
    return StepWork(
        executor.weight_bytes + (step.shared + step.rows * step.own) * slot_bytes,
        2.0 * (step.tokens * config.layers * layer + head),
        4.0 * config.layers * pairs * attended,
    )


STEP_COLUMNS = ("step", "ms", "best", "tok/s", "read", "linear", "attention")


def step_cells(row: MeasuredStep, peaks: Peaks, has_tiles: bool) -> list[str]:
    """A row under STEP_COLUMNS; the rate and the shares are the median run's."""
    seconds, work = row.timing.median_s, row.work
    quantized, attended = ("bf16", "bf16") if has_tiles else ("int8", "fp32")
    shares = (
        work.num_bytes / peaks.read,
        work.linear / getattr(peaks, quantized),
        work.attention / getattr(peaks, attended),
    )
    best = number(1e3 * row.timing.best_s)
    rate = number(row.step.tokens / seconds)
    return [
        row.step.name,
        number(1e3 * seconds),
        best,
        rate,
        *(percent(s / seconds) for s in shares),
    ]


def phase_table(rows: Sequence[MeasuredStep]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells: milliseconds of each phase, for every step."""
    columns = ["mean ms of", *(rows[0].phases if rows else ())]
    cells = [[r.step.name, *(number(1e3 * s) for s in r.phases.values())] for r in rows]
    return columns, cells
