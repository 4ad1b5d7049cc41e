"""The shape of a model, read from a GGUF file's metadata.

Called by the checkpoint reader. Keys: ggml-org/llama.cpp, gguf-py/gguf/constants.py. What cannot be
computed exactly is a ConfigError here, as in `config`.
"""

from pathlib import Path

from msgspec import Struct, field

from scheduler_proc.models.config import DecoderConfig, Rope, convert, require
from srt.errors import ConfigError
from srt.model.gguf_file import GGUFFile


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


def config_from_gguf(file: GGUFFile) -> DecoderConfig:
    """Read a GGUF file's metadata; ties and biases show in which tensors it has."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise ConfigError(
            f"{file.path}: GGUF architecture {architecture!r} is not supported ('llama' is)"
        )
    prefix = "llama."
    found = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    keys = convert(found, _GGUFKeys, file.path)
    head_dim = keys.key_len or keys.hidden // max(keys.heads, 1)
    _check_gguf(keys, head_dim, file.path)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor token_embd.weight is missing")
    return DecoderConfig(
        hidden=keys.hidden,
        layers=keys.layers,
        heads=keys.heads,
        kv_heads=keys.kv_heads or keys.heads,
        head_dim=head_dim,
        intermediate=keys.intermediate,
        vocab_size=embedding.shape[0],
        context_len=keys.context_len,
        rms_eps=keys.rms_eps,
        rope=Rope(keys.rope_theta),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )


def _check_gguf(keys: _GGUFKeys, head_dim: int, path: Path) -> None:
    require(keys.experts == 0, f"{path}: mixture-of-experts models are not supported")
    require(keys.logit_scale is None, f"{path}: logit_scale is not supported")
    require(
        keys.rope_scaling == "none" and keys.scale_linear in (0.0, 1.0),
        f"{path}: rope scaling {keys.rope_scaling!r} is not supported ('none' and 'llama3' are)",
    )
    require(
        keys.rope_dims in (None, head_dim) and keys.value_len in (None, head_dim),
        f"{path}: rope and values must span the whole head dimension ({head_dim})",
    )
    window = keys.sliding_window
    require(
        not window or window >= keys.context_len,
        f"{path}: sliding-window attention (window {window}) is not supported",
    )
