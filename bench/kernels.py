"""`python -m bench.kernels`: the native engine's kernels against what the machine can do.

Prints Markdown tables: the machine's peaks as measured in this very run, single operations, whole
steps of the embedded model, and where the time of these goes.

An operation is called on its own from Python. Such a call costs something however little it does
(the machine table has the figures): it makes and clears its memory for every call, and copies the
result of a linear layer; attention plans its work, which a step does once for all layers. So rows
of a few microseconds, or of many results, show a kernel slower than it is: for these, trust the
phases of the whole steps, which have no such cost. Calls rotate over 96 MB of weights or keys (for
short contexts, over as much as 256 calls read): more than a core's L2 holds, but less than many an
L3, as in a model of that size.

"bound" is the time that reading the weights or keys once, or the arithmetic, would take at the
measured peaks, whichever is longer; "share" is bound / median. For whole steps, "read", "linear"
and "attention" are the shares of the median that reading all weights and keys once, the products of
the linear layers and those of attention would take at these peaks. Other work on the machine
distorts every figure: compare only those of one run.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing

from bench.kernel_attention import attention_rows
from bench.kernel_calls import Operations
from bench.kernel_experts import EXPERT_COLUMNS, expert_rows
from bench.kernel_ops import Sampled, linear_rows, sampling_rows
from bench.kernel_peaks import Setting, measure_machine
from bench.kernel_pools import KINDS, POOL_COLUMNS, pool_rows
from bench.kernel_steps import (
    SLOTS,
    STEP_COLUMNS,
    phase_table,
    step_cells,
    step_rows,
)
from bench.kernel_tokens import (
    CONTEXT,
    PHASE_COLUMNS,
    TOKEN_COLUMNS,
    phase_cells,
    token_rows,
    token_runs,
)
from bench.roofline import (
    OP_COLUMNS,
    WORKING_SET,
    Measured,
    Peaks,
    Runner,
    TablePrinter,
    markdown,
    number,
    op_cells,
)
from scheduler_proc.executor.native_executor import ACTIVATION_BITS, NativeExecutor
from scheduler_proc.kernels.library import ISAS, load
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.packed import Packing, pack_model
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.files.sizes import resolved_activations
from srt.wire.errors import SrtError

_ROTATION = f"in turns over {WORKING_SET // 10**6} MB"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--isa", choices=ISAS, help="level (default: the best of this CPU)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--activations",
        choices=ACTIVATION_BITS,
        default="auto",
        help="the server's option of this name (default: %(default)s)",
    )
    parser.add_argument("--only", default="", help="rows whose name contains this", metavar="TEXT")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each row, at least")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--ops", action="store_true", help="single operations only")
    part.add_argument("--steps", action="store_true", help="whole steps only")
    part.add_argument(
        "--tokens", action="store_true", help="only rows of a few tokens, against a prefill's"
    )
    part.add_argument(
        "--pools", action="store_true", help="only whole steps, over two kinds of KV pools in turns"
    )
    part.add_argument(
        "--experts",
        action="store_true",
        help="only mixtures of experts, against dense MLPs in turns",
    )
    args = parser.parse_args(argv)
    if args.threads < 1 or args.repeat < 1:
        parser.error("--threads and --repeat must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if the kernels cannot run."""
    args = parse_args(argv)
    runner = Runner(args.only, args.repeat)
    try:
        library = load()
        setting = Setting(library, args.isa or library.isa(), args.threads)
        if setting.isa not in library.available_isas():
            raise SrtError(f"this CPU or build does not run {setting.isa}")
        table = TablePrinter("The machine:", ("machine", "best seen"))
        peaks = measure_machine(setting, table.add)
        if args.tokens:
            print_tokens(setting, args.activations, args.repeat)
            return 0
        if args.pools:
            print_pools(setting, args.activations, runner)
            return 0
        if args.experts:
            print_experts(setting, peaks, runner)
            return 0
        if not args.steps:
            print_ops(setting, args.activations, peaks, runner)
        if not args.ops:
            print_steps(setting, args.activations, peaks, runner)
    except SrtError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def print_ops(setting: Setting, activations: str, peaks: Peaks, runner: Runner) -> None:
    """Linear layers, attention, sampling."""
    files = resolve_model(DEFAULT_MODEL)
    checkpoint = open_checkpoint(files)
    choice = Packing(tiles=setting.library.has_tiles(setting.isa))
    packed = pack_model(checkpoint, setting.library, choice)
    width = resolved_activations(activations, files)
    with closing(Operations(setting.library, setting.threads, setting.isa, width)) as operations:
        linear = linear_rows(operations, packed, runner)
        _print_measured(f"Linear layers, {_ROTATION} of weights:", linear, peaks)
        attention = attention_rows(operations, checkpoint.config, runner)
        _print_measured(
            f"Attention of one layer, {_ROTATION} of keys and values:", attention, peaks
        )
        _print_sampled(sampling_rows(operations, checkpoint.config.vocab_size, runner))


