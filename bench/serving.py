"""`python -m bench.serving`: measures any OpenAI-compatible server on the serving workloads.

With `--url` the server already runs; its prefix cache is emptied before each workload if the server
can do that, and the report says whether it did, because a second run with the same seed would
otherwise find its prompts cached. With `--guesses` our server is started with guesses and without
them, in turns, and with `--peer` another one, too.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from bench.compare import GUESSES, compare, comparison
from bench.figures import table
from bench.measure import measure, width_of
from bench.peers.catalogue import DEFAULT_HOME, NAMES
from srt.benchmark.workloads import WORKLOADS
from srt.files.model_files import DEFAULT_MODEL
from srt.wire.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:30000"
TEMPERATURE = 0.7


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.add_argument("--workload", required=True, choices=[*WORKLOADS, "all"])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the request count")
    parser.add_argument("--seed", type=int, default=0, help="of the texts and of what is sampled")
    parser.add_argument(
        "--temperature", type=float, default=TEMPERATURE, help="0 is greedy (default: %(default)s)"
    )
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument(
        "--data", type=Path, help="file, or directory of files, to take texts and questions from"
    )
    texts.add_argument(
        "--random-words", action="store_true", help="prompts of random words: answers loop"
    )
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="do not send ignore_eos, for servers that refuse it",
    )
    _add_running(parser.add_argument_group("a server that is up"))
    _add_started(parser.add_argument_group("servers that are started, in turns"))
    args = parser.parse_args(argv)
    starts = " and ".join(f"--{name}" for name in ("guesses", "peer") if getattr(args, name))
    if starts and (args.url or args.model or args.api_key):
        parser.error(f"{starts} starts servers: no --url, --model or --api-key with it")
    if args.repeat < 1:
        parser.error("--repeat must be at least 1")
    args.url = args.url or DEFAULT_URL
    return args


def _add_running(group: Any) -> None:
    group.add_argument("--url", help=f"default: {DEFAULT_URL}")
    group.add_argument("--model", help="model name to send (default: the server's first)")
    group.add_argument("--api-key")


def _add_started(group: Any) -> None:
    group.add_argument(
        "--guesses", choices=GUESSES, help="ours with guesses, without, or both (with --peer: both)"
    )
    group.add_argument("--peer", choices=NAMES)
    group.add_argument("--repeat", type=int, default=1, help="turns of each server")
    group.add_argument("--model-file", default=DEFAULT_MODEL, help="as --model of srt.launch")
    group.add_argument("--home", type=Path, default=DEFAULT_HOME, help="where peers are installed")
    group.add_argument("--server-args", default="", help="options for our server, in one string")
    group.add_argument("--peer-args", default="", help="options for the peer, in one string")
    group.add_argument("--logs", type=Path, help="directory for the servers' logs")


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if a request failed."""
    args = parse_args(argv)
    try:
        report = asyncio.run((compare if args.peer or args.guesses else measure)(args))
    except ConfigError as error:
        sys.exit(f"bench.serving: {error}")
    if "turns" in report:
        print("\n" + comparison(report["turns"]))
        figures = [turn.figures for turn in report["turns"]]
    else:
        figures = list(report["figures"].values())
        _print_measured(report)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 1 if any(f.errors for f in figures) else 0


def _print_measured(report: dict[str, Any]) -> None:
    print(table(report["figures"]))
    print(width_of(report["server"]))
    unflushed = [name for name, done in report["cache_flushed"].items() if not done]
    if unflushed:
        print(f"prefix cache not emptied before: {', '.join(unflushed)}")


if __name__ == "__main__":
    sys.exit(main())
