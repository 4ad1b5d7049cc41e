"""What a kernel's time is compared with: the bytes it must read and the arithmetic it must do, at
the speeds that the machine showed in the same run. Also times calls and prints Markdown tables.

Used by the parts of `bench.kernels`.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from statistics import median
from typing import Literal, NamedTuple

# Bytes that operations rotate over: like the embedded model's weights, too many for any L2.
WORKING_SET = 96_000_000
MIN_S = 0.3  # that a row is measured for, however few runs are asked for
WARM_UPS = 2

Call = Callable[[], object]
Arithmetic = Literal["fp32", "int8", "bf16"]


class Work(NamedTuple):
    """What an operation cannot do without. A multiplication and its addition are two flops."""

    num_bytes: float
    flops: float = 0.0
    arithmetic: Arithmetic = "fp32"


class Bound(NamedTuple):
    """The least time that the peaks allow, and which of them sets it."""

    seconds: float
    by: Literal["read", "fp32", "int8", "bf16"]


class Peaks(NamedTuple):
    """The machine's speeds, per second: bytes that all threads read, and flops. `bf16` is measured
    where the level has matrix tiles."""

    read: float
    fp32: float
    int8: float
    bf16: float = math.inf

    def bound(self, work: Work) -> Bound:
        """Reading and computing overlap, so the slower one counts."""
        read_s = work.num_bytes / self.read
        peak: float = getattr(self, work.arithmetic)
        compute_s = work.flops / peak
        if read_s >= compute_s:
            return Bound(read_s, "read")
        return Bound(compute_s, work.arithmetic)


class Timing(NamedTuple):
    """Seconds of one call."""

    median_s: float
    best_s: float
    runs: int

    @property
    def calls(self) -> int:
        """All runs, with those that were not timed."""
        return self.runs + WARM_UPS


class Measured(NamedTuple):
    """One row of a table."""

    name: str
    timing: Timing
    work: Work


class Runner(NamedTuple):
    """Which rows are measured, and how often at least."""

    only: str = ""
    repeat: int = 7

    def wants(self, name: str) -> bool:
        """Whether the row of that name was asked for."""
        return self.only in name

    def time(self, calls: Sequence[Call]) -> Timing:
        """Time `calls` one by one, in turns."""
        warm_up(calls)
        return Timing(*_summary(list(self._times(calls))))

    def _times(self, calls: Sequence[Call]) -> Iterator[float]:
        started = time.perf_counter()
        for count, call in enumerate(cycle(calls), 1):
            begun = time.perf_counter()
            call()
            ended = time.perf_counter()
            yield ended - begun
            if count >= self.repeat and ended - started >= MIN_S:
                return


def _summary(times: Sequence[float]) -> tuple[float, float, int]:
    return median(times), min(times), len(times)


def warm_up(calls: Sequence[Call]) -> None:
    """Run a few calls that are not timed."""
    for call in islice(cycle(calls), WARM_UPS):
        call()


def copies_of(num_bytes: int, most: int = 1000) -> int:
    """How many things of that size make up the working set."""
    return min(most, max(1, -(-WORKING_SET // num_bytes)))


OP_COLUMNS = ("op", "µs", "best", "GB/s", "GFLOP/s", "bound, µs", "by", "share")


def op_cells(row: Measured, peaks: Peaks) -> list[str]:
    """A row under OP_COLUMNS: all rates and the share of the bound are the median run's."""
    seconds, work, bound = row.timing.median_s, row.work, peaks.bound(row.work)
    return [
        row.name,
        number(1e6 * seconds),
        number(1e6 * row.timing.best_s),
        number(work.num_bytes / seconds / 1e9),
        number(work.flops / seconds / 1e9),
        number(1e6 * bound.seconds),
        bound.by,
        percent(bound.seconds / seconds),
    ]


def number(value: float) -> str:
    """With three digits, or with all those before the point."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, legible as plain text too; columns after the first are set flush right."""
    widths = [max(4, *(len(line[i]) for line in (columns, *rows))) for i in range(len(columns))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(line, widths) for line in (columns, rule, *rows))


class TablePrinter:
    """Prints a Markdown table row by row, as the rows are measured; nothing if there are none."""

    def __init__(self, caption: str, columns: Sequence[str], first_width: int = 48) -> None:
        self._caption, self._columns = caption, columns
        self._widths = [first_width, *(max(7, len(column)) for column in columns[1:])]
        self._begun = False

    def add(self, *cells: str) -> None:
        """Print a row; cells that are wider than usual stick out."""
        if not self._begun:
            rule = ["-" * self._widths[0], *("-" * (width - 1) + ":" for width in self._widths[1:])]
            print(f"{self._caption}\n\n{_line(self._columns, self._widths)}")
            print(_line(rule, self._widths))
            self._begun = True
        print(_line(cells, self._widths), flush=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    aligned[0] = cells[0].ljust(widths[0])
    return f"| {' | '.join(aligned)} |"
