"""config.json of every family as in files on the hub, and what is refused by name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.models.config import (
    DecoderConfig,
    Experts,
    LinearRope,
    LongRope,
    NotComputed,
    Rope,
    RouterRule,
    YarnRope,
)
from scheduler_proc.models.json_config import config_from_json
from scheduler_proc.models.rope import rope_frequencies
from srt.files.context import hf_context_len
from srt.wire.errors import ConfigError
from tests.running.late import late

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


# What transformers 4 wrote for released models, with fewer layers and without the keys that matter
# only for training and for the tokenizer.
HUB: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    "vicuna-7b-v1.5-16k": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 4.0, "type": "linear"},
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 32000,
    },
    "Mistral-Nemo": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 131072,
    },
    "Qwen2.5-7B with YaRN": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "type": "yarn",
        },
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "Qwen2 with windows": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 1,
        "num_attention_heads": 14,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "sliding_window": 1024,
        "use_sliding_window": True,
        "vocab_size": 151936,
    },
    "Qwen3-8B without head_dim": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Phi-3.5-mini": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "pad_token_id": 32000,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "long_factor": [1.08 + i for i in range(48)],
            "short_factor": [1.0 + i / 48 for i in range(48)],
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "Phi-4-mini": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096,
        "pad_token_id": 199999,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {
            "long_factor": [1.0 + i for i in range(48)],
            "short_factor": [1.0] * 48,
            "type": "longrope",
        },
        "rope_theta": 10000.0,
        "sliding_window": 262144,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_hidden_layers": 5,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "vocab_size": 256000,
    },
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 7,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "granite-3.0-2b-instruct": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "logits_scaling": 8.0,
        "max_position_embeddings": 4096,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
    "Mixtral-8x7B-v0.1": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.02,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 32000,
    },
    "Qwen1.5-MoE-A2.7B": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 8192,
        "max_window_layers": 21,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 16,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "OLMoE-1B-7B-0924": {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "attention_bias": False,
        "clip_qkv": None,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "max_position_embeddings": 4096,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 16,
        "output_router_logits": False,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.01,
        "tie_word_embeddings": False,
        "vocab_size": 50304,
    },
    "granite-3.0-1b-a400m-base": {
        "architectures": ["GraniteMoeForCausalLM"],
        "model_type": "granitemoe",
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 512,
        "logits_scaling": 6.0,
        "max_position_embeddings": 4096,
        "num_attention_heads": 16,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "output_router_logits": False,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000,
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": True,
        "vocab_size": 49155,
    },
}

LLAMA3: dict[str, Any] = {
    "type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def read(path: Path, content: dict[str, Any]) -> DecoderConfig:
    file = path / "config.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return config_from_json(file)


@pytest.mark.parametrize("name", HUB)
def test_both_versions_of_a_file_read_the_same(tmp_path: Path, name: str) -> None:
    """A file of transformers 4 and what version 5 makes of it read the same, with all defaults."""
    old = read(tmp_path, HUB[name])
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.save_pretrained(tmp_path / "new")
    saved = json.loads((tmp_path / "new/config.json").read_text(encoding="utf-8"))
    assert config_from_json(tmp_path / "new" / "config.json") == old
    for content in (HUB[name], saved):
        positions = content["max_position_embeddings"]
        assert hf_context_len(content, positions) == old.context_len
    del saved["architectures"]
    assert read(tmp_path, saved) == old


def test_what_families_differ_in(tmp_path: Path) -> None:
    def of(name: str) -> DecoderConfig:
        return read(tmp_path, HUB[name])

    assert of("vicuna-7b-v1.5-16k").rope == Rope(10000.0, scaling=LinearRope(4.0))
    assert (of("Mistral-7B-v0.1").layer_window(2), of("Mistral-Nemo").layer_window(2)) == (
        4096,
        None,
    )
    assert (of("Mistral-Nemo").head_dim, of("Mistral-Nemo").q_size) == (128, 4096)
    assert of("Qwen2 with windows").windowed == (False, True, True)
    assert (of("Qwen2 with windows").qkv_bias, of("Qwen2 with windows").o_bias) == (True, False)
    qwen3 = of("Qwen3-8B without head_dim")
    assert (qwen3.head_dim, qwen3.head_norms, qwen3.qkv_bias) == (128, True, False)
    gemma2 = of("gemma-2-2b")
    assert gemma2.windowed == (True, False, True, False, True)
    assert gemma2.tie_embeddings and gemma2.embed_scale == 48.0
    assert (gemma2.attn_scale, gemma2.attn_softcap, gemma2.logit_softcap) == (1 / 16, 50.0, 30.0)
    gemma3 = of("gemma-3-1b")
    assert gemma3.windowed == (True,) * 5 + (False, True)
    assert gemma3.layer_rope(0) == Rope(1e4)
    assert gemma3.layer_rope(5) == Rope(1e6, scaling=LinearRope(8.0))
    phi4 = of("Phi-4-mini")
    assert (phi4.rope.dims, phi4.head_dim, phi4.layer_window(0)) == (96, 128, None)


def test_mixtures_of_released_models(tmp_path: Path) -> None:
    def of(name: str) -> Experts:
        experts = read(tmp_path, HUB[name]).experts
        assert experts is not None
        return experts

    assert of("Mixtral-8x7B-v0.1") == Experts(8, 2, 14336, layout="mixtral")
    unnormalised = RouterRule(normalised=False)
    shared = Experts(60, 4, 1408, unnormalised, shared_width=5632, shared_gate=True)
    assert of("Qwen1.5-MoE-A2.7B") == shared
    assert of("Qwen3-30B-A3B") == Experts(128, 8, 768)
    assert of("OLMoE-1B-7B-0924") == Experts(64, 8, 1024, unnormalised)
    olmoe = read(tmp_path, HUB["OLMoE-1B-7B-0924"])
    assert (olmoe.whole_qk_norms, olmoe.head_norms, olmoe.qk_norm_sizes) == (
        True,
        False,
        (2048,) * 2,
    )
    chosen_first = RouterRule(chosen_by="logits", normalised=False)
    assert of("granite-3.0-1b-a400m-base") == Experts(32, 8, 512, chosen_first, layout="granite")
    granite = read(tmp_path, HUB["granite-3.0-1b-a400m-base"])
    assert (granite.embed_scale, granite.residual_scale) == (12.0, 0.22)
    assert (granite.attn_scale, granite.logit_scale) == (1 / 64, 1 / 6)


def test_layers_that_have_an_mlp(tmp_path: Path) -> None:
    """By the step, by their numbers, and by both."""
    for keys, mixtures in (
        ({"decoder_sparse_step": 2}, (1, 3)),
        ({"mlp_only_layers": [0, 3]}, (1, 2)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (3,)),
        ({}, (0, 1, 2, 3)),
    ):
        config = read(tmp_path, HUB["Qwen3-30B-A3B"] | keys)
        assert tuple(i for i in range(4) if config.is_mixture(i)) == mixtures
        assert config.intermediate == 6144


def test_defaults_of_mixtures(tmp_path: Path) -> None:
    """A file may leave out what its class in transformers has."""
    names = ("num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob")
    for name in ("Mixtral-8x7B-v0.1", "Qwen1.5-MoE-A2.7B", "Qwen3-30B-A3B", "OLMoE-1B-7B-0924"):
        content = {key: value for key, value in HUB[name].items() if key not in names}
        found = read(tmp_path, content).experts
        theirs = transformers.AutoConfig.from_pretrained(tmp_path)
        count = getattr(theirs, "num_local_experts", None) or theirs.num_experts
        assert found is not None
        assert (found.count, found.used) == (count, theirs.num_experts_per_tok)
        normalised = getattr(theirs, "norm_topk_prob", True)
        assert found.rule.normalised == normalised


def test_mistral_with_windows_in_some_layers(tmp_path: Path) -> None:
    """Like Ministral 8B's file, which names Mistral's class; transformers reads it the same way."""
    types = ["full_attention", *["sliding_attention"] * 3]
    config = read(tmp_path, HUB["Mistral-7B-v0.1"] | {"layer_types": types})
    assert config.windowed == (False, True, True, True)
    theirs: Any = transformers.AutoConfig.from_pretrained(tmp_path)
    assert theirs.layer_types == types
    theirs.save_pretrained(tmp_path / "new")
    assert config_from_json(tmp_path / "new" / "config.json") == config
    assert read(tmp_path, HUB["Mistral-Nemo"]).windowed == ()


def test_qwen_s_default_of_key_value_heads(tmp_path: Path) -> None:
    content = dict(HUB["Qwen3-8B without head_dim"])
    del content["num_key_value_heads"]
    assert read(tmp_path, content).kv_heads == 32
    assert transformers.AutoConfig.from_pretrained(tmp_path).num_key_value_heads == 32


def test_context_lengths_of_scaled_ropes(tmp_path: Path) -> None:
    yarn = read(tmp_path, HUB["Qwen2.5-7B with YaRN"])
    assert yarn.rope.scaling == YarnRope(4.0, 32768)
    assert yarn.rope.amplitude == pytest.approx(1.1386294)
    assert yarn.context_len == 131072
    long = read(tmp_path, HUB["Phi-3.5-mini"])
    assert long.rope.scaling == LongRope(tuple(1.0 + i / 48 for i in range(48)))
    assert long.rope.amplitude == pytest.approx(1.1902381)
    assert long.context_len == 4096
    assert read(tmp_path, HUB["vicuna-7b-v1.5-16k"]).context_len == 4096


@pytest.mark.parametrize("scaling", [{"type": "yarn", "factor": 4.0}, LLAMA3])
@pytest.mark.parametrize("inside", [{}, {"original_max_position_embeddings": 2048}])
def test_an_original_length_outside_of_the_rope_setting(
    tmp_path: Path, scaling: dict[str, Any], inside: dict[str, Any]
) -> None:
    """It takes precedence over the one inside, as in transformers."""
    content = HUB["Llama-3.1-8B"] | {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 1024,
        "rope_scaling": scaling | inside,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 16,
        "intermediate_size": 16,
    }
    ours = read(tmp_path, content)
    theirs: Any = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(tmp_path)
    )
    frequencies = rope_frequencies(ours.rope, ours.head_dim)
    np.testing.assert_allclose(frequencies, theirs.model.rotary_emb.inv_freq, rtol=1e-6)
    assert ours.context_len == 4096


def test_more_positions_than_can_be_counted() -> None:
    rope = {"rope_type": "yarn", "factor": 1e9}
    for keys, positions in (({}, 2**31), ({"rope_scaling": rope}, 4096)):
        with pytest.raises(ConfigError, match=r"config.json: .* positions: at most 2147483647"):
            hf_context_len(keys, positions)
    assert hf_context_len({}, 2**31 - 1) == 2**31 - 1


def test_an_original_length_of_longrope_outside_and_inside() -> None:
    rope = {"type": "longrope", "long_factor": [1.0], "original_max_position_embeddings": 8192}
    keys: dict[str, Any] = {"rope_scaling": rope, "original_max_position_embeddings": 2048}
    assert hf_context_len(keys, 131072) == 2048
    assert hf_context_len({"rope_scaling": rope}, 131072) == 8192
    del rope["original_max_position_embeddings"]
    assert hf_context_len({"rope_scaling": rope}, 131072) == 4096


def change(name: str, **keys: Any) -> dict[str, Any]:
    return {**HUB[name], **keys}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (change("Llama-3.1-8B", partial_rotary_factor=0.5), r"partial_rotary_factor 0\.5"),
    (change("Llama-3.1-8B", rope_parameters={}), "rope_scaling and rope_parameters are both"),
    (change("Llama-3.1-8B", rope_scaling={"type": "linear"}), "linear rope scaling needs factor"),
    (
        change("Llama-3.1-8B", rope_scaling={"type": "default", "mrope_section": [1]}),
        "mrope_section",
    ),
    (
        change("Llama-3.1-8B", rope_scaling={"type": "longrope", "factor": 2.0}),
        "rope scaling 'longrope'",
    ),
    (
        change("Qwen2.5-7B with YaRN", rope_scaling={"type": "yarn", "factor": 0.5}),
        "yarn rope scaling needs factor >= 1",
    ),
    (
        change("Qwen2.5-7B with YaRN", rope_scaling={"type": "yarn", "factor": 2, "beta_slow": 64}),
        "0 < beta_slow <= beta_fast",
    ),
    (change("Qwen2 with windows", use_mrope=True), "use_mrope True"),
    (
        change("Qwen2 with windows", layer_types=["full_attention"] * 2 + ["chunked_attention"]),
        "layer_types with 'chunked_attention'",
    ),
    (
        change("Qwen2 with windows", layer_types=["sliding_attention"]),
        "1 layers have a kind of attention, the model has 3",
    ),
    (
        change(
            "Qwen2 with windows", use_sliding_window=False, layer_types=["sliding_attention"] * 3
        ),
        "no sliding_window is used",
    ),
    (change("Phi-3.5-mini", attention_bias=True), "attention_bias True"),
    (
        change("Phi-3.5-mini", rope_scaling={"type": "linear", "factor": 2.0}),
        "rope scaling 'linear'",
    ),
    (change("Phi-3.5-mini", rope_scaling={"type": "su"}), "needs short_factor and long_factor"),
    (change("Phi-3.5-mini", head_dim=64), "48 rope factors for 32 pairs"),
    (change("Phi-3.5-mini", partial_rotary_factor=0.01), "rope over 0 of 96 dimensions"),
    (change("Mixtral-8x7B-v0.1", num_experts_per_tok=9), "a token uses 9 of 8 experts"),
    (change("Mixtral-8x7B-v0.1", num_experts_per_tok=0), "a token uses 0 of 8 experts"),
    (change("Mixtral-8x7B-v0.1", num_local_experts=0), "0 experts: 1 to 16384 are possible"),
    (change("Mixtral-8x7B-v0.1", num_experts=7), "num_experts 7 and num_local_experts 8"),
    (
        change("Mixtral-8x7B-v0.1", scoring_func="sigmoid"),
        "scoring_func 'sigmoid' is not supported",
    ),
    (change("Qwen3-30B-A3B", n_group=4), "n_group 4 is not supported"),
    (change("Qwen3-30B-A3B", routed_scaling_factor=2.5), r"routed_scaling_factor 2\.5"),
    (change("Qwen3-30B-A3B", decoder_sparse_step=0), "decoder_sparse_step 0"),
    (change("Qwen3-30B-A3B", moe_intermediate_size=0), "an expert's width is 0"),
    (change("OLMoE-1B-7B-0924", clip_qkv=8.0), r"clip_qkv 8\.0 is not supported"),
    (
        change("granite-3.0-1b-a400m-base", logits_scaling=-1),
        r"logits_scaling -1\.0 is not above 0",
    ),
    (change("gemma-2-2b", hidden_activation="gelu"), "hidden_activation 'gelu'"),
    (change("gemma-2-2b", use_bidirectional_attention=True), "use_bidirectional_attention"),
    (change("gemma-2-2b", query_pre_attn_scalar=0), "query_pre_attn_scalar 0"),
    (change("gemma-3-1b", attn_logit_softcapping=50.0), "attn_logit_softcapping"),
    (change("gemma-3-1b", sliding_window_pattern=0), "sliding_window_pattern must be positive"),
    (
        change("gemma-3-1b", rope_scaling={"rope_type": "yarn", "factor": 8.0}),
        "rope scaling 'yarn'",
    ),
    (
        change("gemma-3-1b", rope_scaling=None, rope_parameters={"rope_type": "default"}),
        "unknown field `rope_type`",
    ),
    (
        change("gemma-3-1b", architectures=["Gemma3ForConditionalGeneration"]),
        "Gemma3ForConditionalGeneration.*not supported",
    ),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_what_would_be_another_model_is_refused(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, content)


def test_context_of_a_malformed_rope() -> None:
    with pytest.raises(ConfigError, match="factor"):
        hf_context_len({"rope_scaling": {"type": "yarn", "factor": "big"}}, 100)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "finetuned": True}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {}},
    ],
)
def test_a_rope_setting_that_says_more_may_be_tried_with_transformers(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    with pytest.raises(NotComputed):
        read(tmp_path, change("Llama-3.1-8B", **keys))
