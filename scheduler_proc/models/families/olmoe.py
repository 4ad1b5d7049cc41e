"""OLMoE: norms of the whole of q and of k before they are heads, and a mixture in every layer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, RouterRule, convert
from scheduler_proc.models.families.expert_keys import ExpertKeys, read_experts
from scheduler_proc.models.families.keys import decoder_config, refuse


class _OlmoeKeys(ExpertKeys, kw_only=True):
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    clip_qkv: float | None = None
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False


def read_olmoe(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """OlmoeForCausalLM."""
    keys = convert(found, _OlmoeKeys, path)
    refuse(keys.clip_qkv is not None, "clip_qkv", keys.clip_qkv, path)
    rule, bias = RouterRule(normalised=keys.norm_topk_prob), keys.attention_bias
    experts = read_experts(keys, path, count=64, width=keys.intermediate_size, rule=rule)
    return decoder_config(
        keys, path, qkv_bias=bias, o_bias=bias, whole_qk_norms=True, experts=experts
    )
