"""`srt bench`: what a server that runs gives under load, ours or another with OpenAI's routes."""

import argparse
import asyncio
import resource
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

from srt.benchmark.corpus import Corpus, CorpusSource, built_in, read_corpus
from srt.benchmark.load import LoadGenerator, Run
from srt.benchmark.prompts import arrivals, of_file, of_length
from srt.benchmark.summary import Summary, now, summary_of, text_of
from srt.benchmark.workloads import WORKLOADS, Workload
from srt.machine import machine
from srt.options.arguments import (
    Parser,
    count,
    count_or_none,
    key,
    key_of_file,
    number,
    positive,
    scale,
    server_url,
)
from srt.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:30000"
# Above this share of a core the client may be what limits the figures.
_BUSY_SHARE = 0.8
_SHOWN_ERRORS = 5
_INTERRUPTED = 130  # as a shell calls it
_OUTPUT_TOKENS = 128
_WARMUP_TOKENS = (64, 16)  # of a prompt and of its answer


class Result(Struct):
    """A workload's figures; whether the server's prefix cache was emptied before; what went wrong,
    how often; and how many requests an interrupt has ended."""

    figures: Summary
    cache_emptied: bool
    errors: dict[str, int]
    unfinished: int


class Measured(Struct):
    """What there is, by workload; whether an interrupt cut it short; and the model's name."""

    results: dict[str, Result]
    model: str | None = None
    was_interrupted: bool = False


