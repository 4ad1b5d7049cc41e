"""Measures what the machine can do: read bandwidth, and the fastest matrix products seen.

The first part of `bench.kernels`; the other parts' bounds come from here.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.kernel_attention import smallest_attention
from bench.kernel_calls import Operations
from bench.roofline import WORKING_SET, Call, Peaks, Runner, number
from scheduler_proc.kernels.library import Format, Library, Matrix, Source, address
from srt.machine import machine

READS = (WORKING_SET, 512_000_000)
SIDE = 2048  # of the square matrices
# Torch's libraries are limited to the level that is measured, as ours are.
_LEVELS = {
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "portable": {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


class Setting(NamedTuple):
    """The library, and the level and number of threads to measure it with."""

    library: Library
    isa: str
    threads: int


def measure_machine(setting: Setting, show: Callable[[str, str], None]) -> Peaks:
    """The peaks that bounds are made of. `show` gets the name and the value of these and of others
    as they are measured, each the best of some runs: other work can only make them worse."""
    show("CPU, cores", f"{machine()['cpu']}, {machine()['cores']}")
    show("caches of core 0", ", ".join(caches()) or "unknown")
    show("level, threads", f"{setting.isa}, {setting.threads}")
    runner = Runner()
    read = _read_rate(setting, runner, show)
    best: dict[str, float] = {}
    with closing(Operations(setting.library, setting.threads, setting.isa, "8")) as operations:
        for name, kind, call in _gemms(operations, setting):
            rate = 2 * SIDE**3 / runner.time([call]).best_s
            best[kind] = max(rate, best.get(kind, 0.0))
            show(f"{kind} {name}", f"{number(rate / 1e9)} GFLOP/s")
        smallest = {"linear": _smallest_linear, "attention": smallest_attention}
        for name, make in smallest.items():
            seconds = runner.time([make(operations)]).median_s
            show(f"smallest {name} call", f"{number(1e6 * seconds)} µs")
    return Peaks(read, **best)


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[str]:
    """Such as "L2 2048K"; empty if the system does not report them."""
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return found


def _read_rate(setting: Setting, runner: Runner, show: Callable[[str, str], None]) -> float:
    """Bytes per second for the working set and all threads; shows other rates too."""
    rates = {}
    data = np.ones(max(READS), np.uint8)
    for threads in dict.fromkeys((setting.threads, 1)):
        with closing(Operations(setting.library, threads, setting.isa, "8")) as operations:
            for size in READS:
                rate = size / runner.time([operations.read(data[:size])]).best_s
                of = f"{size // 10**6} MB, {threads} thread{'s' if threads > 1 else ''}"
                show(f"read {of}", f"{number(rate / 1e9)} GB/s")
                rates[size, threads] = rate
    return rates[WORKING_SET, setting.threads]


def _gemms(operations: Operations, setting: Setting) -> Iterator[tuple[str, str, Call]]:
    """Name, kind of arithmetic and call of square products: torch's and, by format, ours."""
    formats = {"fp32": (Format.F32,), "int8": (Format.Q8, Format.Q4)}
    if setting.library.has_tiles(setting.isa):
        formats["bf16"] = (Format.Q8_TILES,)
    for kind, ours in formats.items():
        for name, call in _torch_gemm(ours[0], setting).items():
            yield name, kind, call
        for format in ours:
            yield (
                f"srt_op_linear {SIDE}³ {format.name}",
                kind,
                _native_gemm(operations, format),
            )


def _native_gemm(operations: Operations, format: Format) -> Call:
    rng = np.random.default_rng(0)
    weights, x = rng.standard_normal((2, SIDE, SIDE), np.float32)
    packed = operations.library.pack(Source.F32, weights, SIDE, SIDE, format)
    matrix = Matrix(format, SIDE, SIDE, address(packed))
    return operations.linear((matrix,), x, np.empty_like(x), packed)


def _torch_gemm(format: Format, setting: Setting) -> dict[str, Call]:
    """One call, or none if this torch cannot multiply int8."""
    os.environ.update(_LEVELS.get(setting.isa, {}))
    import torch

    torch.set_num_threads(setting.threads)
    if format != Format.Q8:
        dtype = torch.float32 if format == Format.F32 else torch.bfloat16
        a, b = torch.randn(2, SIDE, SIDE).to(dtype)
        return {f"torch matmul {SIDE}³": lambda: a @ b}
    a, b = torch.randint(-127, 128, (2, SIDE, SIDE), dtype=torch.int8)

    def product() -> torch.Tensor:
        return torch._int_mm(a, b.t())

    try:
        product()
    except (AttributeError, RuntimeError):
        return {}
    return {f"torch _int_mm {SIDE}³": product}


def _smallest_linear(operations: Operations) -> Call:
    """16 outputs for one row."""
    x = np.ones((1, 32), np.float32)
    packed = operations.library.pack(Source.F32, np.ones((16, 32), np.float32), 16, 32, Format.Q8)
    matrix = Matrix(Format.Q8, 16, 32, address(packed))
    return operations.linear((matrix,), x, np.empty((1, 16), np.float32), packed)
