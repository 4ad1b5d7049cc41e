"""`python -m bench.activations`: what activations of 8 bits cost the embedded model's answers,
input by input, and what 12 and 16 bits cost in time.

Each row is a choice of the inputs of matrices that have 16 bits, or 12, the others having 8. Errors
are against float32 weights, activations and KV (`--exact`): by how much log-probabilities of a held
text differ on average and at most; how many tokens of float32's greedy answers to twenty questions
are not the likeliest after the same tokens; how many of the answers, of up to 16 tokens, are the
same to the end, and those that are not, each with the smallest margin in float32. Times are ratios
to those of 8 bits, medians of steps that take turns: of one stream, of batches of 8 and 32 at
context 64, and of a prompt of 512 tokens. With one thread it is that thread's CPU time, for which
other work on the machine matters least.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from bench.kernel_steps import Step, fill_pool
from bench.roofline import TablePrinter, warm_up
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import INPUTS, ISAS
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.files.tokenizer import load_tokenizer
from tests.e2e.first_questions import QUESTIONS, Answer, answers, prompts
from tests.e2e.test_quantized_quality import HELD_TEXT, native_logprobs
from tests.scheduler_proc.ragged import Row, details_of, make_batch

SETS = (
    *("", *INPUTS),
    *("o,down", "qkv,o,down", "qkv,o,down,head", "qkv,gate_up,head", "qkv,gate_up,down,head"),
    f"{','.join(INPUTS)}:12",
    ",".join(INPUTS),
)
SLOTS = 4096
STEPS = (
    Step("1 stream", 1, 64),
    Step("batch 8", 8, 64),
    Step("batch 32", 32, 64),
    Step("prompt 512", 1, 512, extend=512),
)
RUNS = 3  # of a short step in each turn
ERROR_COLUMNS = (
    "12 or 16 bits",
    "mean",
    "largest",
    "turned",
    f"equal of {len(QUESTIONS)}",
    "not equal",
)
TIME_COLUMNS = ("12 or 16 bits", *(step.name for step in STEPS))


class Reference(NamedTuple):
    """What float32 says: the answers, and log-probabilities of the held text."""

    asked: list[list[int]]
    answers: list[Answer]
    held: list[int]
    logprobs: np.ndarray


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.activations", description=__doc__)
    parser.add_argument("--isa", choices=ISAS, help="level (default: the best of this CPU)")
    parser.add_argument("--threads", type=int, help="of the times (default: the server's)")
    parser.add_argument("--repeat", type=int, default=7, help="turns of the times; 0: errors only")
    parser.add_argument("--no-errors", action="store_true", help="times only")
    parser.add_argument(
        "--inputs",
        nargs="+",
        default=SETS,
        metavar="NAMES",
        help=f"choices: some of {', '.join(INPUTS)} with commas between, for 12 bits with :12 at "
        "the end, or an empty text",
    )
    args = parser.parse_args(argv)
    for names in args.inputs:
        inputs, _, bits = names.partition(":")
        if unknown := set(filter(None, inputs.split(","))).difference(INPUTS):
            parser.error(f"{', '.join(unknown)}: not one of {', '.join(INPUTS)}")
        if bits not in ("", "12", "16"):
            parser.error(f"{names}: 12 or 16 bits, not {bits}")
    return args


def main(argv: list[str] | None = None) -> int:
    """Print the two tables."""
    args = parse_args(argv)
    if not args.no_errors:
        reference = _reference()
        table = TablePrinter("Errors:", ERROR_COLUMNS)
        for names in args.inputs:
            with closing(_executor(args.isa, names)) as executor:
                table.add(_shown(names), *error_cells(executor, reference))
    if args.repeat:
        table = TablePrinter("\nTimes, as ratios to 8 bits:", TIME_COLUMNS)
        choices = ["", *(names for names in args.inputs if names)]
        rows = time_ratios(args.isa, choices, args.repeat, args.threads)
        for names, ratios in zip(choices, rows, strict=True):
            table.add(_shown(names), *ratios)
    return 0


def error_cells(executor: NativeExecutor, reference: Reference) -> Iterator[str]:
    """Under ERROR_COLUMNS."""
    difference = np.abs(native_logprobs(executor, reference.held) - reference.logprobs)
    yield f"{difference.mean():.4f}"
    yield f"{difference.max():.3f}"
    pairs = zip(reference.asked, reference.answers, strict=True)
    yield str(sum(turned(executor, asked, answer.ids) for asked, answer in pairs))
    found = answers(executor, reference.asked)
    wrong = [
        f"{question} ({expected.nearest:.3f})"
        for question, mine, expected in zip(QUESTIONS, found, reference.answers, strict=True)
        if mine.ids != expected.ids
    ]
    yield str(len(QUESTIONS) - len(wrong))
    yield "; ".join(wrong)


def turned(executor: NativeExecutor, asked: Sequence[int], answer: Sequence[int]) -> int:
    """How many tokens of `answer` are not the likeliest after the prompt and those before."""
    ids = [*asked, *answer]
    places = range(len(asked) - 1, len(ids) - 1)
    step = make_batch([Row(ids, range(len(ids)), targets=ids[1:])])
    step.details = details_of(
        [len(step.sample_tokens) + place for place in places],
        [1] * len(answer),
        [[]] * len(answer),
    )
    details = executor.run(step).details
    assert details is not None
    return int((details.top_ids != np.array(answer)).sum())


def time_ratios(
    isa: str | None, choices: Sequence[str], repeat: int, threads: int | None = None
) -> list[list[str]]:
    """For each choice the ratios of its times, step by step, to those of the first: cells."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    with ExitStack() as stack:
        executors = [
            stack.enter_context(closing(_executor(isa, names, threads))) for names in choices
        ]
        for executor in executors:
            fill_pool(executor._pool)
        columns = [_times(executors, step, repeat, clock) for step in STEPS]
    first = [column[0] for column in columns]
    milliseconds = [f"{1e3 * seconds:.1f} ms" for seconds in first]
    return [
        milliseconds,
        *(
            [f"{column[i] / at:.2f}" for column, at in zip(columns, first, strict=True)]
            for i in range(1, len(choices))
        ),
    ]


