"""Calls the kernels for one kind of layer: the constants of their compiled forms, and the grids.

A call costs the host some 50 µs (an estimate): graphs spare decodes this, prompts hide it.
"""

import math
from typing import Any, NamedTuple

import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors
from scheduler_proc.attention.triton.tiles import Dims, Tile, Tiles

_BLOCK_PARTS = 16
_LOG2_E = math.log2(math.e)


class DeviceLists(NamedTuple):
    """What items refer to, as in `lists.Lists`, on the device: int32."""

    kv_indices: torch.Tensor
    order: torch.Tensor | None = None
    visible_until: torch.Tensor | None = None  # in the batch's order


class DeviceWork(NamedTuple):
    """The work of one layout, as `work.Work`, on the device; a graph's tables have empty rows."""

    small: torch.Tensor
    large: torch.Tensor
    part_starts: torch.Tensor
    merges: torch.Tensor
    num_parts: int
    lists: DeviceLists


class Parts(NamedTuple):
    """Room for the outputs of tokens in parts; float32, flat."""

    values: torch.Tensor
    lse: torch.Tensor


def launch(
    kernel: Any, num_programs: int, arguments: tuple[Any, ...], num_warps: int, **constants: Any
) -> None:
    """Start a kernel. All launches pass here, so that tests can see what is launched."""
    kernel[(num_programs,)](*arguments, num_warps=num_warps, **constants)


def attend(
    kind: LayerKind,
    tiles: Tiles,
    work: DeviceWork,
    parts: Parts,
    q: torch.Tensor,
    layer: LayerTensors,
    lse: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of all tokens, as AttentionPlan.run; `lse` as TritonPlan.run."""
    from scheduler_proc.attention.triton import kernels  # imports triton

    q = q.contiguous()
    out = q.new_empty(*q.shape[:2], kind.value_dim)
    k_pool, v_pool = layer.k_pool, layer.v_pool
    if k_pool.stride(2) != 1 or v_pool.stride(2) != 1:
        raise ValueError("the numbers of a head lie apart in the KV pool")
    flags = {"HAS_SINKS": layer.sinks is not None, "STORE_LSE": lse is not None}
    scale = kind.scale * layer.k_scale * _LOG2_E
    if kind.softcap is not None:
        scale *= 2 / kind.softcap
    lists = work.lists
    for items, tile in ((work.small, tiles.small), (work.large, tiles.large)):
        if not len(items):
            continue
        arguments = (
            *(q, k_pool, v_pool, out, lse, parts.values, parts.lse, layer.sinks),
            *(items, lists.order, work.part_starts, lists.kv_indices, lists.visible_until),
            *(scale, layer.v_scale),
        )
        launch(
            kernels.attend,
            len(items) * kind.kv_heads,
            arguments,
            tile.num_warps,
            HAS_ORDER=lists.order is not None,
            HAS_UNTIL=lists.visible_until is not None,
            K_STRIDE=k_pool.stride(0),
            K_HEAD_STRIDE=k_pool.stride(1),
            V_STRIDE=v_pool.stride(0),
            V_HEAD_STRIDE=v_pool.stride(1),
            **flags,
            **_constants(kind, tile, tiles.k, tiles.v, q.dtype),
        )
    if len(work.merges):
        launch(
            kernels.merge,
            len(work.merges) * kind.heads,
            (parts.values, parts.lse, out, lse, layer.sinks, work.merges),
            4,
            HEADS=kind.heads,
            VALUE_DIM=kind.value_dim,
            BLOCK_V=1 << (kind.value_dim - 1).bit_length(),
            BLOCK_PARTS=_BLOCK_PARTS,
            **flags,
        )
    return out


def _constants(
    kind: LayerKind, tile: Tile, k: Dims, v: Dims, dtype: torch.dtype
) -> dict[str, int | float | str]:
    from triton import knobs

    # float32 as three products of 19-bit numbers; for 16-bit queries it changes nothing.
    precision = "tf32x3" if dtype.itemsize == 4 else "ieee"
    return {
        "KV_HEADS": kind.kv_heads,
        "GROUP": kind.heads // kind.kv_heads,
        "HEAD_DIM": kind.head_dim,
        "VALUE_DIM": kind.value_dim,
        "WINDOW": kind.window or 0,
        "SOFTCAP": kind.softcap or 0.0,
        "K_A": k.first,
        "K_B": k.second,
        "V_A": v.first,
        "V_B": v.second,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "STAGES": tile.stages,
        "PRECISION": "interpreted" if knobs.runtime.interpret else precision,
    }
