"""Qwen2, 2.5 and 3, dense: biases of q, k and v, or norms of their heads; windows if asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, convert
from scheduler_proc.models.families.keys import JsonKeys, decoder_config, refuse, windows_by_layer


class _Qwen2Keys(JsonKeys, kw_only=True):
    max_position_embeddings: int = 32768
    num_key_value_heads: int | None = 32
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    use_mrope: bool = False


class _Qwen3Keys(_Qwen2Keys, kw_only=True):
    head_dim: int | None = 128
    attention_bias: bool = False


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


def _windows(keys: _Qwen2Keys, path: Path) -> Mapping[str, Any]:
    """The first `max_window_layers` layers see everything, whatever the key's name suggests."""
    refuse(keys.use_mrope, "use_mrope", True, path)
    window = keys.sliding_window if keys.use_sliding_window else None
    late = [
        window is not None and i >= keys.max_window_layers for i in range(keys.num_hidden_layers)
    ]
    return windows_by_layer(keys.layer_types, late, window, path)
