"""How the kernels are cut for a kind of layer: tile sizes, warps, stages; what they cannot do.

The figures were chosen by reasoning about an H100 (132 SMs with 227 KiB of shared memory), not by
measuring. A small tile has 16 rows, the least that the matrix units take: memory bounds decodes, so
empty rows cost little. A large tile has 128 rows where its accumulators fit in the registers. K and
V stream through shared memory in `stages` - 1 buffers each. For heads of 128 in 16 bits, compiling
for an H100 gives a small tile 70 KiB of shared memory and 128 registers (three programs fit on an
SM), a large one 128 KiB and 212 (one).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from scheduler_proc.attention.base import LayerKind
from srt.wire.errors import ConfigError

_MAX_DIM = 256
_MAX_GROUP = 128
_SMALL_ROWS = 16
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_POOL_DTYPES = (*_DTYPES, torch.float8_e4m3fn)


class Dims(NamedTuple):
    """A head's size as one or two blocks of powers of two: the second is 0 if there is none."""

    first: int
    second: int


class Tile(NamedTuple):
    """What one program works on: folded rows of queries, and keys at a time."""

    block_m: int
    block_n: int
    num_warps: int
    stages: int


class Tiles(NamedTuple):
    """The two cuts of a kind: for items of few query rows and of many."""

    small: Tile
    large: Tile
    k: Dims
    v: Dims


def dims_of(size: int) -> Dims:
    """Blocks of at least 16 that hold `size` numbers: two where that computes on less padding than
    one, such as 64 + 16 for 80 and 128 + 64 for 192."""
    whole = max(16, 1 << (size - 1).bit_length())
    first = max(16, whole // 2)
    if size <= first:
        return Dims(whole, 0)
    second = max(16, 1 << (size - first - 1).bit_length())
    return Dims(first, second) if first + second < whole else Dims(whole, 0)


def tiles_of(kind: LayerKind, dtype: torch.dtype, shared_bytes: int) -> Tiles:
    """The cuts for queries of `dtype` on a device whose programs may use this much shared memory.

    Stages in shared memory are counted in `dtype`: an fp8 pool's numbers are widened there.
    """
    k, v = dims_of(kind.head_dim), dims_of(kind.value_dim)
    wide = max(sum(k), sum(v)) > 128
    full = dtype.itemsize == 4  # three products per product, in twice the memory
    group_rows = 1 << (kind.heads // kind.kv_heads - 1).bit_length()
    small_rows = max(_SMALL_ROWS, group_rows)
    large_rows = max(64 if wide or full else 128, group_rows)
    block_n = 32 if wide or full else 64
    small = _fitted(Tile(small_rows, block_n, 4, 3), k, v, dtype, shared_bytes)
    large_warps = 8 if large_rows >= 128 or wide else 4
    large = _fitted(Tile(large_rows, block_n, large_warps, 3), k, v, dtype, shared_bytes)
    return Tiles(small, large, k, v)


def _fitted(tile: Tile, k: Dims, v: Dims, dtype: torch.dtype, shared_bytes: int) -> Tile:
    """With as many stages as fit, at least one. Queries and weights take what their rows of K and V
    would: at least what compiled kernels were seen to take."""
    row_bytes = (sum(k) + sum(v)) * dtype.itemsize
    fitting = 1 + max(0, shared_bytes - tile.block_m * row_bytes) // (tile.block_n * row_bytes)
    return tile._replace(stages=min(tile.stages, fitting))


def check(kinds: Sequence[LayerKind], dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """Raise ConfigError, which names what is in the way, unless the kernels can run these."""
    if dtype not in _DTYPES:
        raise ConfigError(f"the Triton kernels do not compute in {dtype}")
    if kv_dtype not in _POOL_DTYPES:
        raise ConfigError(f"the Triton kernels do not read KV pools of {kv_dtype}")
    for kind in kinds:
        for name, size in (("head size", kind.head_dim), ("value size", kind.value_dim)):
            if size % 2 or not 0 < size <= _MAX_DIM:
                raise ConfigError(
                    f"the Triton kernels take even sizes up to {_MAX_DIM}, not {name} {size}"
                )
        if kind.heads % kind.kv_heads or kind.heads // kind.kv_heads > _MAX_GROUP:
            raise ConfigError(
                f"the Triton kernels take up to {_MAX_GROUP} heads for each KV head, the same "
                f"number for all, not {kind.heads} for {kind.kv_heads}"
            )
        if kind.scale <= 0 or (kind.softcap is not None and kind.softcap <= 0):
            raise ConfigError(
                f"the Triton kernels take scales and soft caps above 0, not {kind.scale} and "
                f"{kind.softcap}"
            )
