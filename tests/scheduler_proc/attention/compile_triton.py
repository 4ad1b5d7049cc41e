"""Compiles the Triton kernels for an H100, without one: `python -m` this, with names of cases.

A step of each case is run on the CPU, but its launches compile what they would have started, with
just the types and constants that they have. Prints JSON: for each case a list of what was compiled.
"""

import json
import re
import sys
from typing import Any

import numpy as np
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.cascade import CascadeCosts
from scheduler_proc.attention.triton import TritonAttention, backend, launch
from tests.scheduler_proc.ragged import indptr, int32

assert "triton" not in sys.modules, "only making a backend may import triton"

_TYPES = {
    torch.int32: "*i32",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_HALF, _BF16, _FP8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn


def _kind(heads: int, kv_heads: int, head_dim: int, value_dim: int, **values: Any) -> LayerKind:
    return LayerKind(heads, kv_heads, head_dim, value_dim, head_dim**-0.5, **values)


# Kind, dtype, that of the pool, and whether there are spans that see both ways, shared prefixes and
# log-sum-exps.
CASES: dict[str, tuple[LayerKind, torch.dtype, torch.dtype, bool]] = {
    "llama": (_kind(32, 8, 128, 128), _BF16, _BF16, False),
    "gpt_oss": (_kind(64, 8, 64, 64, window=128, sinks=True), _BF16, _FP8, False),
    "gemma2": (_kind(8, 4, 256, 256, softcap=50.0), _BF16, _BF16, False),
    "gemma2_window": (_kind(8, 4, 256, 256, softcap=50.0, window=4096), _BF16, _BF16, False),
    "smollm2": (_kind(9, 3, 64, 64), _HALF, _HALF, False),
    "phi": (_kind(32, 32, 80, 80), _HALF, _HALF, False),
    "phi3": (_kind(32, 32, 96, 96, window=2047), _BF16, _FP8, False),
    "deepseek": (_kind(16, 16, 192, 128), _BF16, _BF16, False),
    "falcon": (_kind(71, 1, 64, 64), _BF16, _BF16, False),
    "spans": (_kind(8, 4, 256, 256, window=512), _BF16, _BF16, True),
    "all": (_kind(8, 4, 128, 128, softcap=50.0, sinks=True), _BF16, _FP8, True),
    "float32": (_kind(32, 8, 128, 128), torch.float32, torch.float32, True),
    "small": (_kind(4, 2, 24, 40, sinks=True, softcap=5.0), _HALF, _HALF, True),
}


def _compile(
    found: list[dict[str, Any]],
    kernel: Any,
    _num_programs: int,
    arguments: tuple[Any, ...],
    num_warps: int,
    **constants: Any,
) -> None:
    """In place of launch.launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, known, attributes = {}, dict(constants), {}
    for number, (name, value) in enumerate(zip(kernel.arg_names, arguments, strict=False)):
        if value is None:
            signature[name], known[name] = "constexpr", None
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = _TYPES[value.dtype]
            attributes[(number,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, known, attributes)
    binary = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": num_warps})
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x\w+)", binary.asm["ptx"])
    found.append(
        {
            "kernel": kernel.__name__,
            "rows": constants.get("BLOCK_M"),
            "shared": binary.metadata.shared,
            "copied_bytes": sorted({int(size, 16) for size in copies}),
            "pool_itemsize": arguments[1].dtype.itemsize,
            "matrix_products": len(re.findall(r"mma\.sync|wgmma\.mma", binary.asm["ptx"])),
        }
    )


def _step(kind: LayerKind, dtype: torch.dtype, kv_dtype: torch.dtype, all_inputs: bool) -> None:
    """Decodes, one of which is split, and an extend, which begins as the first row does."""
    lengths = [(1, 40), (1, 3000), (200, 300)]
    qo, kv = (indptr(list(lens)) for lens in zip(*lengths, strict=True))
    until = np.zeros(qo[-1], np.int32) if all_inputs else None
    slots = np.arange(kv[-1])
    slots[kv[2] : kv[2] + 30] = slots[:30]
    rows = RaggedRows(qo, kv, int32(slots), until)
    device = torch.device("cpu")
    attention = TritonAttention([kind], device=device, dtype=dtype, kv_dtype=kv_dtype)
    pools = [
        torch.zeros(int(kv[-1]), kind.kv_heads, dim, dtype=kv_dtype)
        for dim in (kind.head_dim, kind.value_dim)
    ]
    attention.cascades.is_on = all_inputs
    plan = attention.plan(rows)
    if all_inputs and kind.window is None:
        assert plan._calls[kind][1].lists.order is not None
    sinks = torch.zeros(kind.heads, dtype=dtype) if kind.sinks else None
    q = torch.zeros(int(qo[-1]), kind.heads, kind.head_dim, dtype=dtype)
    lse = torch.zeros(q.shape[:2]) if all_inputs else None
    plan.run(kind, q, LayerTensors(pools[0], pools[1], sinks), lse)


def main() -> None:
    """Compile the named cases, or all."""
    backend._checked_device = lambda *_: (132, 227 * 1024)
    costs = CascadeCosts(slot_s=1.0, state_s=0.1, level_s=0.1, tile_tokens=1000)
    CascadeCosts.of = lambda *_: costs  # type: ignore[method-assign]
    results = {}
    for name in sys.argv[1:] or CASES:
        found: list[dict[str, Any]] = []
        launch.launch = lambda *a, _found=found, **k: _compile(_found, *a, **k)
        _step(*CASES[name])
        sizes = (CASES[name][0].head_dim, CASES[name][0].value_dim)
        is_even = all(size & (size - 1) == 0 for size in sizes)
        results[name] = [kernel | {"is_even": is_even} for kernel in found]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
