"""`python -m bench.gpu_modules`: FlashInfer's kernels for our attention, compiled without a GPU.

FlashInfer compiles a kernel when it is first used; this does so beforehand, for a Hopper GPU, with
nvcc and ninja. FlashInfer finds a module that lies at flashinfer/data/aot/NAME/NAME.so before it
looks for a compiler. `bench/gpu_pack.sh` calls this.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

ARCHITECTURE = "9.0a"
BF16, FP8, INT32 = torch.bfloat16, torch.float8_e4m3fn, torch.int32


class Kernel(NamedTuple):
    """Attention of queries in bfloat16 over a pool of `kv` numbers."""

    head_dim: int
    kv: torch.dtype = BF16
    window: bool = False
    softcap: bool = False


# The most wanted first: what the report measures, then what only the tests use.
KERNELS = (
    Kernel(128),
    Kernel(128, kv=FP8),
    Kernel(64),
    Kernel(128, window=True),
    Kernel(128, softcap=True),
)


class Compiler(NamedTuple):
    """nvcc and the folder that it takes headers and libraries from."""

    nvcc: Path
    home: Path


def find_compiler() -> Compiler | None:
    """nvcc on the path; its folder is asked of itself, because it may be a wrapper."""
    nvcc = shutil.which("nvcc")
    if nvcc is None or shutil.which("ninja") is None:
        return None
    command = [nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.search(r"^#\$ TOP=(.*)$", said, re.M)
    here = re.search(r"^#\$ _HERE_=(.*)$", said, re.M)
    if found is None or here is None:
        return None
    return Compiler(Path(nvcc), Path(found[1].replace("$(_HERE_)", here[1])).resolve())


def environment(compiler: Compiler, work: Path) -> dict[str, str]:
    """What FlashInfer reads from the environment when it is imported, to compile into `work`.

    A library stands for the driver's, which a machine without a GPU lacks, and empty headers for
    those of cuBLAS and cuRAND, which FlashInfer's norms include and do not use.
    """
    stub = work / "stub"
    stub.mkdir(parents=True, exist_ok=True)
    for header in ("cublasLt.h", "cublas_v2.h", "curand_kernel.h"):
        is_there = (compiler.home / "include" / header).exists() or (stub / header).exists()
        if not is_there:  # a new one would have the norms compiled anew
            (stub / header).touch()
    library = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", str(stub / "libcuda.so")]
    subprocess.run([os.environ.get("CC", "gcc"), *library, "-x", "c", os.devnull], check=True)
    return {
        "FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE,
        "FLASHINFER_WORKSPACE_BASE": str(work),
        "CUDA_HOME": str(compiler.home),
        "FLASHINFER_NVCC": str(compiler.nvcc),
        "FLASHINFER_EXTRA_CUDAFLAGS": f"-I{stub}",
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{stub} -L{compiler.home}/lib "
        "-Wl,--unresolved-symbols=ignore-all",
    }


def specs() -> Iterator[Any]:
    """FlashInfer's descriptions of the modules (`JitSpec`), in the order of KERNELS; `environment`
    must be set before."""
    from flashinfer.jit.activation import gen_act_and_mul_module
    from flashinfer.jit.attention import modules
    from flashinfer.jit.cascade import gen_cascade_module
    from flashinfer.jit.norm import gen_norm_module
    from flashinfer.jit.rope import gen_rope_module

    # Prefill's wrapper loads a variant for pools whose K and V have equal strides, as ours have.
    gen_prefill = getattr(
        modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module
    )
    for number, kernel in enumerate(KERNELS):
        types = (BF16, kernel.kv, BF16, INT32, kernel.head_dim, kernel.head_dim)
        # Decodes run the prefill kernels too.
        yield gen_prefill("fa2", *types, _NO_ROTATION, kernel.window, kernel.softcap, False)
        if number == 0:
            yield gen_cascade_module()
            yield gen_norm_module()
            yield gen_rope_module()
            yield gen_act_and_mul_module("silu")


_NO_ROTATION = 0


class CompileError(Exception):
    """A module has not been compiled."""


class Built(NamedTuple):
    """A compiled module."""

    library: Path
    seconds: float


def build(spec: Any, jobs: int, limit_s: float) -> Built:
    """Compile a module, or what is not up to date of it. Raises CompileError with the reason; what
    has been compiled by then is kept."""
    start = time.monotonic()
    spec.write_ninja()
    log = spec.build_dir / "log"
    with log.open("w") as output:
        child = subprocess.Popen(
            ["ninja", "-C", str(spec.build_dir), "-j", str(jobs)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the compilers are ended with it
        )
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise CompileError(f"not compiled in {limit_s:.0f} s") from error
    if code != 0:
        raise CompileError(log.read_text()[-2000:])
    return Built(spec.jit_library_path, time.monotonic() - start)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_modules", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for NAME/NAME.so; none: list the names")
    parser.add_argument("--work", type=Path, help="folder that keeps what is compiled")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of everything")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 if there is no compiler, or a module has not been compiled."""
    args = parse_args(argv)
    compiler = find_compiler()
    if compiler is None:
        print("nvcc and ninja are needed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        work = (args.work or Path(directory)).resolve()
        os.environ.update(environment(compiler, work))
        return _build_all(args) if args.out else _list_all()


def _list_all() -> int:
    for spec in specs():
        print(spec.name)
    return 0


def _build_all(args: argparse.Namespace) -> int:
    end, missing = time.monotonic() + args.limit_s, 0
    for spec in specs():
        try:
            built = build(spec, args.jobs, max(0.0, end - time.monotonic()))
        except CompileError as error:
            print(f"{spec.name}: {error}", flush=True)
            missing += 1
        else:
            target = args.out / spec.name / f"{spec.name}.so"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built.library, target)
            size = target.stat().st_size
            print(f"{spec.name}: {size} bytes in {built.seconds:.0f} s", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
