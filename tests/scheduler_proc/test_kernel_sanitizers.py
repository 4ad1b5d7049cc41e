"""The native kernels as a program of their own: plain, and under the compiler's sanitizers.

The program (tests/native/driver.cpp) checks itself; what a sanitizer finds ends it with a report.
"""

import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from scheduler_proc.kernels import build
from tests.scheduler_proc.compiler import needs_compiler

DRIVER = Path(__file__).parents[1] / "native" / "driver.cpp"
OPTIONS = {
    "ASAN_OPTIONS": "strict_init_order=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}


def run_driver(folder: Path, steps: int, sanitize: str | None = None) -> None:
    program = build.build_program(DRIVER, folder / "driver", sanitize=sanitize)
    env = {name: value for name, value in os.environ.items() if name != "SRT_ISA"} | OPTIONS
    done = subprocess.run(
        [program, str(steps)], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "portable: " in done.stdout


@cache
def missing_runtime(sanitize: str) -> str:
    """Why programs with this sanitizer cannot be built and run here; empty if they can."""
    command = [*build.compiler(), "-x", "c++", "-", f"-fsanitize={sanitize}", "-pthread"]
    with TemporaryDirectory() as folder:
        program = f"{folder}/empty"
        made = subprocess.run(
            [*command, "-o", program],
            input="int main() {}",
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            return made.stderr
        return subprocess.run([program], capture_output=True, text=True, check=False).stderr


@needs_compiler
def test_every_thread_count_computes_the_same_without_allocating(tmp_path: Path) -> None:
    run_driver(tmp_path, steps=50)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_a_sanitizer_finds_nothing(tmp_path: Path, sanitize: str) -> None:
    if reason := missing_runtime(sanitize):
        pytest.skip(f"no -fsanitize={sanitize}: {reason}")
    run_driver(tmp_path, steps=200, sanitize=sanitize)
