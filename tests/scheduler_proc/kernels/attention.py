"""Sequences in a pool of keys and values, and steps over any parts of them.

Used by the tests of the native attention. Batches of all shapes must give each token, bit for bit,
what its sequence alone gives it; `reference` computes this in float64.
"""

from collections.abc import Sequence
from ctypes import c_int32
from typing import NamedTuple

import numpy as np

from scheduler_proc.executor.native_pool import KV_DTYPES
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Format
from tests.scheduler_proc.kernels.ops import Ops
from tests.scheduler_proc.ragged import indptr, int32

_KV_FORMATS = {name: of.format for name, of in KV_DTYPES.items()}
LARGEST_WORD = 8191


_LOG2E = np.float32(1.44269504)


def rounded_to_bfloat16(x: np.ndarray) -> np.ndarray:
    """x rounded to the nearest bfloat16 values, ties to even, as float32."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)


def rounded_to_words(x: np.ndarray) -> np.ndarray:
    """x [..., head_dim] rounded to whole multiples of its largest magnitude / LARGEST_WORD."""
    codes, scales = words_of(x)
    rounded: np.ndarray = codes * scales[..., None]
    return rounded


def words_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The multiples, and what of, NaN for heads that have one."""
    most = np.abs(x).max(axis=-1)
    factors = np.divide(LARGEST_WORD, most, out=np.zeros_like(most), where=most > 0)
    codes = np.rint(np.nan_to_num(x * factors[..., None])).astype(np.int16)
    return codes, (most / LARGEST_WORD).astype(np.float32)


def memory_of(pool: np.ndarray, kv_dtype: str) -> np.ndarray:
    """The numbers [pool, kv_heads, head_dim] as the kernels read them."""
    if kv_dtype != "int16":
        return pool
    codes, scales = words_of(pool)
    parts = [codes.view(np.uint8).ravel(), scales.view(np.uint8).ravel()]
    parts.append(np.zeros(-sum(map(len, parts)) % 64, np.uint8))
    return np.concatenate(parts)


class Shape(NamedTuple):
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    kv_dtype: str = "float16"
    window: int = 0
    tiles: bool = True  # whether the layer's weights are in tiles


class Piece(NamedTuple):
    """Tokens [start, end) of a sequence: one row of a step."""

    sequence: int
    start: int
    end: int


def held_as(kv_dtype: str, x: np.ndarray) -> np.ndarray:
    """x rounded to what a pool of this type holds."""
    return rounded_to_words(x.astype(np.float32)) if kv_dtype == "int16" else x.astype(kv_dtype)


class Sequences(NamedTuple):
    """`slots` and queries of some sequences; sequences with a common prefix share its slots."""

    shape: Shape
    keys: np.ndarray  # [pool, kv_heads, head_dim] as floats that the pool holds exactly
    values: np.ndarray
    slots: list[np.ndarray]  # for each sequence [L]
    queries: list[np.ndarray]  # for each sequence [L, heads, head_dim] float32

    def whole(self, sequence: int) -> Piece:
        return Piece(sequence, 0, len(self.slots[sequence]))

    def last(self, sequence: int) -> Piece:
        """The sequence's last token: a decode."""
        return Piece(sequence, len(self.slots[sequence]) - 1, len(self.slots[sequence]))

    def permuted(self, seed: int) -> "Sequences":
        """The same sequences elsewhere in the pool."""
        order = np.random.default_rng(seed).permutation(len(self.keys))
        keys, values = np.empty_like(self.keys), np.empty_like(self.values)
        keys[order], values[order] = self.keys, self.values
        moved = [int32(order[slots]) for slots in self.slots]
        return self._replace(keys=keys, values=values, slots=moved)

    def run(self, ops: Ops, pieces: Sequence[Piece], share: bool = True) -> list[np.ndarray]:
        """One step: each piece's outputs [end - start, heads, head_dim]."""
        lengths = [end - start for _, start, end in pieces]
        qo, kv = indptr(lengths), indptr([end for _, _, end in pieces])
        listed = np.concatenate([self.slots[i][:end] for i, _, end in pieces])
        batch = library.Batch(
            num_tokens=int(qo[-1]),
            num_rows=len(pieces),
            qo_indptr=library.pointer(qo, c_int32),
            kv_indptr=library.pointer(kv, c_int32),
            kv_indices=library.pointer(listed, c_int32),
            share_prefixes=share,
        )
        q = np.concatenate([self.queries[i][start:end] for i, start, end in pieces])
        pools = [memory_of(pool, self.shape.kv_dtype) for pool in (self.keys, self.values)]
        out = ops.attention(self._model(), self._layer(pools), batch, q)
        return np.split(out, qo[1:-1])

    def _model(self) -> library.Model:
        heads, kv_heads, head_dim, kv_dtype, *_ = self.shape
        return library.Model(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            num_slots=len(self.keys),
            kv_format=_KV_FORMATS[kv_dtype],
            attn_scale=head_dim**-0.5,
        )

    def _layer(self, pools: Sequence[np.ndarray]) -> library.Layer:
        k_pool, v_pool = map(library.address, pools)
        q = library.Matrix(format=Format.Q4_TILES if self.shape.tiles else Format.Q4)
        return library.Layer(k_pool=k_pool, v_pool=v_pool, window=self.shape.window, q=q)

    def reference(self, piece: Piece, in_bfloat16: bool = False) -> np.ndarray:
        """The piece's outputs in float64. With `in_bfloat16`, queries (times scale and log2(e)),
        keys and values are first rounded to bfloat16."""
        slots = self.slots[piece.sequence][: piece.end]
        group = self.shape.heads // self.shape.kv_heads
        k, v = (np.repeat(a[slots].astype(np.float32), group, 1) for a in (self.keys, self.values))
        q = self.queries[piece.sequence][piece.start : piece.end]
        q = q * np.float32(np.float32(self.shape.head_dim**-0.5) * _LOG2E)
        if in_bfloat16:
            q, k, v = (rounded_to_bfloat16(x) for x in (q, k, v))
        q, k, v = (x.astype(np.float64).transpose(1, 0, 2) for x in (q, k, v))
        scores = q @ k.transpose(0, 2, 1)  # [heads, tokens, keys]
        token, key = np.ogrid[piece.start : piece.end, : piece.end]
        hidden = key > token
        if self.shape.window:
            hidden |= key <= token - self.shape.window
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp2(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out: np.ndarray = (weights @ v).transpose(1, 0, 2)
        return out


def random_sequences(
    shape: Shape,
    lengths: Sequence[int],
    prefixes: Sequence[tuple[int, int]] = (),
    contiguous: bool = False,
    seed: int = 0,
) -> Sequences:
    """Sequences of these lengths; sequence i begins with the first n slots of another, where
    `prefixes[i]` is (other, n)."""
    rng = np.random.default_rng(seed)
    pool = sum(lengths) + 50
    free = int32(np.arange(pool) if contiguous else rng.permutation(pool))
    slots: list[np.ndarray] = []
    for i, length in enumerate(lengths):
        other, common = prefixes[i] if i < len(prefixes) else (0, 0)
        own, free = np.split(free, [length - common])
        slots.append(np.concatenate([slots[other][:common], own]) if common else own)
    keys, values = (
        held_as(shape.kv_dtype, rng.standard_normal((pool, shape.kv_heads, shape.head_dim)))
        for _ in range(2)
    )
    queries = [
        (3 * rng.standard_normal((n, shape.heads, shape.head_dim))).astype(np.float32)
        for n in lengths
    ]
    return Sequences(shape, keys, values, slots, queries)
