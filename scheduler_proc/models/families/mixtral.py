"""Mixtral 8x7B and 8x22B: Mistral's layers with a mixture of experts in place of every MLP."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, RouterRule, convert
from scheduler_proc.models.families.expert_keys import ExpertKeys, read_experts
from scheduler_proc.models.families.keys import decoder_config, same_window


class _MixtralKeys(ExpertKeys, kw_only=True):
    max_position_embeddings: int = 4096 * 32
    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float | None = 1e6
    sliding_window: int | None = None
    num_experts_per_tok: int = 2


def read_mixtral(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """MixtralForCausalLM."""
    keys = convert(found, _MixtralKeys, path)
    rule, width = RouterRule(), keys.intermediate_size
    experts = read_experts(keys, path, count=8, width=width, rule=rule, layout="mixtral")
    return decoder_config(keys, path, experts=experts, **same_window(keys, keys.sliding_window))
