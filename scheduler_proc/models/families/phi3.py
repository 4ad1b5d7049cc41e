"""Phi-3, 3.5, 4 and 4-mini (text): projections in one piece, partly rotated heads, LongRoPE."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scheduler_proc.models.config import DecoderConfig, Rope, convert
from scheduler_proc.models.families.keys import (
    JsonKeys,
    decoder_config,
    refuse,
    rope_keys,
    same_window,
)
from scheduler_proc.models.families.rope_keys import read_longrope, read_rope

# With the name that early files have for it.
_LONGROPE = ("longrope", "su", "yarn")


class _Phi3Keys(JsonKeys, kw_only=True):
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int | None = 4096
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None
    attention_bias: bool = False


def read_phi3(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Phi3ForCausalLM."""
    keys = convert(found, _Phi3Keys, path)
    refuse(keys.attention_bias, "attention_bias", True, path)
    own = same_window(keys, keys.sliding_window)
    return decoder_config(keys, path, rope=_rope(keys, path), fused_projections=True, **own)


def _rope(keys: _Phi3Keys, path: Path) -> Rope:
    rope = rope_keys(keys, path)
    context_len = keys.max_position_embeddings
    if rope.kind in _LONGROPE:
        found = read_longrope(rope, context_len, path)
    else:
        refuse(rope.kind != "default", "rope scaling", rope.kind, path)
        found = read_rope(rope, context_len, path)
    part = rope.partial_rotary_factor or keys.partial_rotary_factor or 1.0
    return replace(found, dims=None if part == 1.0 else int(keys.head_size * part))
