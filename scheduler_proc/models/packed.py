"""Packs a checkpoint's weights for the native kernels, in the formats that the file has.

Called by the native executor at start-up. Block-quantised tensors keep their values exactly; plain
numbers are kept, made float32 (`exact`) or quantised on request.
"""

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_float
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.kernels.library import (
    Arena,
    Experts,
    Format,
    Layer,
    Library,
    Matrix,
    Source,
    address,
    let_go,
    pointer,
)
from scheduler_proc.kernels.library import RouterRule as NativeRule
from scheduler_proc.models.checkpoint import EMBED, F32, HEAD, Checkpoint, RawTensor, dequantise
from scheduler_proc.models.config import DecoderConfig, RouterRule, require
from scheduler_proc.models.rope import rope_frequencies
from scheduler_proc.models.tensors import (
    NORM,
    LinearSpec,
    MixtureSpec,
    MlpSpec,
    check_tensors,
    layer_spec,
    require_finite,
)
from srt.files.gguf import BLOCK_TYPES
from srt.progress import Progress
from srt.wire.errors import ConfigError

QUANTIZATIONS = ("none", "q8", "q4")

_OWN_FORMATS = {
    Source.F32: Format.F32,
    Source.F16: Format.F16,
    Source.BF16: Format.BF16,
    Source.Q4_0: Format.Q4,
    Source.Q4_1: Format.Q4,
    Source.Q8_0: Format.Q8,
    Source.Q4_K: Format.Q4K,
    Source.Q6_K: Format.Q6,
}
Q5_0 = 6  # of ggml; the kernels have no such format
_Q5_0_BYTES = BLOCK_TYPES[Q5_0].num_bytes
# Values that are dequantised at a time: numpy needs several times their memory meanwhile.
_CHUNK_VALUES = 1 << 21
_MOST_CHOSEN = 64  # kMaxUsed and kMaxGroups of the kernels
_QUANTIZED = {"q8": Format.Q8, "q4": Format.Q4}
_PLAIN = (Source.F32, Source.F16, Source.BF16)
_QUANTIZED_TYPES = {Q5_0, *_OWN_FORMATS} - {*_PLAIN}  # of ggml, as the kernels hold them


class Packing(NamedTuple):
    """How weights are held: one of QUANTIZATIONS for plain numbers, or all of them as float32;
    quantised ones in matrix tiles or not."""

    quantization: str = "none"
    exact: bool = False
    tiles: bool = False

    def format(self, name: str, source: Source, inputs: int, ggml_type: int) -> Format:
        """What tensor `name`, of `ggml_type` in the file and read as `source`, becomes.

        Raises ConfigError if it cannot be.
        """
        chosen = self._format(name, source, inputs, ggml_type)
        return chosen.tiled if self.tiles else chosen

    def _format(self, name: str, source: Source, inputs: int, ggml_type: int) -> Format:
        if self.exact:
            return Format.F32
        if self.quantization == "none":
            return _OWN_FORMATS[source]
        if ggml_type not in _PLAIN:
            raise ConfigError(
                f"--quantization {self.quantization}: tensor {name} is "
                f"{BLOCK_TYPES[ggml_type].name} in the file already"
            )
        if inputs % 32:
            raise ConfigError(
                f"--quantization {self.quantization}: tensor {name} has {inputs} inputs, "
                "not a multiple of 32"
            )
        return _QUANTIZED[self.quantization]


class PackedModel(NamedTuple):
    """Packed weights; structures hold addresses into `arrays`, which must outlive them."""

    layers: ctypes.Array[Layer]
    embed: Matrix
    head: Matrix
    norm: np.ndarray  # [hidden] float32
    rope_frequencies: np.ndarray  # [head_dim/2] float32
    arrays: list[np.ndarray]
    structures: Sequence[Any] = ()  # of mixtures, which `layers` point to

    @property
    def num_bytes(self) -> int:
        """Memory that the weights take."""
        return sum(array.nbytes for array in self.arrays)


def pack_model(checkpoint: Checkpoint, library: Library, choice: Packing) -> PackedModel:
    """Read and pack all weights. Raises ConfigError for what the kernels cannot compute."""
    check_native(checkpoint.config)
    check_tensors(checkpoint)
    return _Packer(checkpoint, library, choice).model()


def suits_integers(checkpoint: Checkpoint, choice: Packing) -> bool:
    """Whether a KV pool of 16-bit integers suits the model, by its first layer: queries are made of
    quantised weights, and keys have no bias, which makes some of their elements so large (Qwen2)
    that few digits are left for the others. Raises ConfigError as `pack_model` does."""
    check_native(checkpoint.config)
    check_tensors(checkpoint)
    spec = layer_spec(checkpoint.config, 0)
    stored = checkpoint.raw(f"{spec.q.name}.weight").ggml_type
    is_quantized = choice.quantization != "none" or stored in _QUANTIZED_TYPES
    return is_quantized and not spec.k.bias


