"""Compiles the kernels of mixtures of experts for an H100, without one: `python -m` this. Prints
JSON: for each a dict of what was compiled."""

import json
import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scheduler_proc.models.experts import grouped

# Of Qwen3-30B-A3B: gate and up.
_SIZES = {"ROWS": 1536, "INPUTS": 2048, "BLOCK_N": 64, "BLOCK_K": 64, "WIDEN": False}


def _compile(kernel: Any, types: dict[str, str], **constants: Any) -> dict[str, Any]:
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    # Pointers of torch's are multiples of 16.
    attributes = {(number,): [["tt.divisibility", 16]] for number in range(len(types))}
    source = ASTSource(kernel, signature, constants, attributes)
    binary = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})
    products = len(re.findall(r"mma\.sync|wgmma\.mma", binary.asm["ptx"]))
    return {**constants, "shared": binary.metadata.shared, "matrix_products": products}


def main() -> None:
    """Compile all of them."""
    found = []
    for kind in ("bf16", "fp16"):
        types = {
            **dict.fromkeys(("x", "weight", "out"), f"*{kind}"),
            "rows": "*i32",
            "tiles": "*i32",
        }
        found += [_compile(grouped._product, types, BLOCK_M=m, **_SIZES) for m in (16, 64)]
        types = {"y": f"*{kind}", "weights": "*fp32", "places": "*i32", "out": "*fp32"}
        _compile(grouped._sum, types, USED=8, HIDDEN=2048, BLOCK=1024)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
