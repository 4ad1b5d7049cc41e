"""Tiny random models of many families, made by transformers, as model directories."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from srt.files.model_files import ModelFiles
from tests.running.late import late

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")


VOCAB, CONTEXT_LEN, WINDOW = 131, 256, 20

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LEN,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": CONTEXT_LEN}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
_DEEPSEEK = {
    **{"num_key_value_heads": 6, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12},
    **{"kv_lora_rank": 16, "q_lora_rank": None, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
}

# Model types that run, and what sets them apart from Llama.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {**_GPT, "vocab_size": VOCAB},  # learned positions, tied
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 48},  # positions from 2 on, scaled queries
    "gpt_bigcode": {**_GPT, "vocab_size": VOCAB},  # one head of keys
    "gpt_neox": {},  # partly rotated heads, attention beside the MLP
    "phi": {},  # the same, with biases
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {"sliding_window": WINDOW},
    "cohere": {"logit_scale": 0.3},
    "cohere2": {"sliding_window": WINDOW, "sliding_window_pattern": 2},  # the rest has no positions
    "granite": {
        **{"attention_multiplier": 0.2, "embedding_multiplier": 3.0},
        **{"residual_multiplier": 0.7, "logits_scaling": 2.0},
    },
    "olmo2": {},  # norms of whole q and k
    "glm4": {"head_dim": 8},
    "nemotron": {},
    "smollm3": {"no_rope_layer_interval": 2},  # a layer without positions
    "gemma2": {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},  # soft caps
    "diffllama": {},  # attends twice in a layer
    "gemma4_text": {  # layers that share keys, two sizes of heads, inputs of every layer
        **{"head_dim": 8, "global_head_dim": 16, "sliding_window": WINDOW},
        **{"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
        **{"num_kv_shared_layers": 1, "hidden_size_per_layer_input": 8},
        **{"vocab_size_per_layer_input": VOCAB, "num_global_key_value_heads": 1},
    },
    "mixtral": _MOE,
    "gpt_oss": {  # sinks
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
        **{"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
        **{"num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "qwen2_moe": {**_MOE, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    "deepseek_v2": _DEEPSEEK,  # values shorter than keys
    "deepseek_v3": {**_DEEPSEEK, "q_lora_rank": 16},
}


def random_model(model_type: str, **overrides: Any) -> Any:
    """A causal model of that type, with its own attention; no weight, bias or norm is neutral."""
    torch.manual_seed(0)
    sizes = {**_SIZES, **FAMILIES.get(model_type, {}), **overrides}
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.15)
    return model


def save(model: Any, path: Path) -> ModelFiles:
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(path)
    return ModelFiles("tiny", "hf", path)
