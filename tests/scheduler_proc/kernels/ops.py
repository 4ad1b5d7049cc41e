"""The native kernels' single operations on numpy arrays, and weights in every packed format.

Used by the tests of the native engine. They compare with float64.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float, c_int32
from functools import cache
from typing import NamedTuple

import gguf
import numpy as np
import pytest

from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Format, Library, NativeUnavailable, Source

GROUP = 32
WIDTHS = (8, 12, 16)
TILED = tuple(format for format in Format if format.name.endswith("_TILES"))
UNTILED = tuple(format for format in Format if format not in TILED)
FLOATS = (Format.F32, Format.F16, Format.BF16)
OWN_FORMATS = {
    Source.F32: Format.F32,
    Source.F16: Format.F16,
    Source.BF16: Format.BF16,
    Source.Q4_0: Format.Q4,
    Source.Q4_1: Format.Q4,
    Source.Q8_0: Format.Q8,
    Source.Q4_K: Format.Q4K,
    Source.Q6_K: Format.Q6,
}
# Where ggml's blocks have halves: with random bits some of these would be infinities.
_HALVES_AT = {
    Source.Q4_0: (0,),
    Source.Q4_1: (0, 2),
    Source.Q8_0: (0,),
    Source.Q4_K: (0, 2),
    Source.Q6_K: (208,),
}


def load_or_skip() -> Library:
    """The library; skips the test if it was not built."""
    try:
        return library.load()
    except NativeUnavailable as reason:
        pytest.skip(str(reason))


def levels() -> tuple[str, ...]:
    """The instruction-set levels of this machine, for parametrised tests."""
    try:
        return library.load().available_isas()
    except NativeUnavailable:
        return library.ISAS[-1:]


def level_bits() -> list[tuple[str, int]]:
    """Every level of this machine with every width of activations that it has."""
    try:
        tiled = [isa for isa in levels() if library.load().has_tiles(isa)]
    except NativeUnavailable:
        tiled = []
    return [(isa, bits) for isa in levels() for bits in WIDTHS if bits == 8 or isa not in tiled]


def floats(array: np.ndarray) -> "ctypes._Pointer[c_float]":
    return library.pointer(array, c_float)


# ---- weights ------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """A packed matrix; `arrays` keeps alive the memory that `matrix` points to."""

    matrix: library.Matrix
    arrays: tuple[np.ndarray, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.n, self.matrix.k

    def row(self, index: int) -> np.ndarray:
        """Row `index`, as srt_unpack_row gives it."""
        out = np.empty(self.matrix.k, np.float32)
        lib = load_or_skip()
        lib.check(lib.c.srt_unpack_row(ctypes.byref(self.matrix), index, floats(out)))
        return out

    def values(self) -> np.ndarray:
        """[n, k] float32"""
        return np.stack([self.row(i) for i in range(self.matrix.n)])


def pack(
    source: Source,
    data: np.ndarray,
    n: int,
    k: int,
    format: Format,
    row_order: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> Weights:
    packed = load_or_skip().pack(source, data, n, k, format, row_order)
    matrix = library.Matrix(format, n, k, library.address(packed))
    if bias is None:
        return Weights(matrix, (packed,))
    matrix.bias = floats(bias)
    return Weights(matrix, (packed, bias))


def random_source(source: Source, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Rows that use every bit of the encoding: uint8 [n, bytes of a row]."""
    rng = np.random.default_rng(seed)
    if source in (Source.F32, Source.F16, Source.BF16):
        return encode(source, rng.standard_normal((n, k)).astype(np.float32))
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(source)][1]
    blocks = rng.integers(0, 256, (n, source.row_bytes(k) // size, size), np.uint8)
    for at in _HALVES_AT[source]:
        halves = rng.uniform(-0.02, 0.02, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(n, -1)


def encode(source: Source, values: np.ndarray) -> np.ndarray:
    """float32 [n, k] in a plain or a simple block encoding: uint8 [n, bytes of a row]."""
    quantized: np.ndarray = gguf.quants.quantize(values, gguf.GGMLQuantizationType(source))
    return np.ascontiguousarray(quantized).view(np.uint8)


def decode(source: Source, data: np.ndarray) -> np.ndarray:
    """The gguf package's reading of encoded rows: float32 [n, k]."""
    kind = gguf.GGMLQuantizationType(source)
    plain = {Source.F32: np.float32, Source.F16: np.float16}
    values: np.ndarray = gguf.quants.dequantize(data.view(plain.get(source, np.uint8)), kind)
    return values


@cache
def random_weights(format: Format, n: int, k: int, seed: int = 0, biased: bool = False) -> Weights:
    """A matrix of about unit variance in `format`, from floats: k-quants need k = 256 * i."""
    rng = np.random.default_rng(seed)
    k_quants = {Format.Q4K: Source.Q4_K, Format.Q6: Source.Q6_K}
    source = {k.tiled: s for k, s in k_quants.items()}.get(format.tiled, Source.F32)
    if format in (Format.F16, Format.BF16):
        source = Source(next(s for s, own in OWN_FORMATS.items() if own == format))
    bias = rng.standard_normal((n + 15) // 16 * 16).astype(np.float32) if biased else None
    return pack(source, random_source(source, n, k, seed), n, k, format, bias=bias)


# ---- activations --------------------------------------------------------------------------------


LARGEST_CODE = {8: np.float32(127), 12: np.float32(119 * 256), 16: np.float32(127 * 256)}


def quantized_activations(x: np.ndarray, bits: int = 8) -> np.ndarray:
    """x [m, k] float32 as layers of quantised weights see it: codes in groups, as float64."""
    groups = x.reshape(len(x), -1, GROUP)
    most = np.abs(groups).max(axis=-1, keepdims=True)
    step = most / LARGEST_CODE[bits]
    if bits > 8:  # the next larger number of three significant bits
        step = (step.view(np.uint32) + 0x1FFFFF & 0xFFE00000).astype(np.uint32).view(np.float32)
    by = np.divide(np.float32(1), step, out=np.zeros_like(most), where=most > 0)
    if bits == 8:
        by = np.divide(LARGEST_CODE[bits], most, out=np.zeros_like(most), where=most > 0)
    codes = _twelve_bits(groups * by) if bits == 12 else np.rint(groups * by)
    values: np.ndarray = (codes.astype(np.float64) * step).reshape(x.shape)
    return values


def _twelve_bits(scaled: np.ndarray) -> np.ndarray:
    """float32 [..., 32]: the second half as multiples of 16; the first as such and the multiple of
    the other half, modulo 16."""
    first, second = np.split(scaled, 2, axis=-1)
    multiples = np.rint(second / 16)
    rest = multiples % 16
    return np.concatenate([16 * np.rint((first - rest) / 16) + rest, 16 * multiples], axis=-1)


def bfloat16_activations(x: np.ndarray) -> np.ndarray:
    """x [m, k] float32 as linear layers of weights in tiles see it, as float64: rounded to nearest,
    ties to even, and 0 where the result is a subnormal bfloat16."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.abs(rounded) < 2.0**-126, 0.0, rounded.astype(np.float64))


def silu(x: np.ndarray) -> np.ndarray:
    return x * (0.5 + 0.5 * np.tanh(x / 2))


# ---- operations ---------------------------------------------------------------------------------


class Ops:
    """The operations on a pool of `threads` at one instruction-set level, with activations of
    `bits`, one of WIDTHS, for quantised weights."""

    def __init__(self, isa: str, threads: int, bits: int) -> None:
        self._lib = load_or_skip()
        self._c = self._lib.c
        self.has_tiles = self._lib.has_tiles(isa)
        self.isa, self.bits = isa, bits
        self._pool = self._lib.created(self._c.srt_pool_create(threads, isa.encode(), bits))

    def close(self) -> None:
        self._c.srt_pool_destroy(self._pool)

    def own(self, format: Format) -> Format:
        """The format in which this level computes: in tiles if it can."""
        return format.tiled if self.has_tiles else format

    def width(self, format: Format) -> int:
        """The bits of the activations that weights of `format` are multiplied with: 12 are 16
        where they would be no faster."""
        is_split = self.isa == "avx512" and format in (Format.Q4, Format.Q4K)
        return 16 if self.bits == 12 and not is_split else self.bits

    def linear(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        y = np.full((len(x), weights.matrix.n), np.nan, np.float32)
        matrix = ctypes.byref(weights.matrix)
        self._lib.check(self._c.srt_op_linear(self._pool, matrix, floats(x), len(x), floats(y)))
        return y

    def gate_up(self, gate: Weights, up: Weights, x: np.ndarray) -> np.ndarray:
        y = np.full((len(x), gate.matrix.n), np.nan, np.float32)
        both = ctypes.byref(gate.matrix), ctypes.byref(up.matrix)
        self._lib.check(self._c.srt_op_gate_up(self._pool, *both, floats(x), len(x), floats(y)))
        return y

    def attention(
        self, model: library.Model, layer: library.Layer, batch: library.Batch, q: np.ndarray
    ) -> np.ndarray:
        out = np.full_like(q, np.nan)
        structures = map(ctypes.byref, (model, layer, batch))
        self._lib.check(self._c.srt_op_attention(self._pool, *structures, floats(q), floats(out)))
        return out

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        y = np.full_like(x, np.nan)
        arrays = floats(x), floats(weight)
        self._lib.check(self._c.srt_op_rms_norm(self._pool, *arrays, *x.shape, eps, floats(y)))
        return y

    def rope(self, x: np.ndarray, positions: np.ndarray, freqs: np.ndarray) -> np.ndarray:
        y = x.copy()
        at = library.pointer(positions, c_int32)
        self._lib.check(self._c.srt_op_rope(self._pool, floats(y), at, floats(freqs), *x.shape))
        return y


@contextmanager
def opened(isa: str, threads: int, bits: int = 8) -> Iterator[Ops]:
    """Ops, closed at the end."""
    ops = Ops(isa, threads, bits)
    try:
        yield ops
    finally:
        ops.close()
