"""Compiles src/*.cpp into libsrt_kernels.so: for setup.py, and as a command in a checkout.

One library holds every instruction-set level, and the CPU's is chosen when it is loaded: only the
file of a level is compiled for it, so the library runs on any machine of its architecture.

setup.py and the Makefile load this file by its path while nothing is installed: the standard
library only.
"""

import argparse
import hashlib
import importlib.util
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

_PACKAGE = Path(__file__).resolve().parent

LIBRARY = _PACKAGE / "libsrt_kernels.so"
SOURCES = _PACKAGE / "src"
OBJECTS = _PACKAGE.parents[1] / "build"
SANITIZERS = ("address", "undefined", "thread")

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (
    *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")),
    *_AVX2,
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # in gcc's own header: its bug 105593
)
_AMX = (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16")
ISA_FLAGS = {
    "isa_avx2.cpp": _AVX2,
    "isa_avx512.cpp": _AVX512,
    "isa_amx.cpp": _AMX,
}
_NO_AMX = "-DSRT_NO_AMX"  # for compilers that are too old for its flags
# Without vector instructions -O3 takes minutes to unroll what stays slow.
_OTHER_FLAGS = {"isa_portable.cpp": ("-O2",)}

# Contraction would make a level's results depend on the compiler's choice of fused operations.
_COMPILE: tuple[str, ...] = (
    *("-std=c++17", "-O3", "-g1", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"),
)
_SANITIZE = (
    *("-O1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"),
    # With these checks inline a level's file takes ten minutes; what is left out, ASan sees too.
    *("--param=asan-instrumentation-with-call-threshold=0", "-fno-sanitize=null,object-size"),
)

# Of a compiler with the file of a level: what has been seen.
_COMPILER_BYTES = 1_500_000_000

# Templates of the C++ library would be exported otherwise, and could bind to another module's.
_EXPORTS = "{ global: srt_*; local: *; };\n"


class BuildError(Exception):
    """The library could not be built; the text is the compiler's."""


def _quiet(line: str) -> None:
    """Say nothing of what is being done."""


class Toolchain(NamedTuple):
    compiler: tuple[str, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    objects: Path  # what these flags made, and nothing else


def build(
    output: Path = LIBRARY,
    *,
    sources: Path = SOURCES,
    objects: Path = OBJECTS,
    sanitize: str | None = None,
    has_lines: bool = True,
    say: Callable[[str], object] = _quiet,
) -> Path:
    """Compile what has changed in `sources` and put the library at `output` in one step; `say`
    gets a line for each file. Without `has_lines` the library does not know its lines of source,
    which only debuggers and profilers ask for, and is a fifth as large.

    Raises BuildError, and leaves `output` alone, if anything is missing or does not compile.
    """
    toolchain = make_toolchain(objects, sanitize)
    made = _compile_all(_units(sources, toolchain), sources, toolchain, say)
    flags = _library_flags(toolchain)
    _link(made, output, toolchain, flags if has_lines else [*flags, "-Wl,-S"])
    return output


def build_program(
    driver: Path,
    output: Path,
    *,
    sources: Path = SOURCES,
    objects: Path = OBJECTS,
    sanitize: str | None = None,
) -> Path:
    """Link `driver`, which has a main(), with the library's objects: for tests, where a sanitizer
    wants a program of its own."""
    toolchain = make_toolchain(objects, sanitize)
    units = [*_units(sources, toolchain), driver]
    _link(_compile_all(units, sources, toolchain), output, toolchain)
    return output


def compiler() -> tuple[str, ...]:
    """The C++ compiler's command: the environment's CXX, or the first that is installed."""
    if command := shlex.split(os.environ.get("CXX", "")):
        return tuple(command)
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return (name,)
    raise BuildError("there is no C++ compiler: install g++ or clang++, or name one in CXX")


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def make_toolchain(objects: Path, sanitize: str | None) -> Toolchain:
    """The compiler, its flags on this machine, and the folder in `objects` for what they make."""
    command = compiler()
    compile_flags, link_flags = _COMPILE, ["-pthread"]
    if not is_x86():
        compile_flags += ("-DSRT_NO_X86",)
    elif not _accepts(command, _AMX):
        compile_flags += (_NO_AMX,)
    if sanitize:
        compile_flags += (f"-fsanitize={sanitize}", *_SANITIZE)
        link_flags += [f"-fsanitize={sanitize}"]
    elif sys.platform == "linux":
        link_flags += ["-static-libstdc++", "-static-libgcc", "-Wl,--no-undefined"]
    made_by = (command, _run([*command, "--version"]), compile_flags, ISA_FLAGS, _OTHER_FLAGS)
    digest = hashlib.sha256(repr(made_by).encode()).hexdigest()[:8]
    objects = objects / f"kernels-{sanitize or 'release'}-{digest}"
    objects.mkdir(parents=True, exist_ok=True)
    return Toolchain(command, compile_flags, tuple(link_flags), objects)


def _accepts(command: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether the compiler knows these flags."""
    try:
        _run([*command, *flags, "-fsyntax-only", "-x", "c++", os.devnull])
    except BuildError:
        return False
    return True


def _units(sources: Path, toolchain: Toolchain) -> list[Path]:
    units = sorted(sources.glob("*.cpp"))
    if not units:
        raise BuildError(f"there are no C++ sources in {sources}: build from a checkout")
    left_out = set() if is_x86() else set(ISA_FLAGS)
    if _NO_AMX in toolchain.compile_flags:
        left_out.add("isa_amx.cpp")
    return [unit for unit in units if unit.name not in left_out]


def _compile_all(
    units: Sequence[Path],
    sources: Path,
    toolchain: Toolchain,
    say: Callable[[str], object] = _quiet,
) -> list[Path]:
    headers_time = _headers_time(sources)
    targets = {unit: toolchain.objects / f"{unit.stem}.o" for unit in units}
    stale = [unit for unit, target in targets.items() if _is_stale(unit, target, headers_time)]
    if not stale:
        return list(targets.values())
    jobs = min(len(stale), jobs_at_once())
    say(f"compiling {len(stale)} files of the native kernels, {jobs} at a time; some take minutes")
    started, count = time.monotonic(), itertools.count(1)

    def compile_one(unit: Path) -> None:
        _compile(unit, targets[unit], toolchain)
        took = time.monotonic() - started
        say(f"{next(count)} of {len(stale)} compiled after {took:.0f} s: {unit.name}")

    with ThreadPoolExecutor(jobs) as pool:
        # The files of levels take longest.
        ordered = sorted(stale, key=lambda unit: unit.name not in ISA_FLAGS)
        list(pool.map(compile_one, ordered))
    return list(targets.values())


def jobs_at_once() -> int:
    """How many compilers may run: by the CPUs and by the memory that this process may use."""
    machine = _machine()
    jobs: int = min(machine.usable_cpus(), machine.memory_available() // _COMPILER_BYTES)
    return max(1, jobs)


def _machine() -> ModuleType:
    """srt/machine.py by its path, which needs the standard library only."""
    path = _PACKAGE.parents[1] / "srt" / "machine.py"
    spec = importlib.util.spec_from_file_location("srt_machine_of_the_build", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_stale(unit: Path, target: Path, headers_time: int) -> bool:
    headers_time = max(headers_time, _headers_time(unit.parent))
    return not target.exists() or _mtime(target) <= max(_mtime(unit), headers_time)


def _compile(unit: Path, target: Path, toolchain: Toolchain) -> None:
    own = (*ISA_FLAGS.get(unit.name, ()), *_OTHER_FLAGS.get(unit.name, ()))
    flags = (*toolchain.compile_flags, *own)
    _replace(target, [*toolchain.compiler, *flags, "-c", str(unit)])


def _library_flags(toolchain: Toolchain) -> list[str]:
    if sys.platform != "linux":
        return ["-shared"]
    exports = toolchain.objects / "exports.map"
    exports.write_text(_EXPORTS, encoding="ascii")
    return ["-shared", "-Xlinker", f"--version-script={exports}"]


def _link(
    objects: Sequence[Path], output: Path, toolchain: Toolchain, flags: Sequence[str] = ()
) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [*toolchain.compiler, *map(str, objects), *toolchain.link_flags, *flags]
    _replace(output, command)


def _replace(target: Path, command: Sequence[str]) -> None:
    # A process that has the old library open keeps it, and none sees half a file.
    made = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        sys.stderr.write(_run([*command, "-o", str(made)]))
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def _run(command: Sequence[str]) -> str:
    """Run the compiler; what it said."""
    try:
        result = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    if result.returncode:
        raise BuildError(f"{shlex.join(command)}\n{result.stdout}")
    return result.stdout


def _headers_time(folder: Path) -> int:
    return max((_mtime(path) for path in folder.iterdir() if path.suffix != ".cpp"), default=0)


def _mtime(path: Path) -> int:
    return path.stat().st_mtime_ns


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scheduler_proc.kernels.build")
    parser.add_argument("--sanitize", choices=SANITIZERS, help="instrument the code with this")
    parser.add_argument("--output", type=Path, default=LIBRARY, help="default: %(default)s")
    args = parser.parse_args(argv)
    try:
        build(args.output, sanitize=args.sanitize, say=_say)
    except BuildError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