def check_native(config: DecoderConfig) -> None:
    """Raise ConfigError naming what the kernels lack for this model."""
    rope = config.rope
    lacks = {
        "norms after attention and MLP": config.sandwich_norms,
        "norm weights less 1": config.norm_offset != 0,
        f"activation {config.activation}": config.activation != "silu",
        "soft caps": config.attn_softcap is not None or config.logit_softcap is not None,
        "a rope for windowed layers": config.local_rope is not None,
        "partly rotated heads": config.rope_dims(rope) != config.head_dim,
    }
    if (experts := config.experts) is not None:
        for width in (experts.width, experts.shared_width):
            lacks[f"experts of {width} channels, not a multiple of 16"] = width % 16 != 0
        for what, number in (("experts of a token", experts.used), ("groups", experts.rule.groups)):
            lacks[f"{number} {what} (at most {_MOST_CHOSEN})"] = number > _MOST_CHOSEN
    missing = [name for name, is_needed in lacks.items() if is_needed]
    if missing:
        raise ConfigError(f"the native executor does not have {', '.join(missing)}")


def native_attn_scale(config: DecoderConfig) -> float:
    """What the kernels multiply q times k by; includes the rope's amplitude, of q and of k."""
    return config.attn_scale * config.rope.amplitude**2


def native_rule(rule: RouterRule) -> NativeRule:
    """A router's rule as the kernels have it."""
    return NativeRule(
        sigmoid=rule.scores == "sigmoid",
        by_logits=rule.chosen_by == "logits",
        normalised=rule.normalised,
        groups=rule.groups,
        used_groups=rule.used_groups,
        scale=rule.scale,
    )


class _Packer:
    def __init__(self, checkpoint: Checkpoint, library: Library, choice: Packing) -> None:
        self._checkpoint = checkpoint
        self._library = library
        self._choice = choice
        self._arrays: list[np.ndarray] = []
        self._structures: list[Any] = []
        self._arena = Arena()
        self._progress = Progress("weights", checkpoint.num_bytes)

    def model(self) -> PackedModel:
        with self._progress:
            return self._model()

    def _model(self) -> PackedModel:
        config = self._checkpoint.config
        layers = (Layer * config.layers)()
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            embed = pool.submit(self._matrix, EMBED, config.vocab_size, config.hidden)
            for _ in pool.map(lambda i: self._fill(layers[i], i), range(config.layers)):
                pass
        head = embed.result()
        if not config.tie_embeddings:
            head = self._matrix(HEAD, config.vocab_size, config.hidden)
        frequencies = rope_frequencies(config.rope, config.head_dim)
        divisors = self._checkpoint.rope_divisors()
        if divisors is not None:
            frequencies = frequencies / divisors
        norm = self._keep(self._checkpoint.raw(NORM).float32())
        rope = self._keep(frequencies)
        return PackedModel(layers, embed.result(), head, norm, rope, self._arrays, self._structures)

    def _fill(self, layer: Layer, index: int) -> None:
        config = self._checkpoint.config
        spec = layer_spec(config, index)
        layer.attn_norm = self._floats(spec.input_norm)
        layer.mlp_norm = self._floats(spec.mlp_norm)
        if spec.q_norm is not None and spec.k_norm is not None:
            layer.q_norm = self._floats(spec.q_norm)
            layer.k_norm = self._floats(spec.k_norm)
        layer.window = config.layer_window(index) or 0
        for name in ("q", "k", "v", "o"):
            setattr(layer, name, self._linear(getattr(spec, name)))
        for name, linear in () if spec.mlp is None else spec.mlp._asdict().items():
            setattr(layer, name, self._linear(linear))
        if spec.mixture is not None:
            layer.experts = ctypes.pointer(self._experts(spec.mixture))

    def _experts(self, spec: MixtureSpec) -> Experts:
        """A mixture, packed expert by expert."""
        parts: dict[str, ctypes.Array[Matrix]] = {}
        for name in MlpSpec._fields:
            parts[name] = (Matrix * spec.experts.count)()
        for index in range(spec.experts.count):
            for name, linear in spec.expert(index)._asdict().items():
                parts[name][index] = self._linear(linear)
        for name, matrices in parts.items():
            formats = {Format(matrix.format).name for matrix in matrices}
            require(
                len(formats) == 1,
                f"{self._checkpoint.path}: {spec.prefix}: the native executor does not have "
                f"experts whose {name} is of several types ({', '.join(sorted(formats))})",
            )
        router, shared = spec.router, spec.shared
        experts = Experts(
            count=spec.experts.count,
            used=spec.experts.used,
            width=spec.experts.width,
            rule=native_rule(spec.experts.rule),
            router=self._router(router),
            router_bias=self._scoring(f"{router.name}.bias" if router.bias else None),
            correction=self._scoring(spec.correction),
            shared_score=self._scoring(spec.shared_score),
            **parts,
        )
        for name, linear in () if shared is None else shared._asdict().items():
            setattr(experts, f"shared_{name}", self._linear(linear))
        self._structures += [experts, *parts.values()]
        return experts

    def _router(self, spec: LinearSpec) -> Matrix:
        """The matrix that experts are chosen by, which is never quantised."""
        raw = self._checkpoint.raw(spec.weight)
        values = self._finite(spec.weight)
        source = Source(raw.ggml_type) if raw.ggml_type in _PLAIN else Source.F32
        data = raw.data if raw.ggml_type in _PLAIN else values
        chosen = Format.F32 if self._choice.exact else _OWN_FORMATS[source]
        packed = self._library.pack(source, data, spec.rows, spec.inputs, chosen, None, self._arena)
        self._progress.add(len(raw.data))
        return Matrix(chosen, spec.rows, spec.inputs, address(self._keep(packed)))

    def _scoring(self, name: str | None) -> "ctypes._Pointer[c_float] | None":
        return None if name is None else pointer(self._keep(self._finite(name)), c_float)

    def _finite(self, name: str) -> np.ndarray:
        """The values of a tensor of any type, one after the other, as float32."""
        raw = self._checkpoint.raw(name)
        is_plain = raw.ggml_type in _PLAIN
        values = raw.float32().reshape(-1) if is_plain else _as_float32(raw).view(np.float32)
        require_finite(self._checkpoint, name, are_finite=bool(np.isfinite(values).all()))
        return values

    def _linear(self, spec: LinearSpec) -> Matrix:
        order = None
        if spec.heads and self._checkpoint.interleaved_rope:
            order = spec.first + _half_rotated(spec.rows, spec.heads)
        elif spec.rows != spec.tensor_rows:
            order = np.arange(spec.first, spec.first + spec.rows, dtype=np.int32)
        matrix = self._matrix(spec.weight, spec.rows, spec.inputs, order, spec.part)
        if spec.bias:
            bias = self._checkpoint.raw(f"{spec.name}.bias").float32()
            matrix.bias = pointer(self._keep(bias if order is None else bias[order]), c_float)
        return matrix

    def _matrix(
        self,
        name: str,
        rows: int,
        inputs: int,
        order: np.ndarray | None = None,
        part: int | None = None,
    ) -> Matrix:
        stored = self._checkpoint.raw(name, part)
        raw = for_kernels(stored)
        source = Source(raw.ggml_type)
        chosen = self._choice.format(name, source, inputs, stored.ggml_type)
        data = self._library.pack(source, raw.data, rows, inputs, chosen, order, self._arena)
        if stored.is_mapped:
            let_go(stored.data)
        self._progress.add(len(stored.data))
        return Matrix(chosen, rows, inputs, address(self._keep(data)))

    def _floats(self, name: str) -> "ctypes._Pointer[c_float]":
        return pointer(self._keep(self._checkpoint.raw(name).float32()), c_float)

    def _keep(self, array: np.ndarray) -> np.ndarray:
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        return array


