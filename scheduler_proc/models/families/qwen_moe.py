"""Qwen2 and 3 with mixtures of experts, in all layers or in some; Qwen2's have an expert that every
token uses, whose output has a gate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_proc.models.config import DecoderConfig, Experts, RouterRule, convert
from scheduler_proc.models.families.expert_keys import SparseKeys, dense_layers, read_experts
from scheduler_proc.models.families.keys import decoder_config, same_window, windows_by_layer


class _Qwen2MoeKeys(SparseKeys, kw_only=True):
    max_position_embeddings: int = 32768
    num_key_value_heads: int | None = 16
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    qkv_bias: bool = True
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    num_experts_per_tok: int = 4


class _Qwen3MoeKeys(SparseKeys, kw_only=True):
    max_position_embeddings: int = 32768
    num_key_value_heads: int | None = 4
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    attention_bias: bool = False
    moe_intermediate_size: int = 768
    num_experts_per_tok: int = 8


def read_qwen2_moe(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Qwen2MoeForCausalLM. Unless layer_types says it, every other of the first
    `max_window_layers` layers has a window, beginning with the first."""
    keys = convert(found, _Qwen2MoeKeys, path)
    window = keys.sliding_window if keys.use_sliding_window else None
    early = [
        window is not None and i % 2 == 0 and i < keys.max_window_layers
        for i in range(keys.num_hidden_layers)
    ]
    experts = _experts(keys, path, 60, keys.shared_expert_intermediate_size)
    own = windows_by_layer(keys.layer_types, early, window, path)
    return decoder_config(keys, path, qkv_bias=keys.qkv_bias, experts=experts, **own)


def read_qwen3_moe(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """Qwen3MoeForCausalLM: a window, if it has one, is in all layers."""
    keys = convert(found, _Qwen3MoeKeys, path)
    experts = _experts(keys, path, 128)
    bias = keys.attention_bias
    own = same_window(keys, keys.sliding_window if keys.use_sliding_window else None)
    return decoder_config(
        keys, path, qkv_bias=bias, o_bias=bias, head_norms=True, experts=experts, **own
    )


def _experts(keys: SparseKeys, path: Path, count: int, shared_width: int = 0) -> Experts:
    """Its mixtures; `count` is the number of experts where the file does not say it."""
    return read_experts(
        keys,
        path,
        count=count,
        width=keys.moe_intermediate_size,
        rule=RouterRule(normalised=keys.norm_topk_prob),
        dense=dense_layers(keys, path),
        shared_width=shared_width,
    )
