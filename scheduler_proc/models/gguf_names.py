"""llama.cpp's names of tensors, and those that Hugging Face has for them.

Used by the checkpoint reader. Source: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py.
"""

import re

# Tensors of the rotary embedding, which have no Hugging Face name: what to divide the frequencies
# by, in LongRoPE up to the original context length and beyond it.
ROPE_DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight")
ROPE_BEYOND = "rope_factors_long.weight"

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# All experts of a layer are in one tensor each. The names are ours: files of Hugging Face's have
# other layouts (config.ExpertsLayout).
_EXPERTS = _LAYER | {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_GEMMA = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYERS = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    **dict.fromkeys(("llama", "qwen2moe", "qwen3moe", "olmoe", "granite", "granitemoe"), _EXPERTS),
    "phi3": _LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hf_name(arch: str, gguf_name: str) -> str:
    """The Hugging Face name of a tensor in a file of `arch`; its own if it has no other."""
    match = _LAYER_NAME.fullmatch(gguf_name)
    layer = _LAYERS.get(arch, _LAYER)
    if match is None or match[2] not in layer:
        return _TOP.get(gguf_name, gguf_name)
    return f"model.layers.{match[1]}.{layer[match[2]]}.{match[3]}"
