"""Llama 2 and 3, and what has their architecture (SmolLM2, TinyLlama, Yi, ...)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, convert
from scheduler_proc.models.families.keys import JsonKeys, decoder_config


class _LlamaKeys(JsonKeys, kw_only=True):
    attention_bias: bool = False
    mlp_bias: bool = False


def read_llama(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """LlamaForCausalLM."""
    keys = convert(found, _LlamaKeys, path)
    bias = keys.attention_bias
    return decoder_config(keys, path, qkv_bias=bias, o_bias=bias, mlp_bias=keys.mlp_bias)
