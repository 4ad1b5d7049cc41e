"""Qwen2, 2.5 and 3, dense: biases of q, k and v, or norms of their heads; windows if asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scheduler_proc.models.config import DecoderConfig, Rope, convert
from scheduler_proc.models.families.keys import (
    JsonKeys,
    decoder_config,
    refuse,
    refuse_part,
    rope_keys,
    windows_by_layer,
)
from scheduler_proc.models.families.rope_keys import read_rope

_SECTIONS = {False: (16, 24, 24), True: (24, 20, 20)}  # transformers' defaults, by `interleaved`


class _Qwen2Keys(JsonKeys, kw_only=True):
    max_position_embeddings: int = 32768
    num_key_value_heads: int | None = 32
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    use_mrope: bool = False


class _Qwen2VLKeys(_Qwen2Keys, kw_only=True):
    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float | None = 1e6
    max_window_layers: int = 80


class _Qwen3Keys(_Qwen2Keys, kw_only=True):
    head_dim: int | None = 128
    attention_bias: bool = False


class _Qwen3VLKeys(_Qwen3Keys, kw_only=True):
    max_position_embeddings: int = 128000
    rope_theta: float | None = 5e5


def read_qwen2(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Qwen2ForCausalLM, also of Qwen2.5."""
    keys = convert(found, _Qwen2Keys, path)
    return decoder_config(keys, path, qkv_bias=True, **_windows(keys, path))


def read_qwen3(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Qwen3ForCausalLM."""
    keys = convert(found, _Qwen3Keys, path)
    bias = keys.attention_bias
    own = _windows(keys, path)
    return decoder_config(keys, path, qkv_bias=bias, o_bias=bias, head_norms=True, **own)


def read_qwen2_5_vl(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """The text of Qwen2_5_VLForConditionalGeneration: each pair of a head is turned by one of three
    positions, the first pairs by time, the next by the row, the last by the column."""
    keys = convert(found, _Qwen2VLKeys, path)
    rope = _in_sections(keys, path, interleaved=False)
    return decoder_config(keys, path, qkv_bias=True, rope=rope, **_windows(keys, path))


def read_qwen3_vl(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """The text of Qwen3VLForConditionalGeneration: the same, pairs of the three in turn."""
    keys = convert(found, _Qwen3VLKeys, path)
    bias = keys.attention_bias
    own = dict(_windows(keys, path))
    own["rope"] = _in_sections(keys, path, interleaved=True)
    return decoder_config(keys, path, qkv_bias=bias, o_bias=bias, head_norms=True, **own)


def _in_sections(keys: _Qwen2Keys, path: Path, *, interleaved: bool) -> Rope:
    found = rope_keys(keys, path)
    refuse_part(found.partial_rotary_factor or keys.partial_rotary_factor, path)
    sections = found.mrope_section or _SECTIONS[interleaved]
    rope = read_rope(found, keys.max_position_embeddings, path)
    return replace(rope, sections=tuple(sections), interleaved=interleaved)


def _windows(keys: _Qwen2Keys, path: Path) -> Mapping[str, Any]:
    """The first `max_window_layers` layers see everything, whatever the key's name suggests."""
    refuse(keys.use_mrope, "use_mrope", True, path)
    window = keys.sliding_window if keys.use_sliding_window else None
    late = [
        window is not None and i >= keys.max_window_layers for i in range(keys.num_hidden_layers)
    ]
    return windows_by_layer(keys.layer_types, late, window, path)
