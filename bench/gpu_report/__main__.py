"""`python -m bench.gpu_report --out FILE`: measures and tests the CUDA path, and judges it.

One command that needs no network and ends within `--limit-s`. Its sections run one after the other,
the most important first, each in a process of its own with a time limit. The file is written after
each. `--device cpu --scale toy` runs the same code in seconds; its figures mean nothing.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from bench.gpu_report import ceilings, kernels, outcomes, server, steps
from bench.gpu_report.bars import judged
from bench.gpu_report.sections import Context, Section, Sink, write_json
from srt.benchmark.summary import now

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "ceilings": Section(60, ceilings.run),
    "model, flashinfer": Section(110, partial(steps.run, backend="flashinfer")),
    "tests": Section(200, outcomes.run),
    "model, triton": Section(110, partial(steps.run, backend="triton")),
    "kernels": Section(50, kernels.run),
    "server": Section(150, server.run),
}
LEFT_S = 5.0  # of the whole time, for writing the report


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_report", description=__doc__)
    parser.add_argument("--device", default="cuda", help="torch device (default: %(default)s)")
    parser.add_argument("--scale", choices=("toy", "full"), default="full")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--limit-s", type=float, default=570.0, help="of everything")
    parser.add_argument(
        "--sections", nargs="+", choices=[*SECTIONS], default=[*SECTIONS], metavar="SECTION"
    )
    parser.add_argument("--tests", type=Path, default=ROOT / "tests/gpu", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if a section has not been completed or a bar is missed."""
    args = parse_args(argv)
    if args.child is not None:
        return _run_child(args)
    report: dict[str, Any] = {
        "date": now(),
        "device": args.device,
        "scale": args.scale,
        "sections": {},
    }
    end = time.monotonic() + args.limit_s - LEFT_S
    for name in args.sections:
        report["sections"][name] = section = _section(args, name, end)
        figures = {key: found["figures"] for key, found in report["sections"].items()}
        report["bars"] = judged(figures)
        write_json(args.out, report)
        print(f"{name}: {section['status']}, {section['seconds']:.0f} s", flush=True)
    for name, bar in report["bars"].items():
        print(f"{name}: {bar['value']} ({bar['bar']}): {_VERDICTS[bar['passed']]}")
    is_whole = all(section["status"] == "done" for section in report["sections"].values())
    missed = args.scale == "full" and any(b["passed"] is False for b in report["bars"].values())
    return 0 if is_whole and not missed else 1


_VERDICTS = {True: "passed", False: "MISSED", None: "not measured"}


def _section(args: argparse.Namespace, name: str, end: float) -> dict[str, Any]:
    """Run a section in a process of its own, within its limit and before `end`."""
    start = time.monotonic()
    limit_s = min(SECTIONS[name].limit_s, end - start)
    if limit_s <= 0:
        return {"status": "no time left", "seconds": 0.0, "figures": {}}
    with tempfile.TemporaryDirectory() as directory:
        part = Path(directory) / "part.json"
        command = [sys.executable, "-m", "bench.gpu_report", "--child", str(part)]
        command += ["--sections", name, "--out", str(args.out), "--tests", str(args.tests)]
        command += ["--device", args.device, "--scale", args.scale]
        with (Path(directory) / "log").open("w+") as log:
            status = _status_of(command, log, limit_s)
            log.seek(0)
            output = log.read()[-8000:]
        figures = msgspec.json.decode(part.read_bytes()) if part.exists() else {}
    section = {"status": status, "seconds": time.monotonic() - start, "figures": figures}
    return section if status == "done" else {**section, "output": output}


def _status_of(command: list[str], log: Any, limit_s: float) -> str:
    """Run a command; what it starts ends with it."""
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        code = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return f"ended after {limit_s:.0f} s"
    return "done" if code == 0 else f"failed: exit status {code}"


def _run_child(args: argparse.Namespace) -> int:
    """Run the section in this process; its figures go to the file `args.child`."""
    peaks: dict[str, float] = {}
    if args.out.exists():
        measured = msgspec.json.decode(args.out.read_bytes())["sections"].get("ceilings", {})
        peaks = {k: v for k, v in measured.get("figures", {}).items() if isinstance(v, float)}
    context = Context(
        device=torch.device(args.device),
        is_full=args.scale == "full",
        peaks=peaks,
        sink=Sink(args.child),
        tests=args.tests,
    )
    torch.manual_seed(0)
    try:
        SECTIONS[args.sections[0]].run(context)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
