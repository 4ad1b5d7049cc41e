"""Measures what the machine can do: read bandwidth, and the fastest matrix products seen.

First part of `bench.kernels`; the other parts' bounds come from here.
"""

import os
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.kernel_attention import smallest_attention
from bench.kernel_calls import Operations
from bench.report import machine
from bench.roofline import WORKING_SET, Call, Peaks, Runner, Timing, markdown, number
from scheduler_proc.kernels.library import Format, Library, Matrix, Source, address

READS = (WORKING_SET, 512_000_000)
SIDE = 2048  # of the square matrices
# Torch's libraries are held to the level that is measured, or its peaks would not be ours.
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


class MachineReport(NamedTuple):
    """The peaks that bounds are made of, and a table with these and others."""

    peaks: Peaks
    text: str


def measure_machine(setting: Setting) -> MachineReport:
    """Takes the best of some runs each: other work on the machine can only take away."""
    runner = Runner()
    reads = _read_rates(setting, runner)
    with closing(Operations(setting.library, setting.threads, setting.isa)) as operations:
        gemms = {
            name: _gemm_rates(operations, setting, format, runner)
            for name, format in _gemm_formats(setting).items()
        }
        smallest = {
            "linear": runner.time([_smallest_linear(operations)]).median_s,
            "attention": runner.time([smallest_attention(operations)]).median_s,
        }
    best = {name: max(rates.values()) for name, rates in gemms.items()}
    peaks = Peaks(reads[WORKING_SET, setting.threads], **best)
    rows = [["CPU, cores", f"{machine()['cpu']}, {machine()['cores']}"]]
    rows += [["caches of core 0", ", ".join(caches()) or "unknown"]]
    rows += [["level, threads", f"{setting.isa}, {setting.threads}"]]
    for (size, threads), rate in reads.items():
        of = f"{size // 10**6} MB, {threads} thread{'s' if threads > 1 else ''}"
        rows.append([f"read {of}", f"{number(rate / 1e9)} GB/s"])
    for kind, rates in gemms.items():
        rows += [[f"{kind} {name}", f"{number(v / 1e9)} GFLOP/s"] for name, v in rates.items()]
    rows += [[f"smallest {name} call", f"{number(1e6 * s)} µs"] for name, s in smallest.items()]
    return MachineReport(peaks, markdown(("machine", "best seen"), rows))


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[str]:
    """Such as "L2 2048K"; empty where the system does not tell."""
    found = []
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return found


def _read_rates(setting: Setting, runner: Runner) -> dict[tuple[int, int], float]:
    """Bytes per second by buffer size and number of threads."""
    rates = {}
    data = np.ones(max(READS), np.uint8)
    for threads in dict.fromkeys((setting.threads, 1)):
        with closing(Operations(setting.library, threads, setting.isa)) as operations:
            for size in READS:
                rates[size, threads] = size / runner.time([operations.read(data[:size])]).best_s
    return rates


def _gemm_formats(setting: Setting) -> dict[str, Format]:
    """What to measure each kind of arithmetic with."""
    formats = {"fp32": Format.F32, "int8": Format.Q8}
    if setting.library.has_tiles(setting.isa):
        formats["bf16"] = Format.Q8_TILES
    return formats


def _gemm_rates(
    operations: Operations, setting: Setting, format: Format, runner: Runner
) -> dict[str, float]:
    """Flops per second of torch's product and of ours, by name."""
    calls = _torch_gemm(format, setting) | {
        f"srt_op_linear {SIDE}³ {format.name}": _native_gemm(operations, format)
    }
    timings: dict[str, Timing] = {name: runner.time([call]) for name, call in calls.items()}
    return {name: 2 * SIDE**3 / timing.best_s for name, timing in timings.items()}


def _native_gemm(operations: Operations, format: Format) -> Call:
    rng = np.random.default_rng(0)
    weights, x = rng.standard_normal((2, SIDE, SIDE), np.float32)
    packed = operations.library.pack(Source.F32, weights, SIDE, SIDE, format)
    matrix = Matrix(format, SIDE, SIDE, address(packed))
    return operations.linear((matrix,), x, np.empty_like(x), packed)


def _torch_gemm(format: Format, setting: Setting) -> dict[str, Call]:
    """One call, or none where this torch cannot multiply int8."""
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
