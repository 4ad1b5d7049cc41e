"""The forward pass of a decoder model over ragged tokens and a token-granular KV pool.

Called by the torch executor, for every family: what differs is in the configuration, and in which
weights a layer has. Tokens of all rows lie one after another in [T, hidden]; only attention knows
where a row begins. K and V are written to the pool before they are attended to.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F

from scheduler_proc.attention.base import AttentionPlan, LayerKind, LayerTensors
from scheduler_proc.attention.kv_store import FP8, store
from scheduler_proc.models.config import DecoderConfig
from scheduler_proc.models.experts.choice import products_on
from scheduler_proc.models.experts.mixture import Mixture, MixtureKernels, run_mixture


class Linear(NamedTuple):
    """y = x @ weight.T + bias, with weight [out, in] and bias [out] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class RopeTable(NamedTuple):
    """A rotary embedding: each pair's angle per position, and the factor of sines and cosines.
    `axes` say which part of a three-part position turns each pair, if positions have parts."""

    frequencies: torch.Tensor  # [rotated dims / 2] float32
    amplitude: float = 1.0
    axes: torch.Tensor | None = None  # [rotated dims / 2] int64


class Shown(NamedTuple):
    """Tokens that show media: their numbers in the batch, [n] int64, and their embeddings,
    [n, (1 + k) * hidden]. The first `hidden` numbers stand for the token, the later ones are added
    to its hidden state after the first k layers."""

    tokens: torch.Tensor
    embeds: torch.Tensor


class DecoderLayer(NamedTuple):
    """One layer's weights. `qkv` and `gate_up` are fused along their outputs, in that order. It has
    either an MLP or a mixture of experts. Norms of q and k are of each head, or of the whole."""

    input_norm: torch.Tensor  # [hidden]
    qkv: Linear  # [q_size + 2 * kv_size, hidden]
    o: Linear  # [hidden, q_size]
    mlp_norm: torch.Tensor  # [hidden]
    gate_up: Linear | None  # [2 * intermediate, hidden]
    down: Linear | None  # [hidden, intermediate]
    rope: int = 0  # which of DecoderWeights.ropes
    q_norm: torch.Tensor | None = None  # [head_dim] or [q_size]
    k_norm: torch.Tensor | None = None  # [head_dim] or [kv_size]
    attn_out_norm: torch.Tensor | None = None  # [hidden]
    mlp_out_norm: torch.Tensor | None = None  # [hidden]
    k_scale: float = 1.0  # of an eight-bit KV pool (kv_store.store)
    v_scale: float = 1.0
    mixture: Mixture | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        norms = (self.input_norm, self.mlp_norm, self.q_norm, self.k_norm)
        linears = (self.qkv, self.o, self.gate_up or (), self.down or ())
        every = (*norms, self.attn_out_norm, self.mlp_out_norm, *(t for x in linears for t in x))
        experts = [] if self.mixture is None else self.mixture.tensors
        return [t for t in every if t is not None] + experts


