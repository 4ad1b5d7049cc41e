"""The Llama forward pass over ragged tokens and a token-granular KV pool.

Called by the torch executor. Tokens of all rows lie one after another in [T, hidden]; only
attention knows where a row begins. K and V are written to the pool before they are attended to.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from scheduler_proc.attention.base import AttentionPlan
from scheduler_proc.models.config import LlamaConfig


class Linear(NamedTuple):
    """y = x @ weight.T + bias, with weight [out, in] and bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class LlamaLayer(NamedTuple):
    """One layer's weights. `qkv` and `gate_up` are fused along their outputs, in that order."""

    input_norm: torch.Tensor  # [hidden]
    qkv: Linear  # [q_size + 2 * kv_size, hidden]
    o: Linear  # [hidden, q_size]
    post_norm: torch.Tensor  # [hidden]
    gate_up: Linear  # [2 * intermediate, hidden]
    down: Linear  # [hidden, intermediate]


class LlamaWeights(NamedTuple):
    """All weights. `head` is `embed` when the model ties them; q and k rows are half-rotated."""

    embed: torch.Tensor  # [vocab_size, hidden]
    layers: list[LlamaLayer]
    norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocab_size, hidden]
    rope_frequencies: torch.Tensor  # [head_dim/2] float32

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take, a tied head counted once."""
        tensors = [self.embed, self.norm, self.rope_frequencies]
        if self.head is not self.embed:
            tensors.append(self.head)
        for layer in self.layers:
            tensors += [layer.input_norm, layer.post_norm]
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                tensors += [t for t in linear if t is not None]
        return sum(t.numel() * t.element_size() for t in tensors)


class KVPool:
    """K and V of `num_slots` tokens for every layer: [num_slots, kv_heads, head_dim] each.

    Allocated uninitialised, so pages are touched only when written; attention never reads a slot
    that no row lists.
    """

    def __init__(
        self, config: LlamaConfig, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_slots, config.kv_heads, config.head_dim)
        self.k = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.v = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.layers)]

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.k, *self.v))


@dataclass(slots=True)
class TokenLayout:
    """Where this step's tokens stand: all that the layers need besides the hidden states."""

    positions: torch.Tensor  # [T] int64
    out_slots: torch.Tensor  # [T] int64
    attention: AttentionPlan


class Llama:
    """The model: pure functions of its weights, plus the writes to the pool it is given."""

    def __init__(self, config: LlamaConfig, weights: LlamaWeights) -> None:
        self.config = config
        self.weights = weights

    def forward(self, input_ids: torch.Tensor, layout: TokenLayout, pool: KVPool) -> torch.Tensor:
        """input_ids [T] int64 -> normalised last hidden states [T, hidden]; writes the pool."""
        cos, sin = rope_angles(self.weights.rope_frequencies, layout.positions)
        x = F.embedding(input_ids, self.weights.embed)
        for layer, k_pool, v_pool in zip(self.weights.layers, pool.k, pool.v, strict=True):
            q, k, v = self._qkv(layer, self._norm(x, layer.input_norm), cos, sin)
            k_pool.index_copy_(0, layout.out_slots, k)
            v_pool.index_copy_(0, layout.out_slots, v)
            attended = layout.attention.run(q, k_pool, v_pool)
            x = x + layer.o(attended.flatten(1))
            x = x + self._mlp(layer, self._norm(x, layer.post_norm))
        return self._norm(x, self.weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] (from `forward`) -> logits [N, vocab_size] float32."""
        return F.linear(hidden, self.weights.head).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.hidden,), weight, self.config.rms_eps)

    def _qkv(
        self, layer: LlamaLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project and rotate: q [T, heads, head_dim], k and v [T, kv_heads, head_dim]."""
        c = self.config
        qk, v = torch.split(layer.qkv(x), [c.q_size + c.kv_size, c.kv_size], dim=-1)
        qk = apply_rope(qk.view(len(x), -1, c.head_dim), cos, sin)
        q, k = torch.split(qk, [c.heads, c.kv_heads], dim=1)
        return q.contiguous(), k, v.view(len(x), -1, c.head_dim)

    @staticmethod
    def _mlp(layer: LlamaLayer, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        return layer.down(F.silu(gate) * up)


def rope_angles(
    frequencies: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) for `positions` [T], each [T, 1, head_dim/2] float32."""
    angles = (positions.float()[:, None] * frequencies)[:, None, :]
    return angles.cos(), angles.sin()


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim/2) of x [T, heads, head_dim]; returns x's dtype."""
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)
