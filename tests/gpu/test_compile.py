"""FlashInfer's kernels for a Hopper GPU are compiled without one, as the pack needs them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_modules import KERNELS, find_compiler

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
LIMIT_S = 3000.0  # ten minutes on two idle cores


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 300)
def test_flashinfers_modules_are_compiled(tmp_path: Path) -> None:
    """Each is a library with code for the GPU, under the name by which FlashInfer looks for it."""
    if importlib.util.find_spec("flashinfer") is None:
        pytest.skip("flashinfer is not installed")
    if find_compiler() is None:
        pytest.skip("nvcc or ninja is not installed")
    command = [sys.executable, "-m", "bench.gpu_modules"]
    options = ["--out", str(tmp_path / "aot"), "--work", str(tmp_path / "work")]
    options += ["--limit-s", str(LIMIT_S)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    libraries = sorted((tmp_path / "aot").glob("*/*.so"))
    assert len(libraries) == len(KERNELS) + 4
    for library in libraries:
        assert library.stem == library.parent.name
        assert b".nv_fatbin" in library.read_bytes()
