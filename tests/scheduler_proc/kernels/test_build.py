"""How the native kernels are compiled and packaged, mostly tried with a small library."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.kernels import build
from tests.scheduler_proc.kernels.compiler import EXPORT, needs_compiler

ROOT = Path(__file__).parents[3]
PACKAGES = ("srt", "tokenizer_proc", "scheduler_proc", "detokenizer_proc", "lang")
ANSWER = f'#include "answer.h"\n{EXPORT}EXPORT int srt_answer() {{ return ANSWER; }}\n'


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A library of one function, srt_answer, whose value is in a header."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    (folder / "answer.cpp").write_text(ANSWER)
    return folder


def built(sources: Path) -> Path:
    """The library of `sources`, under a new name each time because loaded ones are cached."""
    folder = sources.parent
    output = folder / f"lib{len(list(folder.glob('*.so')))}.so"
    return build.build(output, sources=sources, objects=folder / "objects")


def call(path: Path, name: str) -> int:
    result: int = getattr(ctypes.CDLL(str(path)), name)()
    return result


def symbols(path: Path, *options: str) -> list[list[str]]:
    """What nm lists: address, kind and name of every symbol."""
    if not shutil.which("nm"):
        pytest.skip("no nm")
    lines = subprocess.check_output(["nm", *options, str(path)], text=True).splitlines()
    return [line.split(maxsplit=2) for line in lines]


@needs_compiler
class TestBuild:
    def test_the_library_answers_and_exports_only_its_abi(self, sources: Path) -> None:
        (sources / "names.cpp").write_text(
            "#include <string>\n#include <vector>\n"
            f"{EXPORT}EXPORT int other() {{ return 1; }}\n"
            "EXPORT int srt_names(int n) { std::vector<std::string> v(n); return v.size(); }\n"
        )
        path = built(sources)
        assert call(path, "srt_answer") == 42
        if sys.platform == "linux":
            exported = [name for _, _, name in symbols(path, "-D", "--defined-only")]
            assert exported == ["srt_answer", "srt_names"]

    def test_only_what_changed_is_compiled(self, sources: Path) -> None:
        (sources / "other.cpp").write_text("int other() { return 1; }\n")
        built(sources)
        answer, other = sorted((sources.parent / "objects").rglob("*.o"))
        first = answer.stat().st_mtime_ns, other.stat().st_mtime_ns
        built(sources)
        assert (answer.stat().st_mtime_ns, other.stat().st_mtime_ns) == first
        (sources / "other.cpp").write_text("int other() { return 2; }\n")
        built(sources)
        assert answer.stat().st_mtime_ns == first[0]
        assert other.stat().st_mtime_ns > first[1]
        (sources / "answer.h").write_text("#define ANSWER 43\n")
        assert call(built(sources), "srt_answer") == 43
        assert answer.stat().st_mtime_ns > first[0]

    def test_each_level_has_its_own_flags(
        self, sources: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flags = ("__AVX2__", "__AVX512VNNI__", "SRT_NO_X86", "__AMX_BF16__", "SRT_NO_AMX")
        ones = " + ".join(f"defined({flag}) * {10**i}" for i, flag in enumerate(flags))
        for name in ("isa_amx", "isa_avx2", "isa_avx512", "isa_portable"):
            (sources / f"{name}.cpp").write_text(
                f"#define V ({ones})\n"
                + "".join(
                    f"#if V == {v}\n#define W {v}\n#endif\n"
                    for v in (0, 1, 11, 100, 1011, 10000, 10001, 10011)
                )
                + f"{EXPORT}EXPORT int srt_{name}() {{ return W; }}\n"
            )
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        path = built(sources)
        assert call(path, "srt_isa_portable") == 100
        assert not hasattr(ctypes.CDLL(str(path)), "srt_isa_avx2")
        monkeypatch.undo()
        if not build.is_x86():
            pytest.skip("not an x86-64 machine")
        path = built(sources)
        names = ("isa_portable", "isa_avx2", "isa_avx512", "isa_amx")
        assert [call(path, f"srt_{name}") for name in names] == [0, 1, 11, 1011]
        monkeypatch.setattr(build, "_AMX", ("-mno-such-tiles",))
        path = built(sources)
        without = names[:3]
        assert [call(path, f"srt_{name}") for name in without] == [10000, 10001, 10011]
        assert not hasattr(ctypes.CDLL(str(path)), "srt_isa_amx")

    def test_it_says_what_it_compiles(self, sources: Path) -> None:
        (sources / "other.cpp").write_text("int other() { return 1; }\n")
        said: list[str] = []
        library, objects = sources.parent / "lib.so", sources.parent / "objects"
        for _ in range(2):  # the second finds nothing to do
            build.build(library, sources=sources, objects=objects, say=said.append)
        assert len(said) == 3 and said[0].startswith("compiling 2 files")
        names = sorted(line.rpartition(" ")[2] for line in said[1:])
        assert names == ["answer.cpp", "other.cpp"] and said[-1].startswith("2 of 2")

    def test_a_failure_tells_what_the_compiler_said_and_keeps_the_old_library(
        self, sources: Path
    ) -> None:
        output = built(sources)
        before = output.read_bytes()
        objects = sources.parent / "objects"
        (sources / "answer.cpp").write_text('#error "no answer"\n')
        with pytest.raises(build.BuildError, match="no answer"):
            build.build(output, sources=sources, objects=objects)
        (sources / "answer.cpp").write_text("int other(); int answer() { return other(); }\n")
        if sys.platform == "linux":
            with pytest.raises(build.BuildError, match="undefined reference"):
                build.build(output, sources=sources, objects=objects)
        assert output.read_bytes() == before
        assert [p for p in sources.parent.rglob("*.so*") if p != output] == []

    def test_a_compiler_that_does_not_exist_is_named(
        self, sources: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "/nonexistent/c++ -O0")
        with pytest.raises(build.BuildError, match="/nonexistent/c"):
            built(sources)

    def test_without_sources_it_says_where_it_looked(self, tmp_path: Path) -> None:
        with pytest.raises(build.BuildError, match=re.escape(str(tmp_path))):
            built(tmp_path)

    def test_the_command_reports_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("CXX", "/nonexistent/c++")
        with pytest.raises(SystemExit) as exit:
            build.main(["--output", str(tmp_path / "lib.so")])
        assert exit.value.code == 1
        assert "/nonexistent/c++" in capsys.readouterr().err


def test_compilers_have_the_memory_and_the_cpus_that_this_process_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Machine:
        cpus, memory = 8, 0

        def usable_cpus(self) -> int:
            return self.cpus

        def memory_available(self) -> int:
            return self.memory

    for gigabytes, jobs in ((0.2, 1), (2, 1), (4, 2), (100, 8)):
        Machine.memory = int(gigabytes * 10**9)
        monkeypatch.setattr(build, "_machine", Machine)
        assert build.jobs_at_once() == jobs


@pytest.fixture
def project(sources: Path) -> Path:
    """A checkout with this project's build and the small library's sources."""
    pytest.importorskip("setuptools", minversion="77")
    folder = sources.parent / "project"
    kernels = folder / "scheduler_proc" / "kernels"
    kernels.mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for package in PACKAGES:
        (folder / package).mkdir(exist_ok=True)
        for name in ("__init__.py", "py.typed"):
            shutil.copy(ROOT / package / name, folder / package / name)
    shutil.copy(ROOT / "srt" / "machine.py", folder / "srt")
    for file in build.LIBRARY.parent.glob("*.py"):
        shutil.copy(file, kernels)
    shutil.copytree(sources, kernels / "src")
    return folder


def run_hook(project: Path, hook: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Make a wheel as pip does, but without pip and the network; it is written to project/out."""
    command = f"from setuptools.build_meta import {hook}; {hook}('out')"
    return subprocess.run(
        [sys.executable, "-c", command],
        cwd=project,
        env={k: v for k, v in os.environ.items() if k != "SRT_REQUIRE_NATIVE"} | env,
        capture_output=True,
        text=True,
        check=False,
    )