def _half_rotated(rows: int, heads: int) -> np.ndarray:
    """llama.cpp stores the pair (i, i + head_dim/2) of a head side by side; we rotate halves."""
    order = np.arange(rows, dtype=np.int32).reshape(heads, -1, 2)
    return np.ascontiguousarray(order.transpose(0, 2, 1)).reshape(-1)


def pool_shape(config: DecoderConfig, num_slots: int) -> tuple[int, ...]:
    """[layers, K and V, slots, kv_heads, head_dim]"""
    return (config.layers, 2, num_slots, config.kv_heads, config.head_dim)


def for_kernels(raw: RawTensor) -> RawTensor:
    """The same values in an encoding that the kernels read: `raw` itself if it has one; blocks of
    Q5_0 as blocks of Q8_0 with the same scales; those of all other types as float32."""
    if raw.ggml_type in list(Source):
        return raw
    if raw.ggml_type == Q5_0:
        return RawTensor(Source.Q8_0, raw.shape, _q5_0_as_q8_0(raw.data))
    return RawTensor(F32, raw.shape, _as_float32(raw))


def _q5_0_as_q8_0(data: np.ndarray) -> np.ndarray:
    """A scale, 32 fifth bits and 32 halves of bytes -> the scale and 32 signed bytes."""
    blocks = data.reshape(-1, _Q5_0_BYTES)
    scales, fifth_bits, halves = np.split(blocks, (2, 6), axis=1)
    low_bits = np.concatenate((halves & 15, halves >> 4), axis=1)
    bits = np.unpackbits(fifth_bits, axis=1, bitorder="little")
    values = (low_bits | bits << 4).view(np.int8) - np.int8(16)
    return np.concatenate((scales, values.view(np.uint8)), axis=1).reshape(-1)


def _as_float32(raw: RawTensor) -> np.ndarray:
    kind = BLOCK_TYPES[raw.ggml_type]
    step = _CHUNK_VALUES // kind.num_values * kind.num_bytes
    found = np.empty(len(raw.data) // kind.num_bytes * kind.num_values, np.float32)
    at = 0
    for start in range(0, len(raw.data), step):
        values = dequantise(raw.data[start : start + step], raw.ggml_type)
        found[at : at + len(values)] = values
        at += len(values)
    return found.view(np.uint8)
