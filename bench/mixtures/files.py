"""Writes GGUF files of mixtures of experts: shapes of released models, random weights, and the
embedded model's vocabulary, which every server can tokenize with.

Blocks are random bytes with chosen scales: the gguf package does not quantise to K-types, and speed
does not depend on what weights say. A row's products have a variance of about 1, so that nothing
overflows; the router's logits have one of 1, so tokens spread over all experts.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np

from srt.files.gguf import BLOCK_TYPES, GGUFFile
from srt.files.model_files import resolve_model

_F32, _Q8_0, _Q4_K, _Q6_K = 0, 8, 12, 14
QUANTIZATIONS = {"Q8_0": _Q8_0, "Q4_K": _Q4_K}
CONTEXT_LEN = 4096


class Shape(NamedTuple):
    """Sizes of a mixture, and the GGUF architecture that computes it."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    used: int
    width: int  # of an expert

    def layer(self, index: int, kind: int) -> Iterator["Tensor"]:
        """The tensors of a layer whose matrices are of ggml type `kind`. Of a Q4_K file half of the
        values and of the last projections are Q6_K, as llama.cpp's Q4_K_M has them."""
        fine = _Q6_K if kind == _Q4_K and _has_more_bits(index, self.layers) else kind
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        experts = self.experts
        norms = {"attn_norm": self.hidden, "ffn_norm": self.hidden}
        if self.architecture == "olmoe":
            norms |= {"attn_q_norm": wide, "attn_k_norm": narrow}
        else:
            norms |= {"attn_q_norm": self.head_dim, "attn_k_norm": self.head_dim}
        for name, size in norms.items():
            yield Tensor(f"blk.{index}.{name}.weight", (size,), _F32)
        for name, shape, its_kind in (
            ("attn_q", (wide, self.hidden), kind),
            ("attn_k", (narrow, self.hidden), kind),
            ("attn_v", (narrow, self.hidden), fine),
            ("attn_output", (self.hidden, wide), kind),
            ("ffn_gate_inp", (experts, self.hidden), _F32),
            ("ffn_gate_exps", (experts, self.width, self.hidden), kind),
            ("ffn_up_exps", (experts, self.width, self.hidden), kind),
            ("ffn_down_exps", (experts, self.hidden, self.width), fine),
        ):
            yield Tensor(f"blk.{index}.{name}.weight", shape, its_kind)

    def layers_within(self, num_bytes: int, kind: int) -> int:
        """How many of its layers fit into so many bytes, at least one."""
        return max(
            (n for n in range(2, self.layers + 1) if self._size(n, kind) <= num_bytes), default=1
        )

    def _size(self, layers: int, kind: int) -> int:
        """Bytes of all layers of a model that has so many."""
        model = self._replace(layers=layers)
        return sum(tensor.num_bytes for i in range(layers) for tensor in model.layer(i, kind))


class Tensor(NamedTuple):
    """What is to be written: its shape, slowest dimension first, and its ggml type."""

    name: str
    shape: tuple[int, ...]
    kind: int

    @property
    def num_bytes(self) -> int:
        """In the file."""
        of = BLOCK_TYPES[self.kind]
        return math.prod(self.shape) // of.num_values * of.num_bytes


SHAPES = {
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 32, 4, 128, 128, 8, 768),
    "olmoe": Shape("olmoe", 16, 2048, 16, 16, 128, 64, 8, 1024),
}


def _has_more_bits(index: int, layers: int) -> bool:
    """Whether llama.cpp's Q4_K_M spends more on this layer: the first and last eighth, and every
    third one."""
    eighth = layers // 8
    return index < eighth or index >= 7 * layers // 8 or (index - eighth) % 3 == 2


def write_mixture(path: Path, shape: Shape, quantization: str, seed: int = 0) -> None:
    """Write the whole of `shape` with matrices of `quantization`, one of QUANTIZATIONS. One tensor
    is in memory at a time."""
    kind, rng = QUANTIZATIONS[quantization], np.random.default_rng(seed)
    source = GGUFFile(resolve_model("smollm2").path)
    writer = gguf.GGUFWriter(path, shape.architecture)
    add_vocabulary(writer, source)
    vocab = len(source.metadata["tokenizer.ggml.tokens"])
    _add_sizes(writer, shape, vocab)
    tensors = [
        Tensor("token_embd.weight", (vocab, shape.hidden), kind),
        Tensor("output_norm.weight", (shape.hidden,), _F32),
        Tensor("output.weight", (vocab, shape.hidden), _Q6_K if kind == _Q4_K else kind),
        *(tensor for i in range(shape.layers) for tensor in shape.layer(i, kind)),
    ]
    for name, of, its_kind in tensors:
        raw = gguf.GGMLQuantizationType(its_kind)
        dtype = np.dtype(np.float32 if its_kind == _F32 else np.uint8)
        size = Tensor(name, of, its_kind).num_bytes
        stored = of if its_kind == _F32 else (*of[:-1], size // math.prod(of[:-1]))
        writer.add_tensor_info(name, stored, dtype, size, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(_weights(rng, tensor))
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, shape: Shape, vocab: int) -> None:
    for key, size in (
        *(("block_count", shape.layers), ("context_length", CONTEXT_LEN)),
        *(("embedding_length", shape.hidden), ("feed_forward_length", shape.width)),
        *(("attention.head_count", shape.heads), ("attention.head_count_kv", shape.kv_heads)),
        *(("attention.key_length", shape.head_dim), ("attention.value_length", shape.head_dim)),
        *(("expert_count", shape.experts), ("expert_used_count", shape.used)),
        *(("expert_feed_forward_length", shape.width), ("vocab_size", vocab)),
        ("rope.dimension_count", shape.head_dim),
    ):
        writer.add_uint32(f"{shape.architecture}.{key}", size)
    writer.add_float32(f"{shape.architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{shape.architecture}.rope.freq_base", 10_000.0)


def add_vocabulary(writer: gguf.GGUFWriter, source: GGUFFile) -> None:
    """Copy the tokenizer of `source`."""
    for key, value in source.metadata.items():
        if not key.startswith("tokenizer."):
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)


def _weights(rng: np.random.Generator, tensor: Tensor) -> np.ndarray:
    """float32 of the tensor's shape, ones for a norm and normal numbers for a router; or uint8, the
    blocks of a matrix."""
    shape, inputs = tensor.shape, tensor.shape[-1]
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if tensor.kind == _F32:
        return rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(inputs))
    block_bytes = BLOCK_TYPES[tensor.kind].num_bytes
    data = np.frombuffer(rng.bytes(tensor.num_bytes), np.uint8).copy()
    _set_scales(data.reshape(-1, block_bytes), tensor.kind, 1 / math.sqrt(inputs))
    return data


def _set_scales(blocks: np.ndarray, kind: int, deviation: float) -> None:
    """Give random blocks, uint8 [blocks, bytes of one], values with this standard deviation and a
    mean of about zero."""

    def half(value: float) -> np.ndarray:
        return np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if kind == _Q8_0:  # d, 32 bytes of -128 to 127
        blocks[:, :2] = half(deviation / 74)
    elif kind == _Q4_K:  # d and m, scales of 6 bits: d * scale * (0 to 15) - m * other scale
        blocks[:, :2], blocks[:, 2:4] = half(deviation / 255), half(7.5 * deviation / 255)
    else:  # Q6_K: 192 bytes of (-32 to 31), 16 scales of 8 bits, d
        scales = blocks[:, 192:208].view(np.int8)
        scales[:] = scales >> 3  # so that d is no subnormal number
        blocks[:, 208:] = half(deviation / 171)
