"""Element-wise work of a layer as one Triton kernel each, for CUDA: rotation, gated activation.

By torch's operations the rotation is a dozen kernels, each of which the host launches and the
device starts. The numbers are those of `decoder.apply_rope` and of silu(gate) * up: computed in
float32, rounded where torch rounds. Imported only where a model runs on CUDA, or by tests.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _rotate(x, cos, sin, q, k, row_stride, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
            HEAD_DIM: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One token and head per program, grid (T * (HEADS + KV_HEADS),): the head's row of x, which
    has `row_stride` numbers for each token, goes to q or k (contiguous)."""
    token = tl.program_id(0) // (HEADS + KV_HEADS)
    head = tl.program_id(0) % (HEADS + KV_HEADS)
    at = x + token.to(tl.int64) * row_stride + head * HEAD_DIM
    if head < HEADS:
        to = q + (token.to(tl.int64) * HEADS + head) * HEAD_DIM
    else:
        to = k + (token.to(tl.int64) * KV_HEADS + head - HEADS) * HEAD_DIM
    pair = tl.arange(0, BLOCK)
    inside = pair < PAIRS
    first = tl.load(at + pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + PAIRS + pair, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + token * PAIRS + pair, mask=inside, other=0.0)
    s = tl.load(sin + token * PAIRS + pair, mask=inside, other=0.0)
    tl.store(to + pair, (first * c - second * s).to(to.dtype.element_ty), mask=inside)
    tl.store(to + PAIRS + pair, (second * c + first * s).to(to.dtype.element_ty), mask=inside)
    for start in tl.static_range(2 * PAIRS, HEAD_DIM, BLOCK):
        rest = start + pair
        tl.store(to + rest, tl.load(at + rest, mask=rest < HEAD_DIM), mask=rest < HEAD_DIM)


@triton.jit
def _gate(x, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK numbers of a token per program, grid (T, blocks): x [T, 2 * SIZE] -> out [T, SIZE]."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.load(x + token * 2 * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + token * 2 * SIZE + SIZE + at, mask=inside, other=0.0)
    activated = (gate / (1.0 + tl.exp(-gate))).to(up.dtype).to(tl.float32)
    tl.store(out + token * SIZE + at, (activated * up).to(up.dtype), mask=inside)


def rotate(
    qk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, heads, head_dim] and k [T, rest, head_dim], rotated and contiguous, of qk [T, heads +
    rest, head_dim], whose heads are contiguous; cos and sin [T, 1, pairs] float32."""
    tokens, all_heads, dim = qk.shape
    q, k = qk.new_empty(tokens, heads, dim), qk.new_empty(tokens, all_heads - heads, dim)
    pairs = cos.shape[-1]
    kernel: Any = _rotate
    kernel[(tokens * all_heads,)](
        *(qk, cos.contiguous(), sin.contiguous(), q, k, qk.stride(0), heads, all_heads - heads),
        *(dim, pairs, 1 << (pairs - 1).bit_length()),
        num_warps=1,
    )
    return q, k


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [T, n] of gate_up [T, 2 n], contiguous, gate first."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, size)
    kernel: Any = _gate
    kernel[(tokens, -(-size // _BLOCK))](gate_up, out, size, _BLOCK)
    return out