def wheel_of(project: Path) -> tuple[str, list[str]]:
    """The name of the wheel in project/out, and the files of the kernels in it."""
    (wheel,) = (project / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(project / "unpacked")
        names = [n for n in archive.namelist() if n.startswith("scheduler_proc/kernels/")]
    return wheel.name, sorted(n.rpartition("/")[2] for n in names)


PYTHON_FILES = ["__init__.py", "build.py", "level.py", "library.py"]


class TestInstall:
    @needs_compiler
    def test_a_wheel_is_for_the_machine_and_has_the_library(self, project: Path) -> None:
        result = run_hook(project, "build_wheel")
        assert result.returncode == 0, result.stderr
        name, files = wheel_of(project)
        assert re.fullmatch(r"srt_lang-.*-py3-none-(?!any)\w+\.whl", name)
        assert files == sorted([*PYTHON_FILES, "libsrt_kernels.so"])
        installed = project / "unpacked" / "scheduler_proc" / "kernels" / "libsrt_kernels.so"
        assert call(installed, "srt_answer") == 42
        assert b".debug_info" not in installed.read_bytes()
        assert not (project / "scheduler_proc" / "kernels" / "libsrt_kernels.so").exists()

    def test_a_wheel_says_that_it_is_typed_and_under_which_licence(self, project: Path) -> None:
        assert run_hook(project, "build_wheel", CXX="/nonexistent/c++").returncode == 0
        wheel_of(project)
        typed = {path.parent.name for path in (project / "unpacked").glob("*/py.typed")}
        assert typed == set(PACKAGES)
        (info,) = (project / "unpacked").glob("*.dist-info")
        assert "License-Expression: Apache-2.0\n" in (info / "METADATA").read_text()
        assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()

    @needs_compiler
    def test_an_editable_install_has_it_beside_the_sources(self, project: Path) -> None:
        assert run_hook(project, "build_editable").returncode == 0
        path = project / "scheduler_proc" / "kernels" / "libsrt_kernels.so"
        assert call(path, "srt_answer") == 42
        assert b".debug_info" in path.read_bytes() or sys.platform != "linux"

    @needs_compiler
    def test_a_source_distribution_can_be_built(self, project: Path, tmp_path: Path) -> None:
        assert run_hook(project, "build_sdist").returncode == 0
        (archive,) = (project / "out").iterdir()
        # Python before 3.11.4 does not know filters.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(archive, tmp_path / "sdist", **safely)
        (unpacked,) = (tmp_path / "sdist").iterdir()
        assert run_hook(unpacked, "build_wheel").returncode == 0
        assert "libsrt_kernels.so" in wheel_of(unpacked)[1]

    def test_without_a_compiler_the_install_works_and_warns(self, project: Path) -> None:
        result = run_hook(project, "build_wheel", CXX="/nonexistent/c++")
        assert result.returncode == 0, result.stderr
        assert "native kernels were not built" in result.stdout + result.stderr
        assert "/nonexistent/c++" in result.stdout + result.stderr
        assert wheel_of(project)[1] == PYTHON_FILES

    def test_a_failed_build_leaves_no_older_library(self, project: Path) -> None:
        path = project / "scheduler_proc" / "kernels" / "libsrt_kernels.so"
        path.touch()
        (path.parent / "src" / "answer.cpp").write_text("#error\n")
        assert run_hook(project, "build_editable").returncode == 0
        assert not path.exists()

    def test_it_can_be_required(self, project: Path) -> None:
        env = {"CXX": "/nonexistent/c++", "SRT_REQUIRE_NATIVE": "1"}
        result = run_hook(project, "build_wheel", **env)
        assert result.returncode != 0
        assert "/nonexistent/c++" in result.stderr


@needs_compiler
@pytest.mark.parametrize("unit", build.ISA_FLAGS)
def test_a_level_shares_no_code_with_other_files(unit: str) -> None:
    """The linker keeps one copy of a function that several files define. If that were the copy of
    a level, a CPU without the level would run it and crash."""
    level = unit.removeprefix("isa_").removesuffix(".cpp")
    shared = [name for _, kind, name in symbols_of(level, "-C") if kind in "WVu"]
    assert [name for name in shared if f"srt::{level}::" not in name] == []


@needs_compiler
@pytest.mark.parametrize("unit", build.ISA_FLAGS)
def test_loading_the_library_runs_nothing_of_a_level(unit: str) -> None:
    """Constructors of a file's globals run on every CPU, even one without the level."""
    level = unit.removeprefix("isa_").removesuffix(".cpp")
    assert [name for _, _, name in symbols_of(level) if "_GLOBAL__sub_I" in name] == []


def symbols_of(level: str, *options: str) -> list[list[str]]:
    """The symbols that the file of a level defines."""
    path = build.make_toolchain(build.OBJECTS, None).objects / f"isa_{level}.o"
    if not path.exists():
        pytest.skip(f"the native kernels were not built here for {level}")
    return symbols(path, *options, "--defined-only")