def _times(
    executors: Sequence[NativeExecutor], step: Step, repeat: int, clock: Callable[[], float]
) -> list[float]:
    calls = [partial(each.run, step.batch(each.vocab_size)) for each in executors]
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        warm_up([call])
    for _ in range(repeat):
        for call, times in zip(calls, taken, strict=True):
            for _ in range(1 if step.extend > 1 else RUNS):
                begun = clock()
                call()
                times.append(clock() - begun)
    return [median(times) for times in taken]


def _reference() -> Reference:
    asked = prompts()
    held = load_tokenizer(resolve_model(DEFAULT_MODEL)).encode(HELD_TEXT).tolist()
    files = resolve_model(DEFAULT_MODEL)
    with closing(NativeExecutor(files, max_total_tokens=SLOTS, exact=True)) as executor:
        return Reference(asked, answers(executor, asked), held, native_logprobs(executor, held))


def _executor(isa: str | None, names: str, threads: int | None = None) -> NativeExecutor:
    name = f"8:{names}" if names else "8"
    return NativeExecutor(
        resolve_model(DEFAULT_MODEL),
        max_total_tokens=SLOTS,
        isa=isa,
        activations=name,
        num_threads=threads,
    )


def _shown(names: str) -> str:
    inputs, _, bits = names.partition(":")
    listed = "all" if inputs == ",".join(INPUTS) else inputs.replace(",", ", ") or "none"
    return f"{listed}, {bits}" if bits else listed


if __name__ == "__main__":
    sys.exit(main())
