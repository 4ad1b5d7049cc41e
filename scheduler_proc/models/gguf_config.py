"""The shape of a model, read from a GGUF file's metadata.

Called by the checkpoint reader. Keys: ggml-org/llama.cpp, gguf-py/gguf/constants.py; defaults of
keys that a file leaves out: src/llama-model.cpp there. What cannot be computed exactly is a
ConfigError here, as in `config`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from scheduler_proc.models.config import (
    DecoderConfig,
    Experts,
    LinearRope,
    NumLayers,
    Rope,
    RouterRule,
    YarnRope,
    convert,
    naming,
    require,
)
from scheduler_proc.models.gguf_names import ROPE_DIVISORS
from srt.files.context import gguf_context_len
from srt.files.gguf import GGUFFile
from srt.wire.errors import ConfigError

ARCHITECTURES = (
    *("llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "granite"),
    *("qwen2moe", "qwen3moe", "olmoe", "granitemoe"),
)
# llama.cpp's converter stores pairs of their q and k side by side.
INTERLEAVED_ROPE = ("llama", "granite", "granitemoe")
_GRANITE = ("granite", "granitemoe")
# Whose chosen experts' weights are divided by their sum unless a file says otherwise; among those
# of Granite that is the softmax of the chosen logits.
_NORMALISED = {"llama": True, "qwen2moe": False, "qwen3moe": True, "olmoe": False}
_MIXED = (*_NORMALISED, "granitemoe")
_SOFTMAX = 1  # of gguf.ExpertGatingFuncType

# Keys that change what is computed, and the values with which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (_SOFTMAX,),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0,),
    "rope.dimension_sections": (),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
# The same of keys that some architectures have.
_NEUTRAL_ELSEWHERE: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "expert_count": ((0,), _MIXED),
    "expert_shared_feed_forward_length": ((0,), ("qwen2moe", "granitemoe")),
    "logit_scale": ((), _GRANITE),
    "residual_scale": ((), _GRANITE),
    "embedding_scale": ((), _GRANITE),
}
# Gemma's largest models divide scores by other than the root of a head's size, and llama.cpp knows
# them by their number of layers.
_SCALED_BY_HIDDEN = {"gemma2": 46, "gemma3": 62}
# In every group of this many layers, all but the last have a window.
_WINDOW_PERIODS = {"gemma2": 2, "gemma3": 6}


class _ArchitectureKeys(Struct):
    """The metadata `<architecture>.*` that matters, without the prefix."""

    layers: NumLayers = field(name="block_count")
    hidden: int = field(name="embedding_length")
    intermediate: int = field(name="feed_forward_length")
    heads: int = field(name="attention.head_count")
    rms_eps: float = field(name="attention.layer_norm_rms_epsilon")
    kv_heads: int | None = field(name="attention.head_count_kv", default=None)
    key_len: int | None = field(name="attention.key_length", default=None)
    value_len: int | None = field(name="attention.value_length", default=None)
    attn_scale: float | None = field(name="attention.scale", default=None)
    window: int | None = field(name="attention.sliding_window", default=None)
    window_period: int | list[bool] | None = field(
        name="attention.sliding_window_pattern", default=None
    )
    attn_softcap: float | None = field(name="attn_logit_softcapping", default=None)
    logit_softcap: float | None = field(name="final_logit_softcapping", default=None)
    rope_theta: float = field(name="rope.freq_base", default=10000.0)
    local_theta: float | None = field(name="rope.freq_base_swa", default=None)
    rope_dims: int | None = field(name="rope.dimension_count", default=None)
    scaling: str | None = field(name="rope.scaling.type", default=None)
    factor: float | None = field(name="rope.scaling.factor", default=None)
    scale_linear: float | None = field(name="rope.scale_linear", default=None)
    amplitude: float = field(name="rope.scaling.attn_factor", default=1.0)
    original_len: int | None = field(name="rope.scaling.original_context_length", default=None)
    beta_fast: float = field(name="rope.scaling.yarn_beta_fast", default=32.0)
    beta_slow: float = field(name="rope.scaling.yarn_beta_slow", default=1.0)
    experts: int = field(name="expert_count", default=0)
    used_experts: int = field(name="expert_used_count", default=0)
    expert_width: int | None = field(name="expert_feed_forward_length", default=None)
    shared_width: int | None = field(name="expert_shared_feed_forward_length", default=None)
    are_normalised: bool | None = field(name="expert_weights_norm", default=None)
    expert_scale: float = field(name="expert_weights_scale", default=1.0)
    groups: int = field(name="expert_group_count", default=1)
    used_groups: int = field(name="expert_group_used_count", default=1)
    embed_scale: float = field(name="embedding_scale", default=1.0)
    residual_scale: float = 1.0
    logit_divisor: float = field(name="logit_scale", default=1.0)

    @property
    def head_dim(self) -> int:
        return self.key_len or self.hidden // max(self.heads, 1)


def config_from_gguf(file: GGUFFile) -> DecoderConfig:
    """Read a GGUF file's metadata; ties, biases and fused projections show in its tensors.

    Raises ConfigError naming what is not supported.
    """
    with naming(file.path):
        return _config_from_gguf(file)


def _config_from_gguf(file: GGUFFile) -> DecoderConfig:
    arch = file.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: GGUF architecture {arch!r} is not supported "
            f"({', '.join(ARCHITECTURES)} are)"
        )
    prefix = f"{arch}."
    found = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    keys = convert(found, _ArchitectureKeys, file.path)
    _check(arch, found, keys, file.path)
    require(
        keys.scaling != "longrope" or ROPE_DIVISORS[1] in file.tensors,
        f"{file.path}: rope scaling 'longrope' without the tensor {ROPE_DIVISORS[1]}",
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor token_embd.weight is missing")
    return DecoderConfig(
        hidden=keys.hidden,
        layers=keys.layers,
        heads=keys.heads,
        kv_heads=keys.kv_heads or keys.heads,
        head_dim=keys.head_dim,
        intermediate=keys.intermediate,
        vocab_size=embedding.shape[0],
        context_len=gguf_context_len(file),
        rms_eps=keys.rms_eps,
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias=not {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}.isdisjoint(file.tensors),
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        head_norms="blk.0.attn_q_norm.weight" in file.tensors and arch != "olmoe",
        whole_qk_norms=arch == "olmoe",
        experts=_experts(arch, keys, file),
        fused_projections=arch == "phi3",
        **_attention(arch, keys, file.path),
        **_ropes(arch, keys, gguf_context_len(file), file.path),
        **(_granite(keys) if arch in _GRANITE else _gemma(arch, keys)),
    )


def _check(arch: str, found: Mapping[str, Any], keys: _ArchitectureKeys, path: Path) -> None:
    others = {n: values for n, (values, archs) in _NEUTRAL_ELSEWHERE.items() if arch not in archs}
    for name, neutral in {**_NEUTRAL, **others}.items():
        value = found.get(name)
        require(value is None or value in neutral, f"{path}: {name} = {value} is not supported")
    # With it false, llama.cpp computes Granites without a rotary embedding.
    is_rotated = arch not in _GRANITE or found.get("rope.scaling.finetuned", True)
    require(is_rotated, f"{path}: rope.scaling.finetuned = False is not supported")
    require(
        keys.value_len in (None, keys.head_dim),
        f"{path}: values of other than the head dimension ({keys.head_dim}) are not supported",
    )


def _attention(arch: str, keys: _ArchitectureKeys, path: Path) -> dict[str, Any]:
    """Scale, soft cap and windows."""
    scale, softcap, window = keys.attn_scale, keys.attn_softcap, keys.window
    if arch == "gemma2":
        softcap = 50.0 if softcap is None else softcap
        window = 4096 if window is None else window
    if scale is None and keys.layers == _SCALED_BY_HIDDEN.get(arch):
        scale = (keys.hidden / keys.heads) ** -0.5
    fields = {"query_scale": scale or None, "attn_softcap": softcap or None}
    windowed = _windowed(arch, keys) if window else ()
    return {**fields, "window": window, "windowed": windowed} if any(windowed) else fields


def _windowed(arch: str, keys: _ArchitectureKeys) -> tuple[bool, ...]:
    period = _WINDOW_PERIODS.get(arch, 0) if keys.window_period is None else keys.window_period
    if isinstance(period, list):
        return tuple(period)
    return tuple(period == 0 or i % period < period - 1 for i in range(keys.layers))


def _ropes(arch: str, keys: _ArchitectureKeys, context_len: int, path: Path) -> dict[str, Any]:
    """The rotary embedding, and that of layers with a window where they have their own."""
    if arch in INTERLEAVED_ROPE:
        require(
            keys.rope_dims in (None, keys.head_dim),
            f"{path}: rope must span the whole head dimension ({keys.head_dim})",
        )
    dims = None if keys.rope_dims == keys.head_dim else keys.rope_dims
    fields = {"rope": _rope(keys, dims, context_len, path)}
    if arch == "gemma3":
        fields["local_rope"] = Rope(keys.local_theta or 10000.0, dims)
    return fields


def _rope(keys: _ArchitectureKeys, dims: int | None, context_len: int, path: Path) -> Rope:
    factor = keys.factor or keys.scale_linear or 1.0
    # A factor without a kind is a linear one. The factors of LongRoPE are tensors.
    kind = keys.scaling or ("none" if factor == 1.0 else "linear")
    require(factor >= 1.0, f"{path}: rope.scaling.factor {factor} is below 1")
    amplitude = keys.amplitude
    if kind in ("none", "longrope"):
        return Rope(keys.rope_theta, dims, amplitude=amplitude)
    if kind == "linear":
        return Rope(keys.rope_theta, dims, LinearRope(factor), amplitude)
    require(kind == "yarn", f"{path}: rope scaling {kind!r} is not supported")
    original = keys.original_len or context_len
    yarn = YarnRope(factor, original, keys.beta_fast, keys.beta_slow)
    return Rope(keys.rope_theta, dims, yarn, amplitude * (0.1 * math.log(factor) + 1.0))


def _experts(arch: str, keys: _ArchitectureKeys, file: GGUFFile) -> Experts | None:
    """The mixtures; None for an architecture, or a Llama, that has none."""
    if arch not in _MIXED or (arch == "llama" and keys.experts == 0):
        return None
    normalised = (
        _NORMALISED.get(arch, False) if keys.are_normalised is None else keys.are_normalised
    )
    shared_width = keys.shared_width or 0
    if arch == "qwen2moe":
        shared_width = shared_width or keys.intermediate
    # The first files of Qwen2's have the width of all used experts together.
    width = keys.intermediate
    if arch in ("qwen2moe", "qwen3moe"):
        width = keys.expert_width or keys.intermediate // max(keys.used_experts, 1)
    return Experts(
        count=keys.experts,
        used=keys.used_experts,
        width=width,
        rule=RouterRule(
            chosen_by="logits" if arch == "granitemoe" else "scores",
            normalised=normalised,
            scale=keys.expert_scale or 1.0,
            groups=max(keys.groups, 1),
            used_groups=max(keys.used_groups, 1),
        ),
        shared_width=shared_width,
        shared_gate=arch == "qwen2moe",
        layout="stacked" if "blk.0.ffn_gate_up_exps.weight" in file.tensors else "gguf",
    )


def _granite(keys: _ArchitectureKeys) -> dict[str, Any]:
    """Granite's multipliers; that of scores is `attention.scale`, and 0 is none."""
    return {
        "embed_scale": keys.embed_scale or 1.0,
        "residual_scale": keys.residual_scale or 1.0,
        "logit_scale": 1 / (keys.logit_divisor or 1.0),
    }


def _gemma(arch: str, keys: _ArchitectureKeys) -> dict[str, Any]:
    """The Gemmas' additional steps. Their files hold norms in the form that is applied."""
    softcap = keys.logit_softcap
    if arch not in ("gemma2", "gemma3"):
        return {"logit_softcap": softcap or None}
    if arch == "gemma2" and softcap is None:
        softcap = 30.0
    return {
        "activation": "gelu_tanh",
        "sandwich_norms": True,
        "embed_scale": keys.hidden**0.5,
        "logit_softcap": softcap or None,
    }
