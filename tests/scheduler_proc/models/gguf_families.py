"""Random models of every family as GGUF files, written as llama.cpp's converter does.

Tensor names come from the gguf package; the converter's changes (the order of q and k rows in
Llamas, norms of Gemmas) and the metadata are defined here.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from srt.files.model_files import ModelFiles

ARCHS = {
    **dict.fromkeys(("mistral", "ministral", "mixtral"), "llama"),
    **{"gemma3_text": "gemma3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"},
}
INTERLEAVED = ("llama", "granite", "granitemoe")


def arch_of(model: Any) -> str:
    """llama.cpp's name for the architecture of a transformers model."""
    model_type: str = model.config.model_type
    return ARCHS.get(model_type, model_type)


def converted_tensors(model: Any) -> dict[str, np.ndarray]:
    """The model's tensors under llama.cpp's names, changed as its converter changes them."""
    arch, config = arch_of(model), model.config
    by_name = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_name[arch], config.num_hidden_layers)
    tensors = {}
    for hf_name, value in _split_experts(model.state_dict()).items():
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if hf_name == "lm_head.weight":
            if config.tie_word_embeddings:
                continue
            name = "output.weight"  # unknown to the package for Gemma 2
        assert name is not None, hf_name
        array = value.float().numpy()
        if arch in INTERLEAVED and (".attn_q." in name or ".attn_k." in name):
            pairs = array.reshape(-1, 2, config.head_dim // 2, *array.shape[1:])
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        if arch.startswith("gemma") and "norm" in name:
            array = array + np.float32(1)
        if ".ffn_gate_inp_shexp." in name:
            array = array[0]
        tensors[name] = array
    return tensors | _rope_tensors(config)


def _split_experts(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors by the names that the package knows, with gate and up of experts in two."""
    found = {}
    for name, value in tensors.items():
        prefix, _, kind = name.rpartition(".experts.")
        mlp = prefix.replace(".block_sparse_moe", ".mlp")
        if kind == "gate_up_proj":
            gate, up = value.chunk(2, dim=1)
            found[f"{mlp}.experts.gate_proj.weight"] = gate.contiguous()
            found[f"{mlp}.experts.up_proj.weight"] = up.contiguous()
        elif kind == "down_proj":
            found[f"{mlp}.experts.down_proj.weight"] = value
        else:
            found[name.replace(".block_sparse_moe.router.", ".mlp.gate.")] = value
    return found


def _rope_tensors(config: Any) -> dict[str, np.ndarray]:
    """The divisors of the rotary embeddings' frequencies."""
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32)
            for kind in ("short", "long")
        }
    if rope.get("rope_type") != "llama3":
        return {}
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    divisors = []
    for exponent in np.arange(0, config.head_dim, 2) / config.head_dim:
        turns = rope["original_max_position_embeddings"] / (
            2 * math.pi * rope["rope_theta"] ** exponent
        )
        keep = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1 / ((1 - keep) / factor + keep))
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


def metadata(model: Any) -> dict[str, Any]:
    """The keys of the model's architecture, without the prefix."""
    config = model.config
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    keys |= _expert_metadata(config)
    if hasattr(config, "attention_multiplier"):
        keys["attention.scale"] = config.attention_multiplier
        keys["embedding_scale"] = config.embedding_multiplier
        keys["residual_scale"] = config.residual_multiplier
        keys["logit_scale"] = config.logits_scaling
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if scalar is not None:
        keys["attention.scale"] = scalar**-0.5
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if hasattr(config, name):
            keys[name] = float(getattr(config, name) or 0.0)
    kinds = getattr(config, "layer_types", None)
    if getattr(config, "sliding_window", None) and (kinds is None or "sliding_attention" in kinds):
        keys["attention.sliding_window"] = config.sliding_window
        if kinds is not None:
            keys["attention.sliding_window_pattern"] = [k == "sliding_attention" for k in kinds]
    return keys | _rope_metadata(config)


def _expert_metadata(config: Any) -> dict[str, Any]:
    """What the converter writes of mixtures: not whether weights are normalised."""
    if not hasattr(config, "num_experts_per_tok"):
        return {}
    keys: dict[str, Any] = {
        "expert_count": config.num_local_experts
        if hasattr(config, "num_local_experts")
        else config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }
    if hasattr(config, "moe_intermediate_size"):
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    if hasattr(config, "shared_expert_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    return keys


def _rope_metadata(config: Any) -> dict[str, Any]:
    rope, local = config.rope_parameters, None
    if "full_attention" in rope:
        rope, local = rope["full_attention"], rope["sliding_attention"]
    part = rope.get("partial_rotary_factor", 1.0)
    keys = {
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(config.head_dim * part),
    }
    if local is not None:
        keys["rope.freq_base_swa"] = local["rope_theta"]
    kind, original = rope["rope_type"], rope.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = original
        for name in ("beta_fast", "beta_slow"):
            if name in rope:
                keys[f"rope.scaling.yarn_{name}"] = rope[name]
    if kind == "longrope":
        original = config.original_max_position_embeddings
        growth = config.max_position_embeddings / original
        keys["rope.scaling.original_context_length"] = original
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(growth) / math.log(original))
    return keys


def write_family(
    model: Any,
    path: Path,
    tensors: Mapping[str, np.ndarray] | None = None,
    quants: Mapping[str, GGMLQuantizationType] | None = None,
    tokenizer: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    **keys: Any,
) -> ModelFiles:
    """A GGUF file of `model`. `tensors` replace its own; those in `quants` are already blocks of
    that type. `tokenizer` writes a tokenizer's metadata. `keys` add to or replace metadata of the
    architecture; None removes a key."""
    arch = arch_of(model)
    writer = gguf.GGUFWriter(path, arch)
    tokenizer(writer)
    for key, value in {**metadata(model), **keys}.items():
        if value is not None:
            add_value(writer, f"{arch}.{key}", value)
    for name, array in (converted_tensors(model) if tensors is None else tensors).items():
        writer.add_tensor(name, array, raw_dtype=(quants or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles("small", "gguf", path)


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Write one value in the type that it has in Python."""
    kinds = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    add: Any = kinds.get(type(value), writer.add_array)
    add(key, value)