def make_parser(prog: str = "srt bench") -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
        prog=prog,
        description="Measure a server that runs. Without --dataset and --input-len it gets a "
        "workload that this project is measured by.",
    )
    server = parser.add_argument_group("The server")
    server.add_argument(
        "--url", type=server_url, default=DEFAULT_URL, help="(default: %(default)s)"
    )
    server.add_argument("--model", help="name to send (default: the server's first)")
    server.add_argument("--api-key", type=key, help="bearer token of the server")
    server.add_argument(
        "--api-key-file", dest="api_key", type=key_of_file, metavar="FILE", help="file with it"
    )
    server.add_argument(
        "--flush-cache",
        action="store_true",
        help="empty the prefix cache before each workload, for all who use the server, if it is "
        "one of ours",
    )
    server.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="answers may end by themselves; for servers that refuse ignore_eos",
    )
    server.add_argument(
        "--timeout",
        type=positive,
        default=600.0,
        metavar="SECONDS",
        help="that a request may take (default: %(default)s)",
    )
    _add_prompts(parser.add_argument_group("What it is asked"))
    when = parser.add_argument_group("When")
    when.add_argument(
        "--request-rate",
        type=positive,
        help="requests a second, at random times (default: no limit)",
    )
    when.add_argument("--max-concurrency", type=count, help="requests at once (default: 32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser


def _add_prompts(group: Any) -> None:
    group.add_argument(
        "--workload", choices=[*WORKLOADS, "all"], help="(default: batch); their shapes are in docs"
    )
    group.add_argument("--scale", type=scale, help="factor on a workload's requests (default: 1)")
    group.add_argument(
        "--dataset", type=Path, metavar="FILE", help='JSONL of {"prompt": ...} or {"messages": ...}'
    )
    group.add_argument("--input-len", type=count, metavar="TOKENS", help="of prompts that are made")
    group.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="file, or directory of files, with the texts and questions that prompts are made of "
        "(default: a built-in set)",
    )
    group.add_argument(
        "--output-len",
        type=count,
        metavar="TOKENS",
        help=f"of an answer (default: {_OUTPUT_TOKENS})",
    )
    group.add_argument("--num-prompts", type=count, help="(default: all of a file, or 64)")
    group.add_argument(
        "--warmup", type=count_or_none, default=0, help="requests before (default: %(default)s)"
    )
    group.add_argument(
        "--temperature",
        type=number,
        default=0.7,
        help="of sampling; with 0, small models repeat themselves (default: %(default)s)",
    )
    group.add_argument(
        "--seed",
        type=int,
        help="of texts, sampling and arrivals (default: another each time, so that the server has "
        "cached nothing of an earlier run)",
    )


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ends the process where options contradict."""
    parser = make_parser()
    args = parser.parse_args(argv)
    own = [name for name in ("workload", "dataset", "input_len") if getattr(args, name) is not None]
    if len(own) > 1:
        parser.error(f"{' and '.join(map(_flag, own))} exclude each other")
    has_prompts = args.dataset is not None or args.input_len is not None
    for name in ("output_len", "num_prompts", "request_rate", "max_concurrency"):
        if not has_prompts and getattr(args, name) is not None:
            parser.error(
                f"{_flag(name)} goes with --dataset or --input-len: workloads have their own"
            )
    if args.dataset is not None and args.data is not None:
        parser.error("--dataset has prompts, and --data texts to make them of: give one of them")
    if has_prompts and args.scale is not None:
        parser.error("--scale goes with --workload")
    if args.seed is None:
        args.seed = secrets.randbelow(10**9)
    if has_prompts:
        args.output_len = args.output_len or _OUTPUT_TOKENS
    else:
        args.workload, args.scale = args.workload or "batch", args.scale or 1.0
    return args


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


async def measure(args: argparse.Namespace) -> Measured:
    """Run what is asked for. Cancelled, it gives what it has.

    Raises ConfigError if the server cannot be asked, or a file cannot be read.
    """
    measured = Measured({})
    corpus = built_in() if args.data is None else read_corpus(args.data)
    async with LoadGenerator(
        args.url,
        args.model,
        args.api_key,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        seed=args.seed,
        timeout_s=args.timeout,
        keeps_texts=False,
    ) as load:
        source = CorpusSource(f"{args.seed}/probe", 1.0, corpus)
        try:
            await load.fill_model()
            per_word = await load.tokens_per_word(source)
        except (httpx2.HTTPError, LookupError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{args.url} cannot be measured: {_reason(error)}") from error
        for _ in range(args.warmup):
            await load.complete(source.prompt(_WARMUP_TOKENS[0]), _WARMUP_TOKENS[1])
        for workload in _workloads(args, per_word, corpus):
            emptied = args.flush_cache and await _emptied(load)
            word = "emptied" if emptied else "left as it was"
            print(f"{workload.name}: the prefix cache was {word}; seed {args.seed}", flush=True)
            rate, count = args.request_rate, len(workload.roots)
            times = arrivals(count, rate, args.seed) if rate else ()
            run = await _run(load, workload, times)
            errors = Counter(record.error for record in run.records if record.error)
            measured.results[workload.name] = Result(
                summary_of(run), emptied, dict(errors.most_common()), run.unfinished
            )
            measured.was_interrupted = load.was_interrupted
            if load.was_interrupted:
                break
        measured.model = load.model
    return measured


def _reason(error: Exception) -> str:
    """What is wrong with the server, and what to do."""
    if isinstance(error, httpx2.HTTPStatusError):
        status = error.response.status_code
        advice = "has it OpenAI's routes?" if status == HTTPStatus.NOT_FOUND else "try again later"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            advice = "it wants another --api-key"
        return f"it answered {status} to {error.request.url.path}; {advice}"
    what = str(error) or type(error).__name__
    return f"{what}; `srt serve` starts a server, --url names another"


async def _run(load: LoadGenerator, workload: Workload, times: Sequence[float]) -> Run:
    """Raises ConfigError where a file has changed under its prompts."""
    try:
        return await load.run(workload, times)
    except ExceptionGroup as group:
        of_file, others = group.split((ConfigError, OSError))
        if of_file is None or others is not None:
            raise
        raise ConfigError(f"{of_file.exceptions[0]} (it has changed meanwhile)") from group


def _workloads(args: argparse.Namespace, per_word: float, corpus: Corpus) -> Sequence[Workload]:
    def source_of(name: str) -> CorpusSource:
        return CorpusSource(f"{args.seed}/{name}", per_word, corpus)

    concurrency = args.max_concurrency or (10**6 if args.request_rate else 32)
    if args.dataset is not None:
        return [of_file(args.dataset, args.num_prompts or 0, args.output_len, concurrency)]
    if args.input_len is not None:
        count = args.num_prompts or 64
        return [of_length(count, source_of, args.input_len, args.output_len, concurrency)]
    names = list(WORKLOADS) if args.workload == "all" else [args.workload]
    # Each has texts of its own: with the same ones, a workload would find those of the one before.
    return [WORKLOADS[name](source_of(name), args.scale) for name in names]


async def _emptied(load: LoadGenerator) -> bool:
    try:
        return await load.flush_cache()
    except httpx2.HTTPError:
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns 1 if a request failed or the server cannot be asked."""
    args = parse_args(argv)
    _raise_open_files()
    report = args.json
    was_there = report is None or report.exists()
    try:
        if report is not None:  # before the time is spent
            report.parent.mkdir(parents=True, exist_ok=True)
            report.open("ab").close()
        try:
            measured = asyncio.run(measure(args))
        except BaseException:
            if not was_there:
                report.unlink()
            raise
        _print(measured)
        if report is not None:
            found = _conditions(args, measured) | {"results": measured.results}
            report.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    except ConfigError as error:
        print(f"srt bench: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"srt bench: {error.filename or report}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    if measured.was_interrupted:
        return _INTERRUPTED
    return int(any(result.figures.failed for result in measured.results.values()))


def _raise_open_files() -> None:
    """A request in flight takes one, and the usual limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print(measured: Measured) -> None:
    for name, result in measured.results.items():
        print(text_of(name, result.figures))
        if result.unfinished:
            print(f"{name}: interrupted with {result.unfinished} requests in flight")
        for message, times in list(result.errors.items())[:_SHOWN_ERRORS]:
            print(f"{name}: {times} times: {message}", file=sys.stderr)
        if result.figures.client_cpu_share > _BUSY_SHARE:
            print(f"{name}: this client may be what limits these figures", file=sys.stderr)


def _conditions(args: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    """How the figures were made; without the key."""
    options = {name: value for name, value in vars(args).items() if name not in ("api_key", "json")}
    for name in ("dataset", "data"):
        options[name] = str(options[name]) if options[name] else None
    options["model"] = measured.model

    return {
        "date": now(),
        "machine": machine(),
        "options": options,
        "was_interrupted": measured.was_interrupted,
    }
