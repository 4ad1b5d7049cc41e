"""Runs the tests of tests/gpu, each file in a process of its own, and keeps each test's outcome.

An error of CUDA leaves a process without its device: one file cannot spoil the next.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.gpu_report import recorder
from bench.gpu_report.recorder import Outcome
from bench.gpu_report.sections import Context

ROOT = Path(__file__).parents[2]
FILE_LIMIT_S = 150.0
TAIL_CHARS = 4000


def run(context: Context) -> None:
    """The section `tests`: outcomes by test, and the end of the output of files that failed."""
    counts: Counter[str] = Counter()
    for path in sorted(context.tests.glob("test_*.py")):
        start = time.monotonic()
        outcomes, end = run_file(path, FILE_LIMIT_S)
        counts.update(outcome.outcome for outcome in outcomes.values())
        found: dict[str, object] = {"seconds": time.monotonic() - start, "tests": outcomes}
        if end:
            found["output"] = end
        context.sink.put(path.name, found)
        context.sink.put("counts", counts)


def run_file(path: Path, limit_s: float) -> tuple[dict[str, Outcome], str]:
    """Outcomes by test, and the output's end if the file has not succeeded as a whole."""
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--tb=short"]
    command += ["-m", "not slow and not ui"]  # the tests on the CPU leave most of these out
    command += ["-p", recorder.__name__, "-p", "no:cacheprovider", "--color=no", str(path)]
    with tempfile.TemporaryDirectory() as directory:
        lines, log = Path(directory) / "outcomes", Path(directory) / "log"
        with log.open("w") as output:
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    env={**os.environ, recorder.VARIABLE: str(lines)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                ).returncode
                end = "" if code in (0, _NO_TESTS) else f"exit status {code}"
            except subprocess.TimeoutExpired:
                end = f"ended after {limit_s} s"
        return recorder.read(lines), f"{log.read_text()[-TAIL_CHARS:]}\n{end}" if end else ""


_NO_TESTS = 5  # pytest's exit status
