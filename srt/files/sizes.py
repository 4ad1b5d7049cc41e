"""How large a model is, from its files' headers: for those who plan memory before it is loaded."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from srt.files.context import gguf_context_len, hf_context_len
from srt.files.gguf import BLOCK_TYPES, GGUFTensor, open_gguf
from srt.files.model_files import ModelFiles, require_file
from srt.files.text_config import text_config
from srt.wire.errors import ConfigError

# There are lists of all layers before there are tensors to count.
MAX_LAYERS = 10_000
# Of a layer; more than any model has.
MAX_EXPERTS = 2**14


class ModelSizes(NamedTuple):
    """`weight_bytes` as the native executor holds them, `float32_bytes` as float32; `kv_values` are
    the keys and values of one token in all layers, `kv_heads` the heads that these are of;
    `context_len` is in tokens. Of `weight_bytes` one token passes through `active_bytes`: not the
    experts that it does not use, nor an embedding that is not the head too; `expert_bytes` are all
    experts', 0 if the model is no mixture."""

    weight_bytes: int
    float32_bytes: int
    kv_values: int
    kv_heads: int
    context_len: int
    active_bytes: int
    expert_bytes: int = 0


# Below so many parameters near ties are common, and rounding to eight bits turns some of them.
SMALL_MODEL = 1_500_000_000

# ggml types that the native kernels read; Q5_0 becomes Q8_0, and all others float32.
KEPT_TYPES = frozenset({0, 1, 2, 3, 8, 12, 14, 30})
_Q5_0, _Q8_0 = 6, 8

# Tensors of experts that tokens choose, in GGUF files and in directories.
_EXPERTS = re.compile(r"_exps\.|\.experts\.|\.block_sparse_moe\.(input|output)_linear\.")
_EMBEDDING = re.compile(r"^token_embd\.weight$|(^|\.)embed_tokens\.weight$")
_HEAD = re.compile(r"^output\.weight$|^lm_head\.weight$")
_MAX_HEADER = 2**27  # of a safetensors file, in bytes; the library's limit is 100 MB

_NumLayers = Annotated[int, Meta(le=MAX_LAYERS)]


class _HFKeys(Struct):
    layers: _NumLayers = field(name="num_hidden_layers")
    hidden: int = field(name="hidden_size")
    heads: int = field(name="num_attention_heads")
    kv_heads: int | None = field(name="num_key_value_heads", default=None)
    head_dim: int | None = None
    context_len: int = field(name="max_position_embeddings", default=2048)
    # Of experts, by the names that families have.
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    used: int | None = field(name="num_experts_per_tok", default=None)

    @property
    def experts(self) -> int | None:
        return self.num_experts or self.num_local_experts or self.n_routed_experts


class _Stored(Struct):
    """Where a tensor's bytes begin and end after the header; `__metadata__` has none."""

    data_offsets: tuple[int, int] | None = None


class _GGUFKeys(Struct):
    layers: _NumLayers = field(name="block_count")
    hidden: int = field(name="embedding_length")
    heads: int = field(name="attention.head_count")
    kv_heads: int | list[int] | None = field(name="attention.head_count_kv", default=None)
    key_len: int | None = field(name="attention.key_length", default=None)
    value_len: int | None = field(name="attention.value_length", default=None)
    experts: int | None = field(name="expert_count", default=None)
    used: int | None = field(name="expert_used_count", default=None)


def model_sizes(files: ModelFiles) -> ModelSizes:
    """Of the model at `files`. Raises ConfigError if they do not say it."""
    try:
        sizes = _of_gguf(files) if files.kind == "gguf" else _of_directory(files)
        if min(sizes[:-1]) < 1:
            raise ConfigError(f"{files.path}: sizes that no model has: {sizes}")
        return sizes
    except (msgspec.MsgspecError, OSError, ZeroDivisionError, RecursionError) as error:
        raise ConfigError(f"{files.path}: {error}") from error


