"""Which tensors a Llama checkpoint must hold: names as Hugging Face has them, and shapes.

Loaders check a checkpoint against this before they read anything.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from scheduler_proc.models.checkpoint import ROPE_DIVISORS, Checkpoint
from scheduler_proc.models.config import LlamaConfig
from srt.errors import ConfigError

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

# Buffers that old checkpoints carry and that follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class LinearSpec(NamedTuple):
    """A linear layer of `rows` outputs and `inputs`. `heads` is nonzero for q and k, whose rows
    may need their rope pairs reordered."""

    name: str
    rows: int
    inputs: int
    bias: bool
    heads: int = 0


class LayerSpec(NamedTuple):
    """One decoder layer: its norms' tensor names, and its linear layers."""

    input_norm: str
    post_norm: str
    q: LinearSpec
    k: LinearSpec
    v: LinearSpec
    o: LinearSpec
    gate: LinearSpec
    up: LinearSpec
    down: LinearSpec

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        return self[2:]


def layer_spec(config: LlamaConfig, index: int) -> LayerSpec:
    """The tensors of layer `index`."""
    c, prefix = config, f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return LayerSpec(
        input_norm=f"{prefix}.input_layernorm.weight",
        post_norm=f"{prefix}.post_attention_layernorm.weight",
        q=LinearSpec(f"{attention}.q_proj", c.q_size, c.hidden, c.attention_bias, c.heads),
        k=LinearSpec(f"{attention}.k_proj", c.kv_size, c.hidden, c.attention_bias, c.kv_heads),
        v=LinearSpec(f"{attention}.v_proj", c.kv_size, c.hidden, c.attention_bias),
        o=LinearSpec(f"{attention}.o_proj", c.hidden, c.q_size, c.attention_bias),
        gate=LinearSpec(f"{mlp}.gate_proj", c.intermediate, c.hidden, c.mlp_bias),
        up=LinearSpec(f"{mlp}.up_proj", c.intermediate, c.hidden, c.mlp_bias),
        down=LinearSpec(f"{mlp}.down_proj", c.hidden, c.intermediate, c.mlp_bias),
    )


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raise ConfigError naming a missing, surplus or ill-shaped tensor."""
    wanted = dict(_shapes(checkpoint.config))
    present = set(checkpoint.names())
    for name in sorted(wanted.keys() - present):
        raise ConfigError(f"{checkpoint.path}: tensor {name} is missing")
    if checkpoint.config.tie_embeddings:
        present.discard(HEAD)
    for name in sorted(present - wanted.keys()):
        if not _DERIVED.fullmatch(name):
            raise ConfigError(f"{checkpoint.path}: tensor {name} does not belong to this model")
    for name, shape in wanted.items():
        _check_shape(checkpoint, name, checkpoint.shape(name), shape)
    divisors = checkpoint.rope_divisors()
    if divisors is not None:
        expected = (checkpoint.config.head_dim // 2,)
        _check_shape(checkpoint, ROPE_DIVISORS, divisors.shape, expected)


def _shapes(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBED, (config.vocab_size, config.hidden)
    if not config.tie_embeddings:
        yield HEAD, (config.vocab_size, config.hidden)
    yield NORM, (config.hidden,)
    for index in range(config.layers):
        layer = layer_spec(config, index)
        yield layer.input_norm, (config.hidden,)
        yield layer.post_norm, (config.hidden,)
        for linear in layer.linears:
            yield f"{linear.name}.weight", (linear.rows, linear.inputs)
            if linear.bias:
                yield f"{linear.name}.bias", (linear.rows,)


def _check_shape(
    checkpoint: Checkpoint, name: str, found: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if tuple(found) != wanted:
        raise ConfigError(
            f"{checkpoint.path}: tensor {name} has shape {list(found)}, expected {list(wanted)}"
        )
