"""Small random Llama checkpoints made by transformers, and the same weights as a GGUF file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from srt.files.model_files import ModelFiles
from tests.running.late import late

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")


SMALL = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def random_llama(**overrides: Any) -> Any:
    """A transformers LlamaForCausalLM; weights, biases and norms are random, none neutral."""
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **overrides}))
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.2)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def save_directory(model: Any, path: Path, **options: Any) -> ModelFiles:
    model.save_pretrained(path, **options)
    return ModelFiles("small", "hf", path)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_tensors(model: Any) -> dict[str, np.ndarray]:
    """The model's tensors under llama.cpp's names, q/k rows in its interleaved order."""
    tensors = {}
    for hf_name, value in model.state_dict().items():
        name = hf_name
        for hf_part, part in _GGUF_NAMES.items():
            name = name.replace(hf_part, part)
        array = value.numpy()
        if ".attn_q." in name or ".attn_k." in name:
            pairs = array.reshape(-1, 2, model.config.head_dim // 2, *array.shape[1:])
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        tensors[name] = array
    if model.config.tie_word_embeddings:
        del tensors["output.weight"]
    return tensors


def write_gguf(
    model: Any,
    path: Path,
    tensors: dict[str, np.ndarray] | None = None,
    quants: dict[str, gguf.GGMLQuantizationType] | None = None,
    **keys: Any,
) -> ModelFiles:
    """A GGUF file of `model`.

    `tensors` replace its own; those in `quants` are already blocks of that type. `keys` add to or
    replace the llama.* metadata: integers, or lists of them.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }
    for key, value in {**sizes, **keys}.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, array in (gguf_tensors(model) if tensors is None else tensors).items():
        writer.add_tensor(name, array, raw_dtype=(quants or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles("small", "gguf", path)