def print_steps(setting: Setting, activations: str, peaks: Peaks, runner: Runner) -> None:
    """Whole steps and their phases."""
    files = resolve_model(DEFAULT_MODEL)
    executor = _executor(setting, activations)
    table = TablePrinter("\nWhole steps:", STEP_COLUMNS)
    has_tiles = setting.library.has_tiles(setting.isa)
    rows = []
    with closing(executor):
        for row in step_rows(executor, open_checkpoint(files).config, runner):
            table.add(*step_cells(row, peaks, has_tiles))
            rows.append(row)
    if rows:
        caption = "Phases of these steps, as one thread saw them:"
        print(f"\n{caption}\n\n{markdown(*phase_table(rows))}", flush=True)


def print_tokens(setting: Setting, activations: str, repeat: int) -> None:
    """What the second and further new tokens of a row cost, and where."""
    kind = "CPU time" if setting.threads == 1 else "wall time"
    with closing(_executor(setting, activations)) as executor:
        runs = token_runs(executor, setting.threads, repeat)
    table = TablePrinter(f"\nNew tokens of a row at context {CONTEXT}, {kind}:", TOKEN_COLUMNS)
    for row in token_rows(runs):
        table.add(*row.cells())
    table = TablePrinter("\nPhases of these steps, as one thread saw them:", PHASE_COLUMNS)
    for cells in phase_cells(runs):
        table.add(*cells)


def print_pools(setting: Setting, activations: str, runner: Runner) -> None:
    """What a pool of integers gains."""
    table = TablePrinter("\nWhole steps, by the KV pool:", POOL_COLUMNS)
    with ExitStack() as stack:
        executors = {
            kind: stack.enter_context(closing(_executor(setting, activations, kind)))
            for kind in KINDS
        }
        for row in pool_rows(executors, runner):
            table.add(*row.cells())


def print_experts(setting: Setting, peaks: Peaks, runner: Runner) -> None:
    """What experts that are not used save."""
    table = TablePrinter("\nMLPs, mixtures and dense ones of all experts:", EXPERT_COLUMNS)
    for row in expert_rows(setting, peaks, runner):
        table.add(*row.cells())


def _executor(setting: Setting, activations: str, kv_dtype: str = "auto") -> NativeExecutor:
    return NativeExecutor(
        resolve_model(DEFAULT_MODEL),
        max_total_tokens=SLOTS,
        num_threads=setting.threads,
        isa=setting.isa,
        activations=activations,
        kv_dtype=kv_dtype,
    )


def _print_measured(caption: str, rows: Iterable[Measured], peaks: Peaks) -> None:
    table = TablePrinter(f"\n{caption}", OP_COLUMNS)
    for row in rows:
        table.add(*op_cells(row, peaks))


def _print_sampled(rows: Iterable[Sampled]) -> None:
    table = TablePrinter("\nSampling:", ("op", "µs per row", "best"))
    for row in rows:
        times = (row.timing.median_s, row.timing.best_s)
        table.add(row.name, *(number(1e6 * s / row.samples) for s in times))


if __name__ == "__main__":
    sys.exit(main())