class DecoderWeights(NamedTuple):
    """All weights. `head` is `embed` when the model ties them; q and k rows are half-rotated.

    Norm weights are complete (what a file leaves off is added) and may be of another dtype than
    the rest: a norm computes in the wider of its weight's and its input's.
    """

    embed: torch.Tensor  # [vocab_size, hidden]
    layers: list[DecoderLayer]
    norm: torch.Tensor  # [hidden]
    head: torch.Tensor  # [vocab_size, hidden]
    ropes: tuple[RopeTable, ...]

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take, a tied head counted once."""
        tensors = [self.embed, self.norm, *(table.frequencies for table in self.ropes)]
        if self.head is not self.embed:
            tensors.append(self.head)
        for layer in self.layers:
            tensors += layer.tensors
        return sum(t.numel() * t.element_size() for t in tensors)


class KVPool:
    """K and V of `num_slots` tokens for the layer of each kind: [num_slots, kv_heads, head_dim] and
    [num_slots, kv_heads, value_dim].

    Allocated uninitialised, so pages are touched only when written; attention never reads a slot
    that no row lists.
    """

    def __init__(
        self, kinds: Sequence[LayerKind], num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def empty(heads: int, dim: int) -> torch.Tensor:
            return torch.empty(num_slots, heads, dim, dtype=dtype, device=device)

        self.k = [empty(kind.kv_heads, kind.head_dim) for kind in kinds]
        self.v = [empty(kind.kv_heads, kind.value_dim) for kind in kinds]
        self._is_scaled = dtype == FP8

    def layer(self, index: int, k_scale: float, v_scale: float) -> LayerTensors:
        """What layer `index` attends with; the scales count if the pool has eight bits."""
        k, v = self.k[index], self.v[index]
        return LayerTensors(k, v, None, k_scale, v_scale) if self._is_scaled else LayerTensors(k, v)

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.k, *self.v))


@dataclass(slots=True)
class TokenLayout:
    """Where this step's tokens stand: all that the layers need besides the hidden states."""

    positions: torch.Tensor  # [T] int64; [3, T] if they have three parts
    out_slots: torch.Tensor  # [T] int64
    attention: AttentionPlan
    shown: Shown | None = None


class Decoder:
    """The model: pure functions of its weights, plus the writes to the pool it is given."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.weights = weights
        # Rounded as the weights are: Gemma was trained with sqrt(hidden) in bfloat16.
        scale = torch.tensor(config.embed_scale, dtype=weights.embed.dtype)
        self._embed_scale = float(scale)
        self.layer_kinds = [_kind(config, index) for index in range(config.layers)]
        self._fused = fused_kernels(weights.embed.device)
        if config.experts is not None:
            products = products_on(weights.embed.device)
            self._kernels = MixtureKernels(self._activate, products)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_len(self) -> int:
        return self.config.context_len

    @property
    def dtype(self) -> torch.dtype:
        """The element type of the weights."""
        return self.weights.embed.dtype

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        return self.weights.num_bytes

    @property
    def expert_counts(self) -> torch.Tensor | None:
        """Tokens that have used each expert, int64 [layers, experts], zeros for a layer without;
        None if none has any. On a device its own copy, which comes in the order of the steps."""
        mixtures = [layer.mixture for layer in self.weights.layers]
        known = [each.counts for each in mixtures if each is not None and each.counts is not None]
        if not known:
            return None
        none = torch.zeros_like(known[0])
        found = [none if each is None or each.counts is None else each.counts for each in mixtures]
        return torch.stack(found)

    def new_pool(self, num_slots: int, kv_dtype: torch.dtype | None = None) -> KVPool:
        """A KV pool for `forward`, of the weights' type if no other is given."""
        embed = self.weights.embed
        return KVPool(self.layer_kinds, num_slots, kv_dtype or embed.dtype, embed.device)

    def forward(self, input_ids: torch.Tensor, layout: TokenLayout, pool: KVPool) -> torch.Tensor:
        """input_ids [T] int64 -> normalised last hidden states [T, hidden]; writes the pool."""
        angles = [rope_angles(table, layout.positions) for table in self.weights.ropes]
        x = F.embedding(input_ids, self.weights.embed)
        if self._embed_scale != 1:
            x = x * self._embed_scale
        shown, hidden = layout.shown, self.config.hidden
        if shown is not None:
            x = x.index_copy(0, shown.tokens, shown.embeds[:, :hidden].to(x.dtype))
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._qkv(layer, self._norm(x, layer.input_norm), *angles[layer.rope])
            tensors = pool.layer(index, layer.k_scale, layer.v_scale)
            store(tensors.k_pool, layout.out_slots, k, tensors.k_scale)
            store(tensors.v_pool, layout.out_slots, v, tensors.v_scale)
            attended = layout.attention.run(self.layer_kinds[index], q, tensors)
            x = self._add(x, self._norm(layer.o(attended.flatten(1)), layer.attn_out_norm))
            mlp = self._mlp(layer, self._norm(x, layer.mlp_norm))
            x = self._add(x, self._norm(mlp, layer.mlp_out_norm))
            if shown is not None and (index + 2) * hidden <= shown.embeds.shape[1]:
                deep = shown.embeds[:, (index + 1) * hidden : (index + 2) * hidden]
                x = x.index_add(0, shown.tokens, deep.to(x.dtype))
        return self._norm(x, self.weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, hidden] (from `forward`) -> logits [N, vocab_size] float32."""
        logits = F.linear(hidden, self.weights.head).float()
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        softcap = self.config.logit_softcap
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def _add(self, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """The hidden states with what attention or an MLP adds to them."""
        scale = self.config.residual_scale
        return x + (part if scale == 1 else part * scale)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """RMSNorm of the last dimension; x itself where there is no such norm."""
        if weight is None:
            return x
        wide = x.to(torch.promote_types(x.dtype, weight.dtype))
        return F.rms_norm(wide, weight.shape, weight, self.config.rms_eps).to(x.dtype)

    def _qkv(
        self, layer: DecoderLayer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project and rotate: q [T, heads, head_dim], k and v [T, kv_heads, head_dim]."""
        c = self.config
        qk, v = torch.split(layer.qkv(x), [c.q_size + c.kv_size, c.kv_size], dim=-1)
        if c.whole_qk_norms:
            q, k = torch.split(qk, [c.q_size, c.kv_size], dim=-1)
            qk = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=-1)
        qk = qk.view(len(x), -1, c.head_dim)
        if c.head_norms:
            q, k = torch.split(qk, [c.heads, c.kv_heads], dim=1)
            qk = torch.cat((self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)), dim=1)
        if self._fused is not None:
            q, k = self._fused.rotate(qk, cos, sin, c.heads)
        else:
            q, k = torch.split(apply_rope(qk, cos, sin), [c.heads, c.kv_heads], dim=1)
        return q.contiguous(), k, v.view(len(x), -1, c.head_dim)

    def _mlp(self, layer: DecoderLayer, x: torch.Tensor) -> torch.Tensor:
        experts = self.config.experts
        if layer.mixture is not None and experts is not None:
            return run_mixture(layer.mixture, experts.rule, experts.used, x, self._kernels)
        assert layer.gate_up is not None and layer.down is not None
        return layer.down(self._activate(layer.gate_up(x)))

    def _activate(self, both: torch.Tensor) -> torch.Tensor:
        """The activation of the gate, times up: [T, n] of [T, 2 n], gate first."""
        if self._fused is not None and self.config.activation == "silu":
            activated: torch.Tensor = self._fused.silu_and_mul(both)
            return activated
        gate, up = both.chunk(2, dim=-1)
        if self.config.activation == "gelu_tanh":
            return F.gelu(gate, approximate="tanh") * up
        return F.silu(gate) * up


