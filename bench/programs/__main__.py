"""`python -m bench.programs`: programs on the server against a client that calls one by one.

Both talk HTTP to the same server through a proxy that makes a round trip `--delay-ms` longer, and
keep their connections open. The client joins texts itself, and sends a call as soon as it has the
call's inputs. Both must give the same texts. They take turns; "ratio" is the client's time over
the program's, of each pair. Sessions are opened once before. A program is submitted with `eager`,
so that it runs while the client asks for its variables.

The modules of `bench.programs` say what their columns mean. Servers for many programs at once have
`--max-running-requests 4`, and with `--defaults` as many rows as by default.
"""

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.peers.catalogue import Srt
from bench.peers.process import running
from bench.programs import ablations, cost, crowds, flood, handed, replicas, single
from bench.programs.pairs import Part, benches
from bench.roofline import markdown
from srt.files.model_files import DEFAULT_MODEL
from srt.machine import machine

ON = ("--schedule-policy", "app", "--programs-ahead", "on")
FEW_ROWS = ("--max-running-requests", "4")
CROWD, MANY = 10, 25  # programs at once
FLOOD, HANDED_OUTPUTS = 1000, 600
NAMES = (
    *("chain", "map_reduce", "coding", "handed", "flood"),
    *("chains", "map_reduces", "beside_chats", "replicas"),
)
ABLATIONS = "ablations"


class Named(NamedTuple):
    """A part of the measurement: its columns, what it does, and its server's options beside those
    that are on for all."""

    name: str
    columns: Sequence[str]
    measure: Part
    options: Sequence[str] = ()


def parts(args: argparse.Namespace) -> list[Named]:
    """All of them, those with the same options one after the other."""
    few = () if args.defaults else FEW_ROWS
    found = [
        Named("chain", single.COLUMNS, single.chains),
        Named("map_reduce", single.COLUMNS, single.map_reduces),
        Named("coding", single.COLUMNS, single.codings),
        Named("handed", handed.COLUMNS, handed.handed),
        Named("flood", flood.COLUMNS, flood.flood),
        Named("chains", crowds.COLUMNS, crowds.chains_at_once, few),
        Named("map_reduces", crowds.COLUMNS, crowds.map_reduces_at_once, few),
        Named("beside_chats", crowds.COLUMNS, crowds.chains_beside_chats, few),
        Named("replicas", replicas.COLUMNS, replicas.mixed, ("--dp", "2", *few)),
    ]
    for one in ablations.VARIANTS:
        part: Part = partial(ablations.ablation, variant=one)
        found.append(Named(ABLATIONS, ablations.COLUMNS, part, (*few, *one.options)))
    for one in ablations.PLACED:
        part = partial(ablations.placed, variant=one)
        options = "--dp", "2", *few, *one.options
        found.append(Named(ABLATIONS, ablations.PLACED_COLUMNS, part, options))
    return found


async def run(args: argparse.Namespace) -> dict[tuple[str, ...], list[list[str]]]:
    """The rows of the chosen parts, by their columns: all on the server that is named, or on
    servers with the options of each."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    chosen = [part for part in parts(args) if part.name in args.only]
    for options, some in itertools.groupby(chosen, key=lambda part: tuple(part.options)):
        async with served(args, options) as url, benches(args, url) as both:
            for part in some:
                rows = await part.measure(both, args)
                tables.setdefault(tuple(part.columns), []).extend(rows)
                print(*rows, sep="\n", flush=True)
    return tables


@asynccontextmanager
async def served(args: argparse.Namespace, options: Sequence[str]) -> AsyncIterator[str]:
    """The URL of the server that is named, or of one with these options."""
    if args.url:
        yield args.url
        return
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        async with running(Srt(), Path(DEFAULT_MODEL), log, (*ON, *options)) as url:
            yield url


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.programs", description=__doc__)
    parser.add_argument("--url", help="a running server; otherwise some are started")
    parser.add_argument("--data", type=Path, help="a directory of *.jsonl files with text")
    parser.add_argument("--only", default=",".join(NAMES), help="parts, of all but ablations")
    parser.add_argument("--delay-ms", type=float, default=250.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--outputs", default="25,50,100", help="of the chain's calls")
    parser.add_argument("--agents", default="4,8,16")
    parser.add_argument("--defaults", action="store_true", help="rows as by default, not 4")
    parser.add_argument("--short", action="store_true", help="one pair of less work: two minutes")
    parser.add_argument("--cost", action="store_true", help="measure a call's cost in the graph")
    args = parser.parse_args(argv)
    args.only = args.only.split(",")
    if unknown := set(args.only) - {*NAMES, ABLATIONS}:
        parser.error(f"--only: {min(unknown)!r} is none of {', '.join((*NAMES, ABLATIONS))}")
    args.outputs, args.agents = (
        [int(number) for number in text.split(",")] for text in (args.outputs, args.agents)
    )
    args.crowd, args.many, args.flood, args.handed_outputs = CROWD, MANY, FLOOD, HANDED_OUTPUTS
    if args.short:
        args.pairs, args.outputs, args.agents = 1, args.outputs[:1], args.agents[:1]
        args.crowd, args.many, args.flood, args.handed_outputs = 6, 12, 100, 200
    return args


def main() -> None:
    args = parse_args()
    if args.cost:
        cost.report()
        return
    tables = asyncio.run(run(args))
    print(f"{machine()}, a round trip of {args.delay_ms:g} ms, {args.pairs} pairs")
    for columns, rows in tables.items():
        print(markdown(columns, rows))


if __name__ == "__main__":
    main()
