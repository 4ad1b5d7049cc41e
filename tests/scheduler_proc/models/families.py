"""Small random checkpoints of every family, made by transformers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.running.late import late

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")


SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FULL, SLIDING = "full_attention", "sliding_attention"

LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
# For 8 pairs; the original length is above that of every prompt of the tests.
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 2.5, 3.0, 4.0],
    "long_factor": [1.0, 2.0, 4.0, 6.0, 9.0, 12.0, 20.0, 40.0],
}
LONG_CONTEXT: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "original_max_position_embeddings": 256,
}

# The tested models of each family: transformers' model type, and what differs from SIZES.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama, linear rope": ("llama", {"rope_parameters": LINEAR, "attention_bias": True}),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "mistral, window": ("mistral", {"sliding_window": 24}),
    "mistral, some windows": (
        "ministral",
        {"sliding_window": 24, "layer_types": [SLIDING, FULL, SLIDING]},
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 17, "max_window_layers": 1},
    ),
    "qwen2, yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3, windows": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": [SLIDING, FULL, SLIDING],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3, yarn": (
        "qwen3",
        {"rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}},
    ),
    "phi3": ("phi3", {"sliding_window": 30}),
    "phi3, longrope": ("phi3", {**LONG_CONTEXT, "rope_parameters": LONGROPE}),
    "phi3, partial": (
        "phi3",
        {
            **LONG_CONTEXT,
            "hidden_size": 128,
            "head_dim": 32,
            "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": True,
        },
    ),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 21,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 6.0,
        },
    ),
    "gemma2, no caps": (
        "gemma2",
        {
            "sliding_window": 4096,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 13, "query_pre_attn_scalar": 20, "num_hidden_layers": 7},
    ),
    "gemma3, linear rope": (
        "gemma3_text",
        {
            "sliding_window": 40,
            "layer_types": [SLIDING, FULL, SLIDING],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}
SPARSE: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
FAMILIES |= {
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral, window": ("mixtral", {"sliding_window": 24, "head_dim": 32}),
    "qwen2_moe": ("qwen2_moe", {**SPARSE, "shared_expert_intermediate_size": 64}),
    "qwen2_moe, some dense": (
        "qwen2_moe",
        {
            **SPARSE,
            "shared_expert_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 17,
            "max_window_layers": 2,
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {**SPARSE, "norm_topk_prob": True, "head_dim": 32, "num_experts": 16},
    ),
    "qwen3_moe, some dense": (
        "qwen3_moe",
        {**SPARSE, "mlp_only_layers": [1], "attention_bias": True, "tie_word_embeddings": True},
    ),
    "olmoe": ("olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "olmoe, normalised": (
        "olmoe",
        {"num_experts": 8, "num_experts_per_tok": 8, "norm_topk_prob": True},
    ),
    "granite": ("granite", {**GRANITE, "mlp_bias": True}),
    "granitemoe": (
        "granitemoe",
        {**GRANITE, "num_local_experts": 7, "num_experts_per_tok": 4, "tie_word_embeddings": True},
    ),
}
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe")
ON_NATIVE = [name for name in FAMILIES if not name.startswith("gemma") and name != "phi3, partial"]


ROUTERS = ("mlp.gate.weight", "router.weight")


def random_family(name: str, **overrides: Any) -> Any:
    """The transformers model of FAMILIES[name]; weights, biases and norms are random."""
    model_type, changes = FAMILIES[name]
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **changes, **overrides})
    torch.manual_seed(0)
    make_model: Any = transformers.AutoModelForCausalLM.from_config
    model = make_model(config)
    model.eval()
    center = 0.0 if model_type.startswith("gemma") else 1.0
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(std=0.2)
            elif "norm" in parameter_name:
                parameter.uniform_(center - 0.5, center + 0.5)
            elif parameter_name.endswith(ROUTERS):
                parameter.normal_(std=0.6)  # so that scores differ (`router_gap`)
            elif parameter_name.endswith("shared_expert_gate.weight"):
                parameter.normal_(std=0.2)
    return model


def router_gap(model: Any, sequences: Sequence[np.ndarray]) -> float:
    """How far apart the logits of the last expert that is used and of the first that is not are, at
    least, for all tokens of `sequences` in all layers: where rounding decides, implementations
    choose different experts. Infinity without mixtures."""
    config, gaps = model.config, [torch.tensor(torch.inf)]
    used = getattr(config, "num_experts_per_tok", 0)

    def look(module: Any, inputs: Any, outputs: Any) -> None:
        logits = outputs[0].sort(-1, descending=True).values
        if used < logits.shape[-1]:
            gaps.append((logits[:, used - 1] - logits[:, used]).min())

    routers = [m for name, m in model.named_modules() if f"{name}.weight".endswith(ROUTERS)]
    hooks = [router.register_forward_hook(look) for router in routers]
    with torch.inference_mode():
        for ids in sequences:
            model(torch.from_numpy(ids)[None])
    for hook in hooks:
        hook.remove()
    assert bool(routers) == (used > 0)
    return min(gap.item() for gap in gaps)
