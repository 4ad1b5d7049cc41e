"""`python -m bench.fairness`: what one API key takes from another.

A server is started, and its capacity measured with A's requests of 16 output tokens. Then B sends
0.3 of that at random times, alone and beside A at multiples of the capacity. A also asks for long
outputs, and two keys of other shares ask for more than there is. Each figure has its target; the
exit status is 1 if one is missed. A run takes some six minutes; `--only` chooses parts.
"""

import argparse
import asyncio
import shlex
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.fairness.parts import PARTS, Line, Measured, calibrate
from bench.fairness.traffic import served
from bench.roofline import markdown
from srt.benchmark.summary import now
from srt.machine import machine


async def measure(args: argparse.Namespace) -> list[Line]:
    """The lines of all parts, which are printed as they come."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as directory:
        folder = args.folder or Path(directory)
        async with served(shlex.split(args.server_args), folder) as server:
            measured = Measured(server, args.requests)
            for part in (calibrate, *(PARTS[name] for name in args.only)):
                async for line in part(measured):
                    lines.append(line)
                    print(" ".join(_cells(line)), flush=True)
    return lines


def _cells(line: Line) -> list[str]:
    met = "" if not line.target else "yes" if line.is_met else "NO"
    return [line.part, line.what, f"{line.value:.3f}", line.target, met]


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS], help="parts")
    parser.add_argument("--requests", type=int, default=300, help="of B at each load, at least")
    parser.add_argument("--server-args", default="", help="options for the server, in one string")
    parser.add_argument("--folder", type=Path, help="where the server's log and keys are kept")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    lines = asyncio.run(measure(args))
    print(f"\n{now()} {machine()}\n")
    print(markdown(("part", "figure", "value", "target", "met"), [*map(_cells, lines)]))
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(lines)))
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
