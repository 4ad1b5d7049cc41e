"""The keys of config.json that all families have, and how they make a DecoderConfig.

The meaning of a key is what transformers 5 makes of it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from scheduler_proc.models.config import (
    DecoderConfig,
    NotComputed,
    NumLayers,
    Rope,
    convert,
    require,
)
from scheduler_proc.models.families.rope_keys import RopeKeys, read_rope
from srt.files.context import hf_context_len

FULL, SLIDING = "full_attention", "sliding_attention"


class JsonKeys(Struct, kw_only=True):
    """Keys of every family; a family's own Struct adds keys and defaults."""

    hidden_size: int
    num_hidden_layers: NumLayers
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 2048
    original_max_position_embeddings: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    quantization_config: dict[str, Any] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None

    @property
    def head_size(self) -> int:
        """Dimensions of a head: hidden_size / num_attention_heads unless head_dim says it."""
        return self.head_dim or self.hidden_size // max(self.num_attention_heads, 1)


def quantises_weights(config: dict[str, Any] | None) -> bool:
    """Whether a quantization_config says so of weights, and not of the KV cache alone, whose scales
    a file may have (compressed-tensors)."""
    return config is not None and (
        not isinstance(config.get("kv_cache_scheme"), dict) or config.get("config_groups") != {}
    )


def decoder_config(keys: JsonKeys, path: Path, **own: Any) -> DecoderConfig:
    """The configuration that `keys` describe, with the fields that are the family's `own`.

    `path` is the file, for messages. Raises ConfigError naming the key that is not supported.
    """
    require(
        not quantises_weights(keys.quantization_config),
        f"{path}: quantised safetensors are not supported (use GGUF)",
    )
    if "activation" not in own:
        refuse(keys.hidden_act != "silu", "hidden_act", keys.hidden_act, path)
    rope = own.pop("rope", None) or whole_rope(keys, path)
    return DecoderConfig(
        hidden=keys.hidden_size,
        layers=keys.num_hidden_layers,
        heads=keys.num_attention_heads,
        kv_heads=keys.num_key_value_heads or keys.num_attention_heads,
        head_dim=keys.head_size,
        intermediate=keys.intermediate_size,
        vocab_size=keys.vocab_size,
        context_len=hf_context_len(asdict(keys), keys.max_position_embeddings),
        rms_eps=keys.rms_norm_eps,
        rope=rope,
        tie_embeddings=keys.tie_word_embeddings,
        dtype=keys.dtype or keys.torch_dtype,
        **own,
    )


def whole_rope(keys: JsonKeys, path: Path) -> Rope:
    """The rotary embedding of whole heads that all layers of a model have."""
    refuse_part(keys.partial_rotary_factor, path)
    rope = rope_keys(keys, path)
    refuse_part(rope.partial_rotary_factor, path)
    refuse(rope.mrope_section is not None, "mrope_section", rope.mrope_section, path)
    return read_rope(rope, keys.max_position_embeddings, path)


def refuse_part(part: float | None, path: Path) -> None:
    """Raise NotComputed for rotary embeddings of a part of each head."""
    refuse(part not in (None, 1.0), "partial_rotary_factor", part, path)


def refuse_two_ropes(keys: JsonKeys, path: Path) -> None:
    """Raise NotComputed for rope settings by both names: which of them counts is not known."""
    if keys.rope_scaling is not None and keys.rope_parameters is not None:
        raise NotComputed(f"{path}: rope_scaling and rope_parameters are both given")


def rope_keys(keys: JsonKeys, path: Path) -> RopeKeys:
    """The rope settings of all layers, wherever the file has them, with the base that they take."""
    refuse_two_ropes(keys, path)
    rope = convert(keys.rope_parameters or keys.rope_scaling or {}, RopeKeys, path)
    original = keys.original_max_position_embeddings or rope.original_max_position_embeddings
    return replace(
        rope,
        rope_theta=rope.rope_theta or keys.rope_theta or 10000.0,
        original_max_position_embeddings=original,
    )


def same_window(keys: JsonKeys, window: int | None) -> dict[str, Any]:
    """The fields of a model all of whose layers have a window, or none."""
    if not window:
        return {}
    return {"window": window, "windowed": (True,) * keys.num_hidden_layers}


def windows_by_layer(
    layer_types: Sequence[str] | None, default: Sequence[bool], window: int | None, path: Path
) -> dict[str, Any]:
    """The same fields where layers differ: by `layer_types`, else by `default`."""
    for kind in layer_types or ():
        refuse(kind not in (FULL, SLIDING), "layer_types with", kind, path)
    windowed = tuple(default if layer_types is None else (kind == SLIDING for kind in layer_types))
    if not any(windowed):
        return {}
    require(bool(window), f"{path}: layer_types with {SLIDING!r}, but no sliding_window is used")
    return {"window": window, "windowed": windowed}


def refuse(condition: bool, key: str, value: object, path: Path) -> None:
    """Raise NotComputed naming `key` and its value if `condition`."""
    if condition:
        raise NotComputed(f"{path}: {key} {value!r} is not supported")
