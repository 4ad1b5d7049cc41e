"""`srt bench`: what a server that runs gives under load, ours or another with OpenAI's routes."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from srt.benchmark.load import LoadGenerator, Run
from srt.benchmark.prompts import arrivals, of_file, of_length
from srt.benchmark.report import COLUMNS, Figures, figures_of, machine, now, table
from srt.benchmark.text import TextSource
from srt.benchmark.workloads import WORKLOADS, Workload
from srt.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:30000"
# Above this share of a core the client may be what limits the figures.
_BUSY_SHARE = 0.8
_SHOWN_ERRORS = 5
_HIDDEN = ("prompt_tokens_min", "prompt_tokens_max", "client_cpu_s")


class Result(NamedTuple):
    """A workload's figures, and what went wrong, the most frequent first."""

    figures: Figures
    errors: list[str]


def make_parser(prog: str = "srt bench") -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Measure a server that runs. Without --dataset and --input-len it gets a "
        "workload that this project is measured by. Its prefix cache is emptied before, if it is "
        "ours, for all who use it: --keep-cache leaves it.",
    )
    server = parser.add_argument_group("The server")
    server.add_argument("--url", default=DEFAULT_URL, help="(default: %(default)s)")
    server.add_argument("--model", help="name to send (default: the server's first)")
    server.add_argument("--api-key", help="bearer token of the server")
    server.add_argument(
        "--keep-cache", action="store_true", help="do not empty the server's prefix cache"
    )
    server.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="answers may end by themselves; for servers that refuse ignore_eos",
    )
    what = parser.add_argument_group("What it is asked")
    what.add_argument(
        "--workload", choices=[*WORKLOADS, "all"], help="(default: batch); their shapes are in docs"
    )
    what.add_argument("--scale", type=float, default=1.0, help="factor on a workload's requests")
    what.add_argument("--dataset", type=Path, metavar="FILE", help='JSONL of {"prompt": ...}')
    what.add_argument("--input-len", type=int, help="tokens of made-up prompts")
    what.add_argument("--output-len", type=int, default=128, help="tokens of an answer")
    what.add_argument("--num-prompts", type=int, help="requests (default: all, or 64)")
    what.add_argument("--seed", type=int, default=0, help="of texts and arrivals")
    when = parser.add_argument_group("When")
    when.add_argument(
        "--request-rate", type=float, help="requests a second, at random times (default: no limit)"
    )
    when.add_argument("--max-concurrency", type=int, help="requests at once (default: 32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends the process where options contradict."""
    parser = make_parser()
    args = parser.parse_args(argv)
    own = [name for name in ("--workload", "--dataset", "--input-len") if _given(args, name)]
    if len(own) > 1:
        parser.error(f"{' and '.join(own)} exclude each other")
    for name in ("--num-prompts", "--max-concurrency", "--input-len", "--output-len"):
        value = getattr(args, name[2:].replace("-", "_"))
        if value is not None and value < 1:
            parser.error(f"{name} must be at least 1")
    if args.request_rate is not None and args.request_rate <= 0:
        parser.error("--request-rate must be above 0")
    is_shaped = not (args.dataset or args.input_len)
    for name in ("--num-prompts", "--request-rate", "--max-concurrency"):
        if is_shaped and _given(args, name):
            parser.error(f"{name} goes with --dataset or --input-len: workloads have their own")
    args.workload = args.workload or "batch"
    return args


def _given(args: argparse.Namespace, flag: str) -> bool:
    return getattr(args, flag[2:].replace("-", "_")) is not None


async def measure(args: argparse.Namespace) -> dict[str, Result]:
    """Run what is asked for. Cancelled, it gives what it has.

    Raises ConfigError if the server cannot be asked, or a file cannot be read.
    """
    results: dict[str, Result] = {}
    async with LoadGenerator(
        args.url, args.model, args.api_key, ignore_eos=args.ignore_eos
    ) as load:
        try:
            await load.fill_model()
            per_word = await load.tokens_per_word(TextSource(args.seed - 1))
        except (httpx.HTTPError, KeyError, IndexError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{args.url} cannot be measured: {error or type(error).__name__}; `srt serve` "
                "starts a server, --url names another"
            ) from error
        for workload in _workloads(args, per_word):
            emptied = not args.keep_cache and await _emptied(load)
            word = "emptied" if emptied else "left as it was"
            print(f"{workload.name}: {len(workload.roots)} prompts; the prefix cache was {word}")
            rate, count = args.request_rate, len(workload.roots)
            times = arrivals(count, rate, args.seed) if rate else []
            results[workload.name] = _result(await load.run(workload, times))
            if load.was_interrupted:
                break
    return results


def _workloads(args: argparse.Namespace, per_word: float) -> Sequence[Workload]:
    concurrency = args.max_concurrency or (10**6 if args.request_rate else 32)
    if args.dataset:
        return [of_file(args.dataset, args.num_prompts or 0, args.output_len, concurrency)]
    if args.input_len:
        source = TextSource(args.seed, per_word)
        count = args.num_prompts or 64
        return [of_length(source, count, args.input_len, args.output_len, concurrency)]
    names = list(WORKLOADS) if args.workload == "all" else [args.workload]
    return [WORKLOADS[name](TextSource(args.seed, per_word), args.scale) for name in names]


async def _emptied(load: LoadGenerator) -> bool:
    try:
        return await load.flush_cache()
    except httpx.HTTPError:
        return False


def _result(run: Run) -> Result:
    messages = [record.error for record in run.records if record.error]
    counts = {message: messages.count(message) for message in dict.fromkeys(messages)}
    ordered = sorted(counts, key=lambda message: -counts[message])
    return Result(figures_of(run), [f"{counts[each]} times: {each}" for each in ordered])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns 1 if a request failed or the server cannot be asked."""
    args = parse_args(argv)
    try:
        results = asyncio.run(measure(args))
    except ConfigError as error:
        print(f"srt bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    figures = {name: result.figures for name, result in results.items()}
    shown = {column: title for column, title in COLUMNS.items() if column not in _HIDDEN}
    print(table(figures, shown))
    for name, (measured, errors) in results.items():
        for message in errors[:_SHOWN_ERRORS]:
            print(f"{name}: {message}", file=sys.stderr)
        if measured.wall_s and measured.client_cpu_s / measured.wall_s > _BUSY_SHARE:
            share = 100 * measured.client_cpu_s / measured.wall_s
            print(f"{name}: this client took {share:.0f} % of a core: it may be the limit")
    if args.json:
        report: dict[str, Any] = {"date": now(), "url": args.url, "machine": machine()}
        args.json.write_bytes(
            msgspec.json.format(msgspec.json.encode(report | {"figures": figures})) + b"\n"
        )
    return int(any(result.figures.errors for result in results.values()))
