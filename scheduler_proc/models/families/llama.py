"""Llama 2 and 3, and what has their architecture (SmolLM2, TinyLlama, Yi, ...); Mistral 7B, Nemo
and Small (text), with a window in all layers or in none; Ministral 8B, with one in some.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, convert
from scheduler_proc.models.families.keys import JsonKeys, decoder_config, windows_by_layer


class _LlamaKeys(JsonKeys, kw_only=True):
    attention_bias: bool = False
    mlp_bias: bool = False


def read_llama(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """LlamaForCausalLM."""
    keys = convert(found, _LlamaKeys, path)
    bias = keys.attention_bias
    return decoder_config(keys, path, qkv_bias=bias, o_bias=bias, mlp_bias=keys.mlp_bias)


class _MistralKeys(JsonKeys, kw_only=True):
    max_position_embeddings: int = 4096 * 32
    num_key_value_heads: int | None = 8
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None


def read_mistral(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """MistralForCausalLM, and MinistralForCausalLM, which transformers makes of the same file if it
    has layer_types."""
    keys = convert(found, _MistralKeys, path)
    window = keys.sliding_window
    everywhere = [bool(window)] * keys.num_hidden_layers
    return decoder_config(
        keys, path, **windows_by_layer(keys.layer_types, everywhere, window, path)
    )
