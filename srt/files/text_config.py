"""The part of config.json that is about text, of models that see, and what stands for it of GGUF
files whose tokenizer is another.

The tokenizer process and the scheduler must agree on it.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from srt.files.context import gguf_context_len
from srt.files.gguf import open_gguf
from srt.files.sampling_defaults import ModelSampling, read_sampling
from srt.wire.errors import ConfigError

# What belongs to the model as a whole wherever it stands.
_OF_THE_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "bos_token_id")
_TIE = "tie_word_embeddings"  # if either of the two places says so
# The kind of the text by that of the whole, where the text does not say it.
_TEXTS = {
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "idefics3": "llama",
    "smolvlm": "llama",
    "gemma3": "gemma3_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
}
# Files leave out of the text what is the default of its class in transformers.
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "max_position_embeddings"),
)
DEFAULTS: dict[str, dict[str, int]] = {
    kind: dict(zip(_SIZES, sizes, strict=True))
    for kind, sizes in {
        "llama": (32_000, 4096, 11_008, 32, 32, 2048),
        "mistral": (32_000, 4096, 14_336, 32, 32, 131_072),
        "qwen2": (151_936, 4096, 22_016, 32, 32, 32_768),
        "qwen3": (151_936, 4096, 22_016, 32, 32, 32_768),
        "gemma3_text": (262_208, 2304, 9216, 26, 8, 131_072),
        "qwen2_5_vl_text": (152_064, 8192, 29_568, 80, 64, 32_768),
        "qwen3_vl_text": (151_936, 4096, 22_016, 32, 32, 128_000),
    }.items()
}


def sees(config: Mapping[str, Any]) -> bool:
    """Whether config.json is of a model with a vision tower."""
    return isinstance(config.get("vision_config"), dict)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says of the text: the keys that a model of text alone would have, if this
    one sees; otherwise all of it."""
    if not sees(config):
        return config
    kind = config.get("model_type")
    kind = _TEXTS.get(kind, kind) if isinstance(kind, str) else None
    text = config.get("text_config")
    if not isinstance(text, dict):  # older files have the text's keys beside vision_config
        text = {k: v for k, v in config.items() if k not in ("vision_config", "model_type")}
    text = {k: v for k, v in text.items() if k != "architectures"}
    kind = text.setdefault("model_type", kind)
    whole = {k: config[k] for k in _OF_THE_WHOLE if config.get(k) is not None}
    defaults = DEFAULTS.get(kind, {}) if isinstance(kind, str) else {}
    ties = [found[_TIE] for found in (text, config) if found.get(_TIE) is not None]
    return defaults | text | whole | ({_TIE: any(ties)} if ties else {})


class GGUFText(NamedTuple):
    """What a config.json would say of the text of a GGUF model (the sizes that a tokenizer from
    elsewhere must suit, and the tokens that begin and end a text), and how it is sampled."""

    config: Mapping[str, Any]
    sampling: ModelSampling


@lru_cache(maxsize=1)
def gguf_text(path: Path) -> GGUFText:
    """Of the model at `path`. It is kept for a child whose limit on memory leaves no addresses to
    map a model to. Raises ConfigError."""
    file = open_gguf(path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: token_embd.weight is missing")
    names = ("bos", "eos", "eot", "eom")
    ids = {name: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names}
    config = {
        "model_type": file.metadata.get("general.architecture"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": gguf_context_len(file),
        "bos_token_id": ids["bos"],
        "eos_token_id": [ids[name] for name in names[1:] if ids[name] is not None],
    }
    return GGUFText(config, read_sampling(path, file.metadata, "gguf"))