def resolved_activations(activations: str, files: ModelFiles) -> str:
    """What `--activations` says for the model at `files`: "auto" is "12" for a small one. For
    others it stays, and means what each level computes best with. It follows from the option and
    the files alone, so that whoever has these knows it, as for fingerprints."""
    if activations != "auto":
        return activations
    try:
        is_small = model_sizes(files).float32_bytes < 4 * SMALL_MODEL
    except ConfigError:  # as those say who load it
        return activations
    return "12" if is_small else activations


def _of_gguf(files: ModelFiles) -> ModelSizes:
    model = open_gguf(files.path)
    prefix = f"{model.metadata.get('general.architecture')}."
    found = {k.removeprefix(prefix): v for k, v in model.metadata.items() if k.startswith(prefix)}
    keys = msgspec.convert(found, _GGUFKeys)
    heads = keys.kv_heads or keys.heads
    of_all_layers = sum(heads) if isinstance(heads, list) else heads * keys.layers
    head_dim = keys.hidden // keys.heads
    kv_values = of_all_layers * ((keys.key_len or head_dim) + (keys.value_len or head_dim))
    kept = {name: kept_bytes(tensor) for name, tensor in model.tensors.items()}
    return ModelSizes(
        sum(kept.values()),
        sum(4 * math.prod(tensor.shape) for tensor in model.tensors.values()),
        kv_values,
        2 * of_all_layers,
        gguf_context_len(model),
        *_active(kept, sum(kept.values()), keys),
    )


def kept_bytes(tensor: GGUFTensor) -> int:
    """What the native executor makes of a tensor."""
    if tensor.ggml_type in KEPT_TYPES:
        return len(tensor.data)
    if tensor.ggml_type == _Q5_0:
        return len(tensor.data) // BLOCK_TYPES[_Q5_0].num_bytes * BLOCK_TYPES[_Q8_0].num_bytes
    return 4 * math.prod(tensor.shape)


def _of_directory(files: ModelFiles) -> ModelSizes:
    path = files.path / "config.json"
    require_file(path)
    config = text_config(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
    keys = msgspec.convert(config, _HFKeys)
    head_dim = keys.head_dim or keys.hidden // keys.heads
    kv_heads = 2 * keys.layers * (keys.kv_heads or keys.heads)
    weights = sorted(files.path.glob("model*.safetensors"))
    num_bytes = sum(path.stat().st_size for path in weights)
    tensors = {name: size for path in weights for name, size in _stored(path)}
    is_wide = str(config.get("dtype") or config.get("torch_dtype")) == "float32"
    return ModelSizes(
        num_bytes,
        num_bytes if is_wide else 2 * num_bytes,
        kv_heads * head_dim,
        kv_heads,
        hf_context_len(config, keys.context_len),
        *_active(tensors, num_bytes, keys),
    )


def _active(
    tensors: Mapping[str, int], num_bytes: int, keys: _GGUFKeys | _HFKeys
) -> tuple[int, int]:
    """Of weights of `num_bytes` those that a token passes through, and all experts', from the bytes
    of each tensor. Keys that no mixture can have are for those to refuse who load it."""
    of_experts = sum(size for name, size in tensors.items() if _EXPERTS.search(name))
    used, count = keys.used or 0, keys.experts or 0
    unused = of_experts * (count - used) // count if 0 < used <= count else 0
    looked_up = 0
    if any(map(_HEAD.search, tensors)):
        looked_up = sum(size for name, size in tensors.items() if _EMBEDDING.search(name))
    return num_bytes - unused - looked_up, of_experts


def _stored(path: Path) -> Iterator[tuple[str, int]]:
    """Each tensor of a safetensors file and its bytes; none of a file whose header is not one, as
    those say who load it."""
    with path.open("rb") as file:
        length = min(int.from_bytes(file.read(8), "little"), _MAX_HEADER)
        data = file.read(length)
    try:
        header = msgspec.json.decode(data, type=dict[str, _Stored])
    except msgspec.MsgspecError:
        return
    for name, tensor in header.items():
        if tensor.data_offsets is not None:
            yield name, tensor.data_offsets[1] - tensor.data_offsets[0]
