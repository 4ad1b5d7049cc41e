"""The pack for a GPU machine: finding nvcc, bounding its time, and what the script packs, with a
`python` that downloads and compiles nothing."""

import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.gpu_modules import CompileError, build, find_compiler
from tests.waiting import SOON_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]

# What the script asks of Python: pip downloads, an unpacked wheel, imports, compiled modules.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
*"pip download"*flashinfer*) : > "$work/flashinfer_python-1-py3-none-any.whl" ;;
*"pip download"*) : > "$dir/whl/a-1.whl"; printf 12345 > "$dir/whl/b-1.whl" ;;
*zipfile*)
    full=$work/full/flashinfer
    mkdir -p "$full/data/csrc/nested" "$full/data/include" "$full/data/cccl" "$full/data/spdlog"
    mkdir -p "$full/data/cutlass/include" "$full/data/cutlass/tools/util/include" "$full/moe_ep"
    mkdir -p "$work/full/flashinfer_python-1.dist-info"
    for name in __init__.py moe_ep/m.py data/include/h.h data/csrc/batch_prefill.cu \\
        data/csrc/batch_decode.cu \\
        data/csrc/norm.cu data/csrc/nested/large.cu; do : > "$full/$name"; done
    : > "$work/full/flashinfer_python-1.dist-info/METADATA" ;;
*gpu_modules*)
    [ -d "$work/full/flashinfer" ] || exit 9
    mkdir -p "$work/aot/cascade"; : > "$work/aot/cascade/cascade.so"; exit "${MODULES_STATUS:-0}" ;;
esac
"""


def pack(directory: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script into `directory`/pack."""
    python = directory / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    target = directory / "pack"
    given = {"PYTHON": str(python), "dir": str(target), "work": str(target / "work")}
    return subprocess.run(
        ["sh", str(ROOT / "bench/gpu_pack.sh"), *options, str(target)],
        env={**os.environ, **given, **env},
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )


def packed(directory: Path) -> set[str]:
    """Files of the archive."""
    with tarfile.open(directory / "pack/flashinfer.tar.gz") as archive:
        return {name.removeprefix("./") for name in archive.getnames() if "." in Path(name).name}


def test_the_pack_has_modules_templates_and_sources(tmp_path: Path) -> None:
    done = pack(tmp_path)
    assert done.returncode == 0, done.stderr
    data = "flashinfer/data"
    assert packed(tmp_path) >= {
        "flashinfer/__init__.py",
        f"{data}/aot/cascade/cascade.so",
        f"{data}/csrc/batch_prefill.cu",
        f"{data}/csrc/norm.cu",
        f"{data}/include/h.h",
    }
    assert not any("moe_ep" in name or "large.cu" in name for name in packed(tmp_path))
    assert "kernels compiled here: 1" in done.stdout


def test_a_pack_without_sources(tmp_path: Path) -> None:
    """Of the sources there remain the templates that FlashInfer always reads."""
    assert pack(tmp_path, "--without-jit").returncode == 0
    sources = {name for name in packed(tmp_path) if name.endswith((".cu", ".h"))}
    folder = "flashinfer/data/csrc"
    assert sources == {f"{folder}/batch_prefill.cu", f"{folder}/batch_decode.cu"}


def test_a_pack_that_is_too_large_or_lacks_modules(tmp_path: Path) -> None:
    too_large = pack(tmp_path, "--max-mib", "0")
    assert too_large.returncode == 1
    assert "more than 0 MiB" in too_large.stderr
    assert pack(tmp_path, MODULES_STATUS="1").returncode == 0
    assert pack(tmp_path, "--without-jit", MODULES_STATUS="1").returncode == 1


def test_nvcc_may_be_a_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is the one that the real nvcc says."""
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '#$ _HERE_={home}/bin' >&2\necho '#$ TOP=$(_HERE_)/..' >&2\n")
    ninja = tmp_path / "ninja"
    ninja.write_text("#!/bin/sh\n")
    for program in (nvcc, ninja):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    found = find_compiler()
    assert found is not None
    assert (found.nvcc, found.home) == (nvcc, home)


class Spec(NamedTuple):
    """A module that a shell command "compiles"."""

    build_dir: Path
    command: str

    @property
    def jit_library_path(self) -> Path:
        return self.build_dir / "out"

    def write_ninja(self) -> None:
        rules = f"rule r\n  command = {self.command}\nbuild out: r\n"
        (self.build_dir / "build.ninja").write_text(rules)


@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
def test_a_compiler_is_ended_with_its_time(tmp_path: Path) -> None:
    """So are its children, which would hold up everything else; other failures say why."""
    assert build(Spec(tmp_path, "echo x > out"), 1, SOON_S).library.read_text() == "x\n"
    (tmp_path / "out").unlink()
    with pytest.raises(CompileError, match="no such header"):
        build(Spec(tmp_path, "echo no such header; exit 3"), 1, SOON_S)
    start = time.monotonic()
    with pytest.raises(CompileError, match="not compiled in 1 s"):
        build(Spec(tmp_path, "sleep 600 & sleep 600"), 1, 1.0)
    assert time.monotonic() - start < SOON_S
