"""The shape of a Llama-family model, read from GGUF metadata or from a config.json.

Called by the loader and by executors. What this project cannot compute exactly (other
architectures, other rope scalings, sliding windows, quantised checkpoints) is a ConfigError here,
never a silently different model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from srt.errors import ConfigError
from srt.model.files import ModelFiles
from srt.model.gguf_file import GGUFFile

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
_MODEL_TYPES = ("llama", "mistral")

_T = TypeVar("_T")


class Llama3Rope(Struct, frozen=True):
    """Llama 3.1's rope scaling: long wavelengths are stretched by `factor`, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


class LlamaConfig(Struct, frozen=True):
    """Sizes and constants of the model. `dtype` is the checkpoint's own, None if unknown."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_len: int
    rms_eps: float
    rope_theta: float = 10000.0
    rope_scaling: Llama3Rope | None = None
    tie_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate"):
            _require(getattr(self, name) > 0, f"{name} must be positive")
        _require(self.vocab_size > 0 and self.context_len > 0, "vocabulary and context are empty")
        _require(
            self.heads % self.kv_heads == 0,
            f"{self.heads} attention heads cannot share {self.kv_heads} key-value heads evenly",
        )
        _require(self.head_dim % 2 == 0, f"head dimension {self.head_dim} is odd: rope needs pairs")

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def load_config(files: ModelFiles) -> LlamaConfig:
    """The configuration of the model at `files`. Raises ConfigError if it is not supported."""
    if files.kind == "gguf":
        return config_from_gguf(GGUFFile(files.path))
    return config_from_json(files.path / "config.json")


class _GGUFKeys(Struct):
    """The `llama.*` metadata that matters, without the prefix."""

    layers: int = field(name="block_count")
    context_len: int = field(name="context_length")
    hidden: int = field(name="embedding_length")
    intermediate: int = field(name="feed_forward_length")
    heads: int = field(name="attention.head_count")
    rms_eps: float = field(name="attention.layer_norm_rms_epsilon")
    kv_heads: int | None = field(name="attention.head_count_kv", default=None)
    key_len: int | None = field(name="attention.key_length", default=None)
    value_len: int | None = field(name="attention.value_length", default=None)
    sliding_window: int | None = field(name="attention.sliding_window", default=None)
    rope_theta: float = field(name="rope.freq_base", default=10000.0)
    rope_dims: int | None = field(name="rope.dimension_count", default=None)
    rope_scaling: str = field(name="rope.scaling.type", default="none")
    scale_linear: float = field(name="rope.scale_linear", default=1.0)
    experts: int = field(name="expert_count", default=0)
    logit_scale: float | None = field(name="logit_scale", default=None)


def config_from_gguf(file: GGUFFile) -> LlamaConfig:
    """Read a GGUF file's metadata; ties and biases show in which tensors it has."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ConfigError(
            f"{file.path}: GGUF architecture {architecture!r} is not supported ('llama' is)"
        )
    prefix = "llama."
    found = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    keys = _convert(found, _GGUFKeys, file.path)
    head_dim = keys.key_len or keys.hidden // max(keys.heads, 1)
    _check_gguf(keys, head_dim, file.path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor token_embd.weight is missing")
    return LlamaConfig(
        hidden=keys.hidden,
        layers=keys.layers,
        heads=keys.heads,
        kv_heads=keys.kv_heads or keys.heads,
        head_dim=head_dim,
        intermediate=keys.intermediate,
        vocab_size=embedding.shape[0],
        context_len=keys.context_len,
        rms_eps=keys.rms_eps,
        rope_theta=keys.rope_theta,
        tie_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def _check_gguf(keys: _GGUFKeys, head_dim: int, path: Path) -> None:
    _require(keys.experts == 0, f"{path}: mixture-of-experts models are not supported")
    _require(keys.logit_scale is None, f"{path}: logit_scale is not supported")
    _require(
        keys.rope_scaling == "none" and keys.scale_linear in (0.0, 1.0),
        f"{path}: rope scaling {keys.rope_scaling!r} is not supported ('none' and 'llama3' are)",
    )
    _require(
        keys.rope_dims in (None, head_dim) and keys.value_len in (None, head_dim),
        f"{path}: rope and values must span the whole head dimension ({head_dim})",
    )
    _check_window(keys.sliding_window, keys.context_len, path)


class _RopeKeys(Struct):
    """config.json's rope settings: `rope_parameters` (transformers 5) or `rope_scaling`."""

    rope_type: str | None = None
    legacy_type: str | None = field(name="type", default=None)
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0


class _JsonKeys(Struct):
    """The keys of config.json that matter."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 2048
    architectures: list[str] | None = None
    model_type: str = ""
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: _RopeKeys | None = None
    rope_parameters: _RopeKeys | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    quantization_config: dict[str, Any] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


def config_from_json(path: Path) -> LlamaConfig:
    """Read a Hugging Face config.json, as transformers 4 or 5 writes it."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error})") from error
    _check_architecture(found, path)
    keys = _convert(found, _JsonKeys, path)
    _require(keys.hidden_act == "silu", f"{path}: hidden_act {keys.hidden_act!r} is not supported")
    _require(
        keys.quantization_config is None,
        f"{path}: quantised safetensors are not supported (use GGUF)",
    )
    _check_window(keys.sliding_window, keys.max_position_embeddings, path)
    rope = keys.rope_parameters or keys.rope_scaling or _RopeKeys()
    return LlamaConfig(
        hidden=keys.hidden_size,
        layers=keys.num_hidden_layers,
        heads=keys.num_attention_heads,
        kv_heads=keys.num_key_value_heads or keys.num_attention_heads,
        head_dim=keys.head_dim or keys.hidden_size // max(keys.num_attention_heads, 1),
        intermediate=keys.intermediate_size,
        vocab_size=keys.vocab_size,
        context_len=keys.max_position_embeddings,
        rms_eps=keys.rms_norm_eps,
        rope_theta=rope.rope_theta or keys.rope_theta or 10000.0,
        rope_scaling=_rope_scaling(rope, keys.max_position_embeddings, path),
        tie_embeddings=keys.tie_word_embeddings,
        attention_bias=keys.attention_bias,
        mlp_bias=keys.mlp_bias,
        dtype=keys.dtype or keys.torch_dtype,
    )


def _check_architecture(found: Mapping[str, Any], path: Path) -> None:
    architectures = found.get("architectures") or []
    model_type = found.get("model_type")
    known = any(a in _ARCHITECTURES for a in architectures)
    if not known and (architectures or model_type not in _MODEL_TYPES):
        raise ConfigError(
            f"{path}: architecture {architectures or model_type!r} is not supported "
            f"({', '.join(_ARCHITECTURES)} are)"
        )


def _rope_scaling(rope: _RopeKeys, context_len: int, path: Path) -> Llama3Rope | None:
    kind = rope.rope_type or rope.legacy_type or "default"
    _require(rope.partial_rotary_factor == 1.0, f"{path}: partial_rotary_factor is not supported")
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(
            f"{path}: rope scaling {kind!r} is not supported ('default' and 'llama3' are)"
        )
    factors = (rope.factor, rope.low_freq_factor, rope.high_freq_factor)
    factor, low, high = (value or 0.0 for value in factors)
    _require(
        factor >= 1.0 and 0.0 < low < high,
        f"{path}: llama3 rope scaling needs factor >= 1 and 0 < low_freq_factor < high_freq_factor",
    )
    return Llama3Rope(factor, low, high, rope.original_max_position_embeddings or context_len)


def _check_window(window: int | None, context_len: int, path: Path) -> None:
    _require(
        not window or window >= context_len,
        f"{path}: sliding-window attention (window {window}) is not supported",
    )


def _convert(found: Mapping[str, Any], kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
