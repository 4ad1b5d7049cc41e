"""Gemma 2 and 3 (text): norms around attention and MLP, scaled embeddings, soft caps, and windows
in most layers, which in Gemma 3 have a rotary base of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from scheduler_proc.models.config import DecoderConfig, Rope, convert, require
from scheduler_proc.models.families.keys import (
    JsonKeys,
    decoder_config,
    refuse,
    refuse_part,
    refuse_two_ropes,
    whole_rope,
    windows_by_layer,
)
from scheduler_proc.models.families.rope_keys import RopeKeys, read_rope


class _GemmaKeys(JsonKeys, kw_only=True):
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None
    use_bidirectional_attention: bool | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None


class _Gemma2Keys(_GemmaKeys, kw_only=True):
    max_position_embeddings: int = 8192
    final_logit_softcapping: float | None = 30.0
    attn_logit_softcapping: float | None = 50.0


class _Gemma3Keys(_GemmaKeys, kw_only=True):
    max_position_embeddings: int = 131072
    rope_local_base_freq: float | None = None
    sliding_window_pattern: int = 6


class _LayerRopes(Struct, frozen=True, forbid_unknown_fields=True):
    """Gemma 3's rope settings by kind of layer, as transformers 5 writes them."""

    full_attention: RopeKeys = RopeKeys()
    sliding_attention: RopeKeys = RopeKeys()


def read_gemma2(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Gemma2ForCausalLM: every other layer has a window, beginning with the first."""
    keys = convert(found, _Gemma2Keys, path)
    local = [i % 2 == 0 for i in range(keys.num_hidden_layers)]
    softcap = keys.attn_logit_softcapping or None
    return _gemma(keys, local, path, rope=whole_rope(keys, path), attn_softcap=softcap)


def read_gemma3(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Gemma3ForCausalLM: all but every sixth layer have a window."""
    keys = convert(found, _Gemma3Keys, path)
    # transformers reads this key for Gemma 3, too, and computes nothing with it.
    refuse(bool(keys.attn_logit_softcapping), "attn_logit_softcapping", True, path)
    period = keys.sliding_window_pattern
    require(period > 0, f"{path}: sliding_window_pattern must be positive")
    local = [(i + 1) % period != 0 for i in range(keys.num_hidden_layers)]
    rope, local_rope = _ropes(keys, path)
    return _gemma(keys, local, path, rope=rope, local_rope=local_rope, head_norms=True)


def _gemma(keys: _GemmaKeys, local: list[bool], path: Path, **own: Any) -> DecoderConfig:
    """What both have in common; `local` says which layers have windows if layer_types does not."""
    activation, bias = keys.hidden_activation, keys.attention_bias
    refuse(activation != "gelu_pytorch_tanh", "hidden_activation", activation, path)
    refuse(bool(keys.use_bidirectional_attention), "use_bidirectional_attention", True, path)
    scalar = keys.query_pre_attn_scalar
    require(scalar > 0, f"{path}: query_pre_attn_scalar {scalar} is not above 0")
    return decoder_config(
        keys,
        path,
        activation="gelu_tanh",
        qkv_bias=bias,
        o_bias=bias,
        sandwich_norms=True,
        norm_offset=1.0,
        embed_scale=keys.hidden_size**0.5,
        query_scale=keys.query_pre_attn_scalar**-0.5,
        logit_softcap=keys.final_logit_softcapping or None,
        **windows_by_layer(keys.layer_types, local, keys.sliding_window, path),
        **own,
    )


def _ropes(keys: _Gemma3Keys, path: Path) -> tuple[Rope, Rope]:
    """The rope of layers that see everything, and that of layers with a window."""
    refuse_two_ropes(keys, path)
    found = keys.rope_parameters or {"full_attention": keys.rope_scaling or {}}
    ropes = convert(found, _LayerRopes, path)
    bases = (keys.rope_theta or 1e6, keys.rope_local_base_freq or 1e4)
    full, local = (
        replace(rope, rope_theta=rope.rope_theta or base)
        for rope, base in zip((ropes.full_attention, ropes.sliding_attention), bases, strict=True)
    )
    for rope in (full, local):
        refuse(rope.kind not in ("default", "linear"), "rope scaling", rope.kind, path)
        refuse_part(rope.partial_rotary_factor, path)
    context_len = keys.max_position_embeddings
    return read_rope(full, context_len, path), read_rope(local, context_len, path)