def fused_kernels(device: torch.device) -> ModuleType | None:
    """The module `fused`; None where it does not run: on other devices, and without Triton."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from scheduler_proc.models import fused  # imports triton

    return fused


def _kind(config: DecoderConfig, index: int) -> LayerKind:
    """The attention of layer `index`."""
    return LayerKind(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        value_dim=config.head_dim,
        scale=config.attn_scale,
        window=config.layer_window(index),
        softcap=config.attn_softcap,
    )


def rope_angles(table: RopeTable, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) of `positions` [T] or [3, T], times the amplitude: [T, 1, rotated dims / 2]
    float32."""
    places = positions.float()[..., None]
    if positions.ndim == 2:
        assert table.axes is not None
        places = places[table.axes, :, 0].T
    angles = (places * table.frequencies)[:, None, :]
    return angles.cos() * table.amplitude, angles.sin() * table.amplitude


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + n) of x [T, heads, head_dim], where cos and sin are of n pairs.

    The rest of a head is unchanged. Returns x's dtype.
    """
    pairs = cos.shape[-1]
    parts = [pairs, pairs, x.shape[-1] - 2 * pairs]
    first, second, rest = torch.split(x.float(), parts, dim=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin, rest)
    return torch.cat(rotated, dim=-1).to(x.dtype)
