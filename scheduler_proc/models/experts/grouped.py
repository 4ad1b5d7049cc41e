"""The products of all used experts at once, as Triton kernels, for CUDA.

Nothing of a step comes back to the host, so that a step can be recorded as a graph: which expert
has how many tokens is a table on the device, and there are as many programs as it may have tiles.
The numbers are those of `mixture.sum_of_experts`. Imported only where a model runs on CUDA, or by
tests.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

from scheduler_proc.models.experts.mixture import Activate, Mixture
from scheduler_proc.models.experts.routing import Chosen

# int32 per tile: its expert, its first pair, its number of pairs.
_TILE_FIELDS = tl.constexpr(3)
_FEW, _MANY = 16, 64  # pairs of a tile
_ROWS, _INPUTS, _HIDDEN = 64, 64, 1024  # of a program


@triton.jit
def _product(x, weight, out, rows, tiles, ROWS: tl.constexpr, INPUTS: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             WIDEN: tl.constexpr):  # fmt: skip
    """A tile of pairs and BLOCK_N outputs per program, grid (tiles, blocks of outputs):
    out[pair] = weight[expert] @ x[rows[pair]], with x [n, INPUTS], weight [experts, ROWS, INPUTS]
    and out [pairs, ROWS]. The interpreter cannot multiply bfloat16: WIDEN makes it float32."""
    tile = tiles + tl.program_id(0) * _TILE_FIELDS
    size = tl.load(tile + 2)
    if size > 0:
        expert = tl.load(tile).to(tl.int64)
        lane = tl.arange(0, BLOCK_M)
        pair = (tl.load(tile + 1) + lane).to(tl.int64)
        used = lane < size
        row = tl.load(rows + pair, mask=used, other=0).to(tl.int64)
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = n < ROWS
        at_x = x + row[:, None] * INPUTS
        at_w = weight + expert * ROWS * INPUTS + n.to(tl.int64)[None, :] * INPUTS
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, INPUTS, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            a = tl.load(at_x + k[None, :], mask=used[:, None] & (k < INPUTS)[None, :], other=0.0)
            b = tl.load(at_w + k[:, None], mask=inside[None, :] & (k < INPUTS)[:, None], other=0.0)
            if WIDEN:
                a, b = a.to(tl.float32), b.to(tl.float32)
            total = tl.dot(a, b, total, input_precision="ieee")
        at = out + pair[:, None] * ROWS + n[None, :]
        tl.store(at, total.to(out.dtype.element_ty), mask=used[:, None] & inside[None, :])


@triton.jit
def _sum(y, weights, places, out, USED: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK numbers of a token per program, grid (tokens, blocks): out[t] is the sum of
    weights[t, j] * y[places[t, j]] over its pairs j in turn, in float32."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < HIDDEN
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for j in range(USED):
        place = tl.load(places + token * USED + j).to(tl.int64)
        part = tl.load(y + place * HIDDEN + at, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(weights + token * USED + j)
    tl.store(out + token * HIDDEN + at, total, mask=inside)


def sum_of_experts(
    mixture: Mixture, chosen: Chosen, x: torch.Tensor, activate: Activate
) -> torch.Tensor:
    """The weighted sum of the chosen experts' outputs for x [T, hidden], contiguous: float32 [T,
    hidden]."""
    tokens, used = chosen.ids.shape
    ids = chosen.ids.flatten()
    order = ids.argsort(stable=True)  # pairs by expert, then by token
    block = _FEW if len(order) < _MANY * len(mixture.gate_up) else _MANY
    tiles = _tiles(ids, len(mixture.gate_up), block)
    inner = activate(_grouped(x, mixture.gate_up, (order // used).int(), tiles, block))
    pairs = torch.arange(len(order), dtype=torch.int32, device=x.device)
    outputs = _grouped(inner, mixture.down, pairs, tiles, block)
    places = torch.empty_like(pairs)
    places[order] = pairs
    total = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    kernel, hidden = _launched(_sum), x.shape[1]
    grid = (tokens, -(-hidden // _HIDDEN))
    kernel[grid](outputs, chosen.weights.contiguous(), places, total, used, hidden, _HIDDEN)
    return total


def _tiles(ids: torch.Tensor, count: int, block: int) -> torch.Tensor:
    """How the pairs of each of `count` experts are cut into tiles of at most `block`: int32 [as
    many as there may be, 3], the last ones empty. Computed on the device."""
    counts = torch.zeros(count, dtype=torch.int64, device=ids.device)
    counts.index_add_(0, ids, torch.ones_like(ids))
    tiles_of = (counts + block - 1) // block
    ends, starts = tiles_of.cumsum(0), counts.cumsum(0) - counts
    tile = torch.arange(min(count, len(ids)) + len(ids) // block, device=ids.device)
    expert = torch.searchsorted(ends, tile, right=True).clamp(max=count - 1)
    done = (tile - (ends - tiles_of)[expert]) * block
    sizes = (counts[expert] - done).clamp(0, block)
    return torch.stack((expert, starts[expert] + done, sizes), dim=1).int()


def _grouped(
    x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, tiles: torch.Tensor, block: int
) -> torch.Tensor:
    """weight[expert of the pair] @ x[rows[pair]] for each pair: [pairs, outputs] in x's dtype."""
    _, outputs, inputs = weight.shape
    out = x.new_empty(len(rows), outputs)
    grid = (len(tiles), -(-outputs // _ROWS))
    _launched(_product)[grid](
        *(x, weight, out, rows, tiles, outputs, inputs, block, _ROWS, _INPUTS),
        knobs.runtime.interpret,
        num_warps=4,
    )
    return out


def _launched(kernel: Any) -> Any:
    """The kernel, without the type that its decorator gives it."""
    return kernel
