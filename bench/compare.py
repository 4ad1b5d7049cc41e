"""Our server with guesses, without them, and a peer on the same workloads, in turns:
`bench.serving --guesses` and `--peer` call `compare`.

In each turn one server runs alone: it is started, warmed up, runs one workload and is stopped, so
that no cache outlives a turn. Ours goes first, then the peer, and so on.
"""

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from msgspec import Struct

from bench.figures import SHARES, Figures
from bench.measure import Course, conditions, server_info, width_of
from bench.peers.catalogue import Peer, Srt, peers
from bench.peers.process import running
from srt.files.model_files import resolve_model

# By `--guesses`: how ours is run, and with which options.
GUESSES = {"both": ("on", "off"), "on": ("on",), "off": ("off",)}
MODES = {"on": "", "off": "--speculative off"}


class Contender(Protocol):
    """A server that can be run for a while."""

    name: str

    def running(self) -> AbstractAsyncContextManager[str]:
        """Start it, give its URL, and stop it at the end."""


class Launched:
    """A contender in processes of its own."""

    def __init__(self, peer: Peer, model: Path, log: Path, extra: str) -> None:
        self.name = peer.name
        self._peer, self._model, self._log = peer, model, log
        self.extra = shlex.split(extra)

    def running(self) -> AbstractAsyncContextManager[str]:
        """See `bench.peers.process.running`."""
        return running(self._peer, self._model, self._log, self.extra)


class Turn(Struct):
    """One workload on one server."""

    server: str
    workload: str
    figures: Figures
    width: str = ""  # of activations, as `width_of` says


async def take_turns(contenders: Sequence[Contender], course: Course, repeat: int) -> list[Turn]:
    """Every workload `repeat` times, each time on all contenders in order."""
    turns = []
    for name, number, contender in product(course.names, range(repeat), contenders):
        async with contender.running() as url, course.client(url) as load:
            await course.prepare(load)
            figures = await course.run(name, load)
            width = width_of(await server_info(load))
        turns.append(Turn(contender.name, name, figures, width))
        # Printed at once, because a later turn may fail.
        took = f"{figures.wall_s:.1f} s, {figures.out_tok_s:.1f} out tok/s"
        took += f", {100 * figures.loop_share:.0f} % loop"
        print(f"{name} {number + 1}/{repeat}: {contender.name} {took}", flush=True)
    return turns


async def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Run what the command line asks for; the report as plain data."""
    course = Course(args)
    logs = args.logs or Path(tempfile.mkdtemp(prefix="srt-bench-"))
    logs.mkdir(parents=True, exist_ok=True)
    print(f"the servers' logs are in {logs}")
    model = resolve_model(args.model_file).path
    contenders = []
    for mode in GUESSES[args.guesses or "both"]:
        extra = f"{args.server_args} {MODES[mode]}"
        launched = Launched(Srt(), model, logs / f"srt-{mode}.log", extra)
        launched.name = f"guesses {mode}"
        contenders.append(launched)
    if args.peer:
        peer = peers(args.home.absolute())[args.peer]
        contenders.append(Launched(peer, model, logs / f"{peer.name}.log", args.peer_args))
    turns = await take_turns(contenders, course, args.repeat)
    return conditions(args, course) | {
        "model": model.name,
        "options": {contender.name: contender.extra for contender in contenders},
        "turns": turns,
    }


# By figure: its label, and which side is better.
ROWS = {
    "out_tok_s": "out tok/s (more is better)",
    "wall_s": "wall s (less)",
    "ttft_p50_ms": "TTFT p50 ms (less)",
    "ttft_p99_ms": "TTFT p99 ms (less)",
    "tpot_p50_ms": "TPOT p50 ms (less)",
    "tpot_p99_ms": "TPOT p99 ms (less)",
    "itl_p50_ms": "ITL p50 ms (less)",
    "itl_p99_ms": "ITL p99 ms (less)",
    "itl_max_ms": "ITL max ms (less)",
    "cached_tokens": "cached tokens",
    "loop_share": "loops (of the answers)",
    "accept_length": "accept length",
    "guessed_share": "guessed (of the out tokens)",
    "prompt_tokens": "prompt tokens",
    "out_tokens": "out tokens",
    "errors": "errors",
    "client_cpu_s": "client cpu s",
}
HAVE_RATIO = tuple(ROWS)[:9]


def comparison(turns: Sequence[Turn]) -> str:
    """A table for each workload: medians, their ratios to the last server's, and the ranges of the
    pairs' ratios."""
    workloads = dict.fromkeys(turn.workload for turn in turns)
    return "\n\n".join(_table([t for t in turns if t.workload == name]) for name in workloads)


def _table(turns: Sequence[Turn]) -> str:
    """The table for one workload's turns, in the order in which they were taken."""
    servers = list(dict.fromkeys(turn.server for turn in turns))
    runs = [[turn.figures for turn in turns if turn.server == name] for name in servers]
    lines = [[turns[0].workload, *servers]]
    for name in servers[:-1]:
        lines[0] += [f"{name} / {servers[-1]}", "of the pairs"]
    lines += [_row(figure, runs) for figure in ROWS]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    ]
    each = [
        f"{name} {' '.join(f'{run.client_cpu_s:.2f}' for run in figures)}"
        for name, figures in zip(servers, runs, strict=True)
    ]
    widths_of_activations = dict.fromkeys(f"{t.server} {t.width}" for t in turns if t.width)
    return "\n".join(
        [*rows, f"client cpu s of each run: {'; '.join(each)}", *widths_of_activations]
    )


def _row(figure: str, runs: Sequence[Sequence[Figures]]) -> list[str]:
    values = [[getattr(run, figure) for run in figures] for figures in runs]
    known = [[value for value in of_one if value is not None] for of_one in values]
    medians = [median(of_one) if of_one else None for of_one in known]
    cells = [ROWS[figure], *(_cell(figure, value) for value in medians)]
    for of_one, middle in zip(values[:-1], medians[:-1], strict=True):
        pairs = [one / last for one, last in zip(of_one, values[-1], strict=True) if one and last]
        if figure in HAVE_RATIO and pairs and middle and medians[-1]:
            cells += [f"{middle / medians[-1]:.2f}", f"{min(pairs):.2f} to {max(pairs):.2f}"]
        else:
            cells += ["", ""]
    return cells


def _cell(figure: str, value: float | None) -> str:
    if value is None:
        return "-"
    if figure in SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
