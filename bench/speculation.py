"""`python -m bench.speculation`: what guessing tokens ahead does to the speed of a server.

Servers of ours with `--speculative off`, with fixed lengths of guesses and `auto`, and, with
`--peers`, other servers with and without their own n-gram speculation, are up at once and answer
the same requests in turns, one group of `--concurrency` requests each: those that wait take no
time. Their order is turned round from group to group. Texts of ours have to be the same whoever
made them; the exit status is 1 if some are not, or if a request failed. Other servers' kernels
round differently, so their texts are their own.

`--simulate` and `--draft-time` need no second server: see `bench.speculation_offline`.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from bench.compare import Contender, Launched
from bench.copying import COPYING
from bench.figures import Figures, figures_of
from bench.guesses import Guesses, counted_by
from bench.peers.catalogue import DEFAULT_HOME, Srt
from bench.roofline import markdown
from bench.speculation_offline import draft_time, simulate
from bench.speculation_peers import OFF, SETTINGS, Speed, launch_of, node_for, peer_table
from srt.benchmark.load import LoadGenerator, Record, Run
from srt.benchmark.summary import now
from srt.benchmark.text import TextSource
from srt.benchmark.workloads import Node, Workload, batch, single
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.machine import machine

NAMES = (*COPYING, "retry", "single", "batch")
FIXED = ("1", "2", "4", "8")
AUTO, TREE = "auto", "tree"
LEAST_REQUESTS = 4  # of a workload at a low concurrency
WARM_UP = 2  # requests before the first that count


class Turn(Struct):
    """One group of requests on one server; `texts` are by request."""

    server: str
    workload: str
    concurrency: int
    figures: Figures
    guesses: Guesses
    texts: dict[int, str]


class Server:
    """A contender that is up."""

    def __init__(self, name: str, url: str, load: LoadGenerator) -> None:
        self.name, self.load = name, load
        self._url = url

    async def guesses(self) -> Guesses:
        """What it has counted so far; nothing if it does not tell."""
        return await counted_by(self.load)

    async def turn(self, name: str, group: Mapping[int, Node], concurrency: int) -> Turn:
        """Run the requests, `concurrency` at a time."""
        before = await self.guesses()
        group = {i: node_for(self.name, node) for i, node in group.items()}
        run = await self.load.run(Workload(name, concurrency, list(group.values())))
        for error in sorted({record.error for record in run.records if record.error}):
            print(f"{name} on {self.name}: {error}", file=sys.stderr)
        counted = (await self.guesses()).since(before)
        texts = _texts(group, run)
        return Turn(self.name, name, concurrency, figures_of(run), counted, texts)


def _texts(group: Mapping[int, Node], run: Run) -> dict[int, str]:
    """By request. A run has its records in the order of their ends."""
    by_prompt = {record.prompt: record for record in run.records}
    found: dict[int, Record | None] = {i: by_prompt.get(node.text) for i, node in group.items()}
    return {i: record.text for i, record in found.items() if record and not record.error}


def requests_of(name: str, count: int, args: argparse.Namespace) -> list[Node]:
    """The first requests of a workload; with `--out-tokens`, of that length."""
    if name in ("single", "batch"):
        source = TextSource(args.seed, args.tokens_per_word)
        shape = single if name == "single" else batch
        found = shape(source, max(1.0, count / len(shape(source, 1.0).roots))).roots[:count]
        # Greedy outputs of such a small model soon repeat themselves.
        nodes = [
            msgspec.structs.replace(
                node, fields={"temperature": 1.0, "seed": i, "ignore_eos": True}
            )
            for i, node in enumerate(found)
        ]
    else:
        make = COPYING["quote" if name == "retry" else name]
        nodes = list(islice(make(args.data, random.Random(args.seed)), count))
    if args.out_tokens:
        nodes = [msgspec.structs.replace(node, out_tokens=args.out_tokens) for node in nodes]
    return nodes


def groups_of(nodes: Sequence[Node], concurrency: int) -> list[dict[int, Node]]:
    """As many at a time as run at once, numbered."""
    numbered = list(enumerate(nodes))
    starts = range(0, len(numbered), concurrency)
    return [dict(numbered[start : start + concurrency]) for start in starts]


async def take_turns(
    contenders: Sequence[Contender], concurrency: int, args: argparse.Namespace
) -> list[Turn]:
    """All workloads on all contenders, which run for this long."""
    turns: list[Turn] = []
    async with AsyncExitStack() as stack:
        servers = []
        for contender in contenders:
            url = await stack.enter_async_context(contender.running())
            load = await stack.enter_async_context(LoadGenerator(url, ignore_eos=False))
            await load.fill_model()
            servers.append(Server(contender.name, url, load))
        warm = TextSource(args.seed - 1, args.tokens_per_word)
        for node in (Node(warm.text(64), args.out_tokens or 32) for _ in range(WARM_UP)):
            for server in servers:
                await server.turn("warm-up", {0: node}, 1)
        for name in args.workload:
            count = max(concurrency, args.requests)
            groups = groups_of(requests_of(name, count, args), concurrency)
            if name == "retry":
                for server in servers:
                    for group in groups:
                        await server.turn(name, group, concurrency)
            for number, group in enumerate(groups):
                order = servers if number % 2 == 0 else servers[::-1]
                if name != "retry":
                    order = [server for server in order if server.name != TREE]
                turns += [await server.turn(name, group, concurrency) for server in order]
            print(f"{name}, {concurrency} at once: {_walls(turns, name, concurrency)}", flush=True)
    return turns


def _walls(turns: Sequence[Turn], name: str, concurrency: int) -> str:
    taken = [turn for turn in turns if (turn.workload, turn.concurrency) == (name, concurrency)]
    totals = {turn.server: 0.0 for turn in taken}
    for turn in taken:
        totals[turn.server] += turn.figures.wall_s
    return ", ".join(f"{server} {wall:.2f} s" for server, wall in totals.items())


def differences(turns: Sequence[Turn], ours: Sequence[str]) -> list[str]:
    """Where a text of one of our servers is not that of the first that had the same request."""
    first: dict[tuple[str, int], tuple[str, str]] = {}
    found = []
    for turn in turns:
        if turn.server not in ours:
            continue
        for number, text in turn.texts.items():
            server, other = first.setdefault((turn.workload, number), (turn.server, text))
            if text != other:
                at = next(
                    (i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
                    min(len(text), len(other)),
                )
                found.append(
                    f"{turn.workload}, request {number}, {turn.concurrency} at once: from "
                    f"character {at} on, {turn.server} has {text[at : at + 40]!r}, "
                    f"{server} {other[at : at + 40]!r}"
                )
    return found


def summary(turns: Sequence[Turn]) -> list[str]:
    """A table for each workload and concurrency, and what of `auto` is asked."""
    keys = dict.fromkeys((turn.workload, turn.concurrency) for turn in turns)
    return [_table([t for t in turns if (t.workload, t.concurrency) == key]) for key in keys]


def _table(turns: Sequence[Turn]) -> str:
    servers = list(dict.fromkeys(turn.server for turn in turns))
    by_server = {name: [turn for turn in turns if turn.server == name] for name in servers}
    # In the order of their requests, so that pairs are of the same ones.
    for taken in by_server.values():
        taken.sort(key=lambda turn: min(turn.texts, default=-1))
    ours = {name: taken for name, taken in by_server.items() if name not in SETTINGS}
    walls = {name: [turn.figures.wall_s for turn in taken] for name, taken in ours.items()}
    rows: list[list[str]] = []
    for name, taken in ours.items():
        wall = sum(walls[name])
        tokens = sum(turn.figures.out_tokens for turn in taken)
        counted = sum((turn.guesses for turn in taken), Guesses())
        row = [name, f"{wall:.2f}", f"{tokens / wall:.1f}", _cell(counted.accept_length)]
        row += [f"{counted.steps / tokens:.2f}" if counted.steps and tokens else "-"]
        row += [f"{1000 * counted.forward_s / counted.steps:.2f}" if counted.steps else "-"]
        row += [f"{1000 * counted.exposed_s / counted.steps:.2f}" if counted.steps else "-"]
        rows.append([*row, *_ratio(walls.get(OFF), walls[name])])
    head = ["server", "wall s", "out tok/s", "tokens per verification", "passes per token"]
    head += ["pass, ms", "between, ms", "off / it", "of the pairs"]
    title = f"{turns[0].workload}, {turns[0].concurrency} at once"
    parts = [f"{title}\n", markdown(head, rows), *_auto(walls)]
    if len(ours) < len(by_server):
        parts += ["", peer_table([_speed(name, taken) for name, taken in by_server.items()], AUTO)]
    return "\n".join(parts)


def _speed(server: str, turns: Sequence[Turn]) -> Speed:
    tokens, wall = (sum(getattr(t.figures, of) for t in turns) for of in ("out_tokens", "wall_s"))
    counted = sum((turn.guesses for turn in turns), Guesses())
    groups = [turn.figures.out_tok_s for turn in turns]
    return Speed(server, tokens / wall, groups, counted.accept_length)


def _ratio(off: Sequence[float] | None, walls: Sequence[float]) -> list[str]:
    if not off or len(off) != len(walls):
        return ["-", "-"]
    pairs = [a / b for a, b in zip(off, walls, strict=True)]
    return [f"{sum(off) / sum(walls):.2f}", f"{min(pairs):.2f} to {max(pairs):.2f}"]


def _auto(walls: Mapping[str, Sequence[float]]) -> list[str]:
    """`auto` against the best fixed length, 0 among them."""
    fixed = {name: sum(wall) for name, wall in walls.items() if name in (OFF, TREE, *FIXED)}
    if AUTO not in walls or not fixed:
        return []
    best = min(fixed, key=lambda name: fixed[name])
    pairs = [a / b for a, b in zip(walls[AUTO], walls[best], strict=True)]
    ratio, middle = sum(walls[AUTO]) / fixed[best], median(pairs)
    return [f"\nauto over the best fixed, {best}: {ratio:.2f} (median of pairs {middle:.2f})"]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def contenders_of(args: argparse.Namespace, logs: Path) -> list[Launched]:
    """Ours by their names, and the peers."""
    model = resolve_model(args.model_file).path
    found = []
    for name in args.contenders:
        mode = name if name in (OFF, AUTO, TREE) else "own"
        extra = f"--speculative {mode} {args.server_args}"
        if name != OFF:
            extra += f" --speculative-max-tokens {name if mode == 'own' else 8}"
        launched = Launched(Srt(), model, logs / f"{name}.log", extra)
        launched.name = name
        found.append(launched)
    return [*found, *(launch_of(name, model, logs, args) for name in args.peers)]


async def measure(contenders: Sequence[Contender], args: argparse.Namespace) -> list[Turn]:
    """All turns; servers start anew for each concurrency and repetition, with empty caches."""
    turns: list[Turn] = []
    for concurrency in args.concurrency:
        for _ in range(args.repeat):
            turns += await take_turns(contenders, concurrency, args)
    return turns


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__)
    add = parser.add_argument
    add("--workload", nargs="+", choices=NAMES, default=list(NAMES))
    ours = (OFF, *FIXED, TREE, AUTO)
    add("--contenders", nargs="+", choices=ours, default=list(ours), help="ours, in turns")
    add("--concurrency", nargs="+", type=int, default=[1, 16])
    add("--requests", type=int, default=LEAST_REQUESTS, help="of a workload, at least")
    add("--repeat", type=int, default=1)
    add("--out-tokens", type=int, help="of a request at most, in the place of the workloads' own")
    add("--seed", type=int, default=0)
    add("--data", type=Path, help="directory of *.jsonl files to take texts from")
    add("--tokens-per-word", type=float, default=1.3, help="of the words of single and batch")
    peers_help = "other servers, behind a slash their n-grams' setting"
    add("--peers", nargs="+", choices=[*SETTINGS], default=[], help=peers_help)
    add("--model-file", default=DEFAULT_MODEL, help="as --model of srt.launch")
    add("--home", type=Path, default=DEFAULT_HOME, help="where peers are installed")
    add("--server-args", default="", help="options for our servers, in one string")
    add("--logs", type=Path, help="directory for the servers' logs")
    add("--json", type=Path, help="write the report there")
    add("--simulate", action="store_true", help="replay guesses over recorded outputs instead")
    add("--draft-time", action="store_true", help="measure what a guess costs instead")
    add("--recorded", type=Path, help="where outputs are recorded, or read from if it is there")
    args = parser.parse_args(argv)
    if args.requests < 1 or args.repeat < 1:
        parser.error("--requests and --repeat must be at least 1")
    return args


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if a text differs, a request failed or a bar of the simulator is missed."""
    args = parse_args(argv)
    if args.simulate or args.draft_time:
        nodes = {
            name: requests_of(name, args.requests, args)
            for name in args.workload
            if name not in ("extract", "retry")
        }
        return (simulate if args.simulate else draft_time)(nodes, args.model_file, args.recorded)
    logs = args.logs or Path(tempfile.mkdtemp(prefix="srt-bench-"))
    logs.mkdir(parents=True, exist_ok=True)
    print(f"the servers' logs are in {logs}")
    contenders = contenders_of(args, logs)
    turns = asyncio.run(measure(contenders, args))
    print("\n" + "\n\n".join(summary(turns)))
    differ = differences(turns, args.contenders)
    print("\n" + ("\n".join(differ) or "all texts of ours are the same"))
    if args.json:
        report: dict[str, Any] = {"date": now(), "machine": machine(), "turns": turns}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 1 if differ or any(turn.figures.errors for turn in turns) else 0


if __name__ == "__main__":
    sys.exit(main())
