"""Configurations as released files of models that see have them: what they say of the text."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scheduler_proc.models.json_config import config_from_json
from srt.files.context import hf_context_len
from srt.files.text_config import DEFAULTS, text_config
from tests.running.late import late

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


LLAVA = {  # most of the text's keys are defaults
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 32000,
    "model_type": "llava",
    "text_config": {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    },
    "torch_dtype": "float16",
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 14, "image_size": 336},
}
GEMMA3 = {  # the vocabulary's size is the default
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "patch_size": 14},
}
QWEN2_5_VL = {  # the text's keys stand beside vision_config
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "eos_token_id": 151645,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {"depth": 32, "hidden_size": 1280, "out_hidden_size": 2048},
    "vocab_size": 151936,
}
QWEN3_VL = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [24, 20, 20],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "vision_config": {"model_type": "qwen3_vl", "depth": 24, "hidden_size": 1024},
}
SMOLVLM = {  # the text names a class that nobody has
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "idefics3",
    "scale_factor": 4,
    "text_config": {
        "architectures": ["VLlama3ForCausalLM"],
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "neftune_noise_alpha": 0.0,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pixel_shuffle_factor": 4,
        "qk_layer_norms": False,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_theta": 100000,
        "torch_dtype": "bfloat16",
        "use_resampler": False,
        "vocab_size": 49280,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 768, "image_size": 512, "patch_size": 16},
    "vocab_size": 49280,
}


@pytest.mark.parametrize("found", [LLAVA, GEMMA3, QWEN2_5_VL, QWEN3_VL, SMOLVLM])
def test_the_text_is_read_as_transformers_reads_it(found: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(found))
    ours = config_from_json(file)
    library: Any = transformers
    whole = library.AutoConfig.from_pretrained(tmp_path)
    theirs = whole.get_text_config()
    names = {
        "hidden": "hidden_size",
        "intermediate": "intermediate_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "vocab_size": "vocab_size",
        "rms_eps": "rms_norm_eps",
    }
    assert {n: getattr(ours, n) for n in names} == {n: getattr(theirs, m) for n, m in names.items()}
    assert ours.tie_embeddings == whole.tie_word_embeddings
    width = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == width
    sections = theirs.rope_parameters.get("mrope_section")
    assert sections is None or list(ours.rope.sections) == sections
    length = theirs.max_position_embeddings
    assert ours.context_len == length == hf_context_len(text_config(found), length)
    ropes = {name: theirs.rope_parameters.get(name) for name in ("rope_theta", "full_attention")}
    theta = ropes["rope_theta"] or ropes["full_attention"]["rope_theta"]
    assert ours.rope.theta == theta
    dtype = whole.dtype or theirs.dtype
    assert ours.dtype == (None if dtype is None else str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    library: Any = transformers
    theirs = library.AutoConfig.for_model(kind)
    assert DEFAULTS[kind] == {name: getattr(theirs, name) for name in DEFAULTS[kind]}


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "llava"])
def test_texts_of_which_nothing_is_said(kind: str, tmp_path: Path) -> None:
    found = {"model_type": kind, "text_config": {}, "vision_config": {}}
    test_the_text_is_read_as_transformers_reads_it(found, tmp_path)
