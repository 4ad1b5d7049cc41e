"""Granite 3 and 4 (dense), and Granite 3 with mixtures of experts: Llama's layers with four
multipliers; a mixture's weights are the softmax of the chosen logits alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from scheduler_proc.models.config import DecoderConfig, RouterRule, convert, require
from scheduler_proc.models.families.expert_keys import ExpertKeys, read_experts
from scheduler_proc.models.families.keys import JsonKeys, decoder_config

_RULE = RouterRule(chosen_by="logits", normalised=False)


class _GraniteKeys(JsonKeys, kw_only=True):
    attention_bias: bool = False
    mlp_bias: bool = False


class _GraniteMoeKeys(ExpertKeys, kw_only=True):
    attention_bias: bool = False
    num_experts_per_tok: int = 2


class _Multipliers(Struct):
    embedding_multiplier: float | None = 1.0
    attention_multiplier: float | None = 1.0
    residual_multiplier: float | None = 1.0
    logits_scaling: float | None = 1.0


def read_granite(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """GraniteForCausalLM."""
    keys = convert(found, _GraniteKeys, path)
    bias = keys.attention_bias
    own = {"qkv_bias": bias, "o_bias": bias, "mlp_bias": keys.mlp_bias}
    return decoder_config(keys, path, **own, **_multipliers(found, path))


def read_granite_moe(found: Mapping[str, Any], path: Path) -> DecoderConfig:
    """GraniteMoeForCausalLM."""
    keys = convert(found, _GraniteMoeKeys, path)
    bias, width = keys.attention_bias, keys.intermediate_size
    experts = read_experts(keys, path, count=8, width=width, rule=_RULE, layout="granite")
    return decoder_config(
        keys, path, qkv_bias=bias, o_bias=bias, experts=experts, **_multipliers(found, path)
    )


def _multipliers(found: Mapping[str, Any], path: Path) -> dict[str, float]:
    values = asdict(convert(found, _Multipliers, path))
    for name, value in values.items():
        require(value is None or value > 0, f"{path}: {name} {value} is not above 0")
    embedding, attention, residual, logits = (value or 1.0 for value in values.values())
    return {
        "embed_scale": embedding,
        "query_scale": attention,
        "residual_scale": residual,
        "logit_scale": 1 / logits,
    }
