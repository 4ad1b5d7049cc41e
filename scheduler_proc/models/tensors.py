"""Which tensors a checkpoint must hold: names as Hugging Face has them, and shapes.

Loaders check a checkpoint against this before they read anything.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from scheduler_proc.models.checkpoint import EMBED, HEAD, Checkpoint
from scheduler_proc.models.config import DecoderConfig
from srt.wire.errors import ConfigError

NORM = "model.norm.weight"

# Buffers that old checkpoints carry and that follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class LinearSpec(NamedTuple):
    """A linear layer of `rows` outputs and `inputs`: rows [first, first + rows) of the
    `tensor_rows` that tensor `name`.weight has, and of its bias if there is one. `heads` is nonzero
    for q and k, whose rows may need their rope pairs reordered."""

    name: str
    rows: int
    inputs: int
    bias: bool
    first: int
    tensor_rows: int
    heads: int = 0


class LayerSpec(NamedTuple):
    """One decoder layer: its linear layers, and its norms' tensor names, None where it has none."""

    q: LinearSpec
    k: LinearSpec
    v: LinearSpec
    o: LinearSpec
    gate: LinearSpec
    up: LinearSpec
    down: LinearSpec
    input_norm: str
    mlp_norm: str
    q_norm: str | None
    k_norm: str | None
    attn_out_norm: str | None
    mlp_out_norm: str | None
    k_scales: tuple[
        str, str
    ]  # what checkpoints call the scale of the layer's keys, if they have it
    v_scales: tuple[str, str]

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        return (self.q, self.k, self.v, self.o, self.gate, self.up, self.down)


def layer_spec(config: DecoderConfig, index: int) -> LayerSpec:
    """The tensors of layer `index`."""
    c, prefix = config, f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    sizes = (("q", c.q_size), ("k", c.kv_size), ("v", c.kv_size))
    parts = [(f"{attention}.{name}_proj", rows) for name, rows in sizes]
    q, k, v = _projections(c, f"{attention}.qkv_proj", parts, c.qkv_bias)
    parts = [(f"{mlp}.{name}_proj", c.intermediate) for name in ("gate", "up")]
    gate, up = _projections(c, f"{mlp}.gate_up_proj", parts, c.mlp_bias)
    sandwich = c.sandwich_norms
    return LayerSpec(
        q=q._replace(heads=c.heads),
        k=k._replace(heads=c.kv_heads),
        v=v,
        o=_linear(f"{attention}.o_proj", c.hidden, c.q_size, c.o_bias),
        gate=gate,
        up=up,
        down=_linear(f"{mlp}.down_proj", c.hidden, c.intermediate, c.mlp_bias),
        input_norm=f"{prefix}.input_layernorm.weight",
        # What Llama calls the norm after attention is the one before the MLP.
        mlp_norm=f"{prefix}.{'pre_feedforward' if sandwich else 'post_attention'}_layernorm.weight",
        q_norm=f"{attention}.q_norm.weight" if c.head_norms else None,
        k_norm=f"{attention}.k_norm.weight" if c.head_norms else None,
        attn_out_norm=f"{prefix}.post_attention_layernorm.weight" if sandwich else None,
        mlp_out_norm=f"{prefix}.post_feedforward_layernorm.weight" if sandwich else None,
        k_scales=(f"{attention}.k_scale", f"{attention}.k_proj.k_scale"),
        v_scales=(f"{attention}.v_scale", f"{attention}.v_proj.v_scale"),
    )


def _projections(
    config: DecoderConfig, fused: str, parts: Sequence[tuple[str, int]], bias: bool
) -> list[LinearSpec]:
    """Projections of the hidden states, `parts` being names and rows: tensors of their own, or
    in this order the rows of tensor `fused`."""
    if not config.fused_projections:
        return [_linear(name, rows, config.hidden, bias) for name, rows in parts]
    ends = [0, *accumulate(rows for _, rows in parts)]
    return [
        LinearSpec(fused, rows, config.hidden, bias, first, tensor_rows=ends[-1])
        for first, (_, rows) in zip(ends, parts, strict=False)
    ]


def _linear(name: str, rows: int, inputs: int, bias: bool) -> LinearSpec:
    """All rows of a tensor."""
    return LinearSpec(name, rows, inputs, bias, first=0, tensor_rows=rows)


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raise ConfigError naming a missing, surplus or ill-shaped tensor."""
    wanted = dict(_shapes(checkpoint.config))
    present = set(checkpoint.tensors)
    for name in sorted(wanted.keys() - present):
        raise ConfigError(f"{checkpoint.path}: tensor {name} is missing")
    if checkpoint.config.tie_embeddings:
        present.discard(HEAD)
    scales = kv_scale_names(checkpoint.config) & present
    for name in scales:
        if checkpoint.shape(name) not in ((), (1,)):
            _check_shape(checkpoint, name, checkpoint.shape(name), (1,))
    for name in sorted(present - wanted.keys() - scales):
        if not _DERIVED.fullmatch(name):
            raise ConfigError(f"{checkpoint.path}: tensor {name} does not belong to this model")
    for name, shape in wanted.items():
        _check_shape(checkpoint, name, checkpoint.shape(name), shape)
    divisors = checkpoint.rope_divisors()
    if divisors is not None:
        expected = (checkpoint.config.rope_dims(checkpoint.config.rope) // 2,)
        _check_shape(checkpoint, "of rope divisors", divisors.shape, expected)


def kv_scale_names(config: DecoderConfig) -> set[str]:
    """All names that scales of an eight-bit KV cache may have. None of them must be there."""
    layers = [layer_spec(config, index) for index in range(config.layers)]
    return {name for layer in layers for name in (*layer.k_scales, *layer.v_scales)}


def _shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBED, (config.vocab_size, config.hidden)
    if not config.tie_embeddings:
        yield HEAD, (config.vocab_size, config.hidden)
    yield NORM, (config.hidden,)
    for index in range(config.layers):
        layer = layer_spec(config, index)
        for norm in (layer.input_norm, layer.mlp_norm, layer.attn_out_norm, layer.mlp_out_norm):
            if norm is not None:
                yield norm, (config.hidden,)
        for norm in (layer.q_norm, layer.k_norm):
            if norm is not None:
                yield norm, (config.head_dim,)
        for linear in layer.linears:
            yield f"{linear.name}.weight", (linear.tensor_rows, linear.inputs)
            if linear.bias:
                yield f"{linear.name}.bias", (linear.tensor_rows,)


def _check_shape(
    checkpoint: Checkpoint, name: str, found: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if tuple(found) != wanted:
        raise ConfigError(
            f"{checkpoint.path}: tensor {name} has shape {list(found)}, expected {list(wanted)}"
        )
