"""The native kernels as a program of their own: plain, and under the compiler's sanitizers.

The program (tests/native/driver.cpp) checks itself; what a sanitizer finds ends it with a report.
"""

import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from scheduler_proc.kernels import build
from tests.scheduler_proc.kernels.compiler import needs_compiler
from tests.scheduler_proc.kernels.ops import levels

DRIVER = Path(__file__).parents[2] / "native" / "driver.cpp"
OPTIONS = {
    "ASAN_OPTIONS": "strict_init_order=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}
# Instrumented code takes 10 to 50 times as long, and more steps are of no new kind: from the first
# ones on, a model's requests share prefixes, are extended in chunks and decode.
SANITIZED_STEPS = 40


def run_driver(program: Path, steps: int, level: str = "") -> str:
    """The program's output; `level` is an instruction-set level, or empty for all."""
    env = {name: value for name, value in os.environ.items() if name != "SRT_ISA"} | OPTIONS
    command = [str(program), str(steps), *([level] if level else [])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The driver with a sanitizer, built once for all levels because it takes minutes."""

    @cache
    def program(sanitize: str) -> Path:
        if reason := missing_runtime(sanitize):
            pytest.skip(f"no -fsanitize={sanitize}: {reason}")
        output = tmp_path_factory.mktemp("driver") / "driver"
        return build.build_program(DRIVER, output, sanitize=sanitize)

    return program


@pytest.mark.full
@needs_compiler
@pytest.mark.timeout(1800)  # the compiler is several times slower beside other work
def test_every_thread_count_computes_the_same_without_allocating(tmp_path: Path) -> None:
    said = run_driver(build.build_program(DRIVER, tmp_path / "driver"), steps=50)
    assert "portable: " in said


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_a_sanitizer_finds_nothing(
    sanitized: Callable[[str], Path], sanitize: str, level: str
) -> None:
    said = run_driver(sanitized(sanitize), SANITIZED_STEPS, level)
    assert f"{level}: " in said
