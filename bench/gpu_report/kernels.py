"""Single kernels: pages of one slot against larger ones, and FlashInfer's fused ones against ours.

On a CPU the tests' fake FlashInfer stands for the package, so that this code is known to run.
"""

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bench.gpu_report.sections import Context
from bench.gpu_report.shape import LLAMA_3_8B, TOY
from scheduler_proc.models.config import DecoderConfig
from scheduler_proc.models.decoder import RopeTable, apply_rope, rope_angles
from scheduler_proc.models.rope import rope_frequencies

FAKE = "tests.gpu.fake_flashinfer"
PAGE = 16
WORKSPACE_BYTES = 128 << 20


def run(context: Context) -> None:
    """The section `kernels`."""
    flashinfer = package(context.device)
    if flashinfer is None:
        for name in ("page size", "fused"):
            context.sink.put(name, {"not measured": "flashinfer is not installed"})
        return
    config = LLAMA_3_8B if context.is_full else TOY
    context.sink.put("page size", page_sizes(context, flashinfer, config))
    found: dict[str, Any] = {}
    context.sink.put("fused", found)
    for tokens in (1, 64, 2048) if context.is_full else (2,):
        for name, pair in fused(context.device, flashinfer, config, tokens).items():
            found[f"{name}, {tokens} tokens"] = compared(context, *pair)
            context.sink.put("fused", found)


def package(device: torch.device) -> ModuleType | None:
    """FlashInfer on CUDA, its fake on a CPU; None if it is not there."""
    name = "flashinfer" if device.type == "cuda" else FAKE
    try:
        is_there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        is_there = False
    return importlib.import_module(name) if is_there else None


def page_sizes(context: Context, flashinfer: ModuleType, config: DecoderConfig) -> dict[str, Any]:
    """Attention of 64 decodes over 2,048 slots each, in scattered pages of one slot and of 16."""
    rows, length = (64, 2048) if context.is_full else (2, 2 * PAGE)
    device, slots = context.device, rows * length
    dtype = torch.bfloat16
    shape = (config.kv_heads, config.head_dim)
    k, v = (torch.randn((slots, *shape), dtype=dtype, device=device) for _ in range(2))
    q = torch.randn((rows, config.heads, config.head_dim), dtype=dtype, device=device)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    calls = {}
    for page in (1, PAGE):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace.clone(), "NHD", use_tensor_cores=True, backend="fa2"
        )
        pages = length // page
        wrapper.plan(
            torch.arange(0, rows * pages + 1, pages, dtype=torch.int32),
            torch.randperm(rows * pages).to(torch.int32).to(device),
            torch.full((rows,), page, dtype=torch.int32),
            config.heads,
            config.kv_heads,
            config.head_dim,
            page,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        paged = tuple(pool.view(-1, page, *shape) for pool in (k, v))
        calls[page] = _attention_call(wrapper, q, paged)
    one, larger = context.clock().time(calls[1], calls[PAGE])
    moved = 2 * slots * config.kv_heads * config.head_dim * dtype.itemsize
    return {
        "page 1, s": one.median_s,
        f"page {PAGE}, s": larger.median_s,
        "loss": one.median_s / larger.median_s - 1,
        "page 1, share_of_copy": context.share(moved / one.median_s, "copy_bytes_s"),
    }


def _attention_call(
    wrapper: Any, q: torch.Tensor, paged: tuple[torch.Tensor, ...]
) -> Callable[[], object]:
    return lambda: wrapper.run(q, paged)


class Pair(NamedTuple):
    """The same work by FlashInfer and by us."""

    theirs: Callable[[], object]
    ours: Callable[[], object]


def fused(
    device: torch.device, flashinfer: ModuleType, config: DecoderConfig, tokens: int
) -> dict[str, Pair]:
    """Norms, rotation and activation of a layer, for those that the package has."""
    dtype = torch.bfloat16

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    x, added, residual = (random(tokens, config.hidden) for _ in range(3))
    gate_up = random(tokens, 2 * config.intermediate)
    weight, eps = random(config.hidden), config.rms_eps
    heads = config.heads + config.kv_heads
    qk = random(tokens, heads, config.head_dim)
    table = RopeTable(torch.from_numpy(rope_frequencies(config.rope, config.head_dim)).to(device))
    positions = torch.arange(tokens, device=device)
    cos, sin = rope_angles(table, positions)
    cache = torch.cat((cos[:, 0], sin[:, 0]), dim=-1)
    split = config.heads * config.head_dim
    flat = qk.view(tokens, -1).clone()
    q, k = flat[:, :split].contiguous(), flat[:, split:].contiguous()

    def gated() -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    pairs = {
        "rmsnorm": Pair(
            lambda: flashinfer.rmsnorm(x, weight, eps),
            lambda: F.rms_norm(x, weight.shape, weight, eps),
        ),
        "fused_add_rmsnorm": Pair(
            lambda: flashinfer.fused_add_rmsnorm(added, residual, weight, eps),
            lambda: F.rms_norm(added + residual, weight.shape, weight, eps),
        ),
        "apply_rope_with_cos_sin_cache_inplace": Pair(
            lambda: flashinfer.apply_rope_with_cos_sin_cache_inplace(
                positions, q, k, config.head_dim, cache
            ),
            lambda: apply_rope(qk, cos, sin),
        ),
        "silu_and_mul": Pair(lambda: flashinfer.silu_and_mul(gate_up), gated),
    }
    return {name: pair for name, pair in pairs.items() if hasattr(flashinfer, name)}


def compared(
    context: Context, theirs: Callable[[], object], ours: Callable[[], object]
) -> dict[str, Any]:
    """Seconds of both, and which is faster; the error where theirs does not run."""
    try:
        theirs()
    except Exception as error:
        return {"not measured": f"{type(error).__name__}: {error}"[:500]}
    first, second = context.clock(runs=50).time(theirs, ours)
    faster = "flashinfer" if first.median_s < second.median_s else "ours"
    return {"flashinfer_s": first.median_s, "ours_s": second.median_s, "faster": faster}
