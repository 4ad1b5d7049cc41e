"""Versions, and what the device can do at best: bytes copied, and bf16 products, per second."""

import importlib.metadata
import platform
import subprocess

import torch

from bench.gpu_report.sections import Context

PACKAGES = ("torch", "triton", "flashinfer-python", "apache-tvm-ffi", "transformers", "numpy")
_MIB = 1 << 20


def run(context: Context) -> None:
    """The section `ceilings`."""
    context.sink.put("versions", versions())
    context.sink.put("device", device_facts(context.device))
    context.sink.put("copy_bytes_s", copy_rate(context))
    context.sink.put("matmul_flop_s", matmul_rate(context))


def versions() -> dict[str, str | None]:
    """Of what the report depends on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["cuda"] = torch.version.cuda
    return found


def device_facts(device: torch.device) -> dict[str, str | int]:
    """Name, memory and driver of a CUDA device; the processor's kind of a CPU."""
    if device.type != "cuda":
        return {"name": platform.machine(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return done.stdout.strip() or "unknown"


def copy_rate(context: Context) -> float:
    """Bytes per second, read and written, of a copy within the device's memory."""
    count = (4096 if context.is_full else 1) * _MIB
    source = torch.randint(0, 255, (count,), dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    (timing,) = context.clock().time(lambda: target.copy_(source))
    return 2 * count / timing.median_s


def matmul_rate(context: Context) -> float:
    """Floating-point operations per second of a square bf16 product of random numbers: products
    of zeros are faster, because they draw less power."""
    side = 8192 if context.is_full else 64
    left, right = (
        torch.randn((side, side), dtype=torch.bfloat16, device=context.device) for _ in range(2)
    )
    out = torch.empty_like(left)
    (timing,) = context.clock().time(lambda: torch.mm(left, right, out=out))
    return 2 * side**3 / timing.median_s
