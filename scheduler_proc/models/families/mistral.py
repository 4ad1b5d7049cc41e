"""Mistral 7B, Nemo and Small (text): Llama with a window in all layers or in none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, convert
from scheduler_proc.models.families.keys import JsonKeys, decoder_config, same_window


class _Keys(JsonKeys, kw_only=True):
    max_position_embeddings: int = 4096 * 32
    num_key_value_heads: int | None = 8
    sliding_window: int | None = 4096


def read_mistral(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """MistralForCausalLM."""
    keys = convert(found, _Keys, path)
    return decoder_config(keys, path, **same_window(keys, keys.sliding_window))
