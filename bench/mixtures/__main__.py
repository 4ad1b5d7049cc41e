"""`python -m bench.mixtures`: mixtures of experts on our engine and on llama.cpp's, in turns.

Writes GGUF files of random weights with the layers of released models, as many as `--gigabytes`
hold, and has both engines compute the same work on each: a prompt of 512 tokens and decodes of 1, 8
and 32 rows. Shows the medians in tokens/s, their ratios, the range of the ratios of single rounds,
and for our engine which share of the memory's bandwidth decoding one row takes.

llama.cpp is built by `python -m bench.peers llamacpp --setup | sh`.

With `--served` our server is started on each file, alone and with two replicas, and answers the six
workloads of `bench.serving`; the exit status is 1 if a request failed.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import serving
from bench.kernel_calls import Operations
from bench.mixtures.files import QUANTIZATIONS, SHAPES, write_mixture
from bench.mixtures.runs import DECODES, PROMPT, EngineError, Times, llamacpp, ours
from bench.peers.catalogue import DEFAULT_HOME, LlamaCpp
from bench.roofline import Runner, markdown, number, percent
from scheduler_proc.kernels.library import load
from srt.files.model_files import resolve_model
from srt.files.sizes import model_sizes
from srt.machine import usable_cpus
from srt.progress import shown

CASES = (PROMPT, PROMPT, *DECODES)
_READ_BYTES = 512_000_000
_REPLICAS = ("", "--dp 2")  # options of the servers


class Figures(NamedTuple):
    """Tokens per second of one round, by what was measured."""

    prompt: float
    decode: dict[int, float]  # by rows

    def named(self) -> Iterator[tuple[str, float]]:
        """Each with the name of its row in the table."""
        yield f"prompt of {PROMPT.prompt}", self.prompt
        for rows, rate in self.decode.items():
            yield f"decode, {rows} rows" if rows > 1 else "decode, 1 row", rate


def figures_of(times: Sequence[Times]) -> Figures:
    """Of one round; of a case that ran twice the second time counts."""
    decode = {each.rows: each.rows * each.tokens / each.decode_s for each in times}
    prompt = [each for each in times if each.prompt == PROMPT.prompt][-1]
    return Figures(prompt.prompt * prompt.rows / prompt.prompt_s, decode)


def compared(ours_of: Sequence[Figures], theirs_of: Sequence[Figures]) -> list[list[str]]:
    """A row for each thing measured: our median and, unless only ours was measured, theirs, the
    ratio of the two, and the range of the ratios of the rounds."""
    ours_by, theirs_by = _by_name(ours_of), _by_name(theirs_of)
    rows = []
    for name, our in ours_by.items():
        median = statistics.median(our)
        row = [name, number(median)]
        if their := theirs_by.get(name):
            ratios = sorted(a / b for a, b in zip(our, their, strict=True))
            peer = statistics.median(their)
            row += [number(peer), f"{median / peer:.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
        rows.append(row)
    return rows


def _by_name(rounds: Sequence[Figures]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for figures in rounds:
        for name, rate in figures.named():
            found.setdefault(name, []).append(rate)
    return found


def read_rate(threads: int, level: str | None) -> float:
    """Bytes per second that all threads together read of what no cache holds."""
    library = load()
    data = np.ones(_READ_BYTES, np.uint8)
    with closing(Operations(library, threads, level or library.isa(), "8")) as operations:
        return _READ_BYTES / Runner().time([operations.read(data)]).best_s


class Comparison:
    """Measures files with the options of the command line, and prints a table for each."""

    def __init__(
        self, args: argparse.Namespace, peer: Path | None, show: Callable[[str], None]
    ) -> None:
        self._args, self._peer, self._show = args, peer, show

    def measure(self, title: str, model: Path) -> None:
        """Both engines in turns: who is first changes from round to round."""
        args, sizes = self._args, model_sizes(resolve_model(str(model)))
        our, their = list[Figures](), list[Figures]()
        for turn in range(args.repeat):
            for is_ours in (True, False) if turn % 2 == 0 else (False, True):
                if is_ours:
                    our.append(figures_of(ours(model, CASES, args.threads, args.level)))
                elif self._peer is not None:
                    their.append(figures_of(llamacpp(self._peer, model, CASES, args.threads)))
        read = read_rate(args.threads, args.level)
        share = statistics.median(each.decode[1] for each in our) * sizes.active_bytes / read
        self._show(
            f"\n{title}: {shown(sizes.weight_bytes)}, of which a token passes through "
            f"{shown(sizes.active_bytes)}; {args.threads} threads, {args.repeat} rounds"
        )
        columns = ["tokens/s", "ours", "llama.cpp", "ratio", "of the rounds"]
        self._show(markdown(columns if their else columns[:2], compared(our, their)))
        self._show(
            f"decode, 1 row: {percent(share)} of what {number(read / 1e9)} GB/s of reading allow"
        )


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mixtures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, action="append", help="the same")
    parser.add_argument(
        "--gigabytes", type=float, default=4.0, help="of a file's layers, of 2^30 bytes each"
    )
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--level", help="an instruction level, as in SRT_ISA")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="where peers are installed")
    parser.add_argument("--served", action="store_true", help="run workloads on a server instead")
    parser.add_argument("--scale", type=float, default=0.1, help="of the workloads")
    parser.add_argument("--no-peer", action="store_true", help="our engine only")
    parser.add_argument("--folder", type=Path, help="write the files there, and keep them")
    return parser.parse_args(argv)


def served(model: Path, scale: float) -> bool:
    """Whether our server answers all workloads on `model` without an error, alone and with two
    replicas. Shows the figures of each."""
    argv = ["--workload", "all", "--scale", str(scale), "--guesses", "on"]
    argv += ["--model-file", str(model)]
    return all(serving.main([*argv, "--server-args", options]) == 0 for options in _REPLICAS)


def write_files(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """Each file that is asked for, written to `folder` unless it is there, and what it is. A file
    that nobody wants to keep is gone when the next one is asked for."""
    for name in args.shape or SHAPES:
        for quantization in args.quantization or QUANTIZATIONS:
            kind, whole = QUANTIZATIONS[quantization], SHAPES[name]
            layers = whole.layers_within(int(args.gigabytes * 2**30), kind)
            path = folder / f"{name}-{layers}-{quantization}.gguf"
            if not path.exists():
                part = path.with_suffix(".part")
                write_mixture(part, whole._replace(layers=layers), quantization)
                part.rename(path)
            yield f"{name}, {layers} of {whole.layers} layers, {quantization}", path
            if args.folder is None:
                path.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    args = parse_args(argv)
    peer = LlamaCpp(args.home.absolute()).batched_bench
    if not (args.served or args.no_peer or peer.exists()):
        how = "python -m bench.peers llamacpp --setup | sh builds it; --no-peer goes without"
        print(f"{peer} is missing: {how}", file=sys.stderr)
        return 1
    shown_at_once = partial(print, flush=True)
    comparison = Comparison(args, None if args.no_peer else peer, shown_at_once)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for title, path in write_files(args, folder):
            if args.served:
                print(f"\n{title}", flush=True)
                if not served(path, args.scale):
                    return 1
                continue
            try:
                comparison.measure(title, path)
            except EngineError as error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
