"""The typed binding of libsrt_kernels.so: src/srt_kernels.h, field for field and call for call.

Used by the native executor, its loader, grammars, tests and benchmarks. Calls release the GIL. A
structure holds addresses only, so who fills one in keeps the arrays alive for as long as the C side
needs.
"""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint8, c_uint32, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from weakref import ref

import numpy as np

from scheduler_proc.batch import SAMPLE_DTYPES
from scheduler_proc.kernels.build import LIBRARY
from srt.machine import memory_left
from srt.wire.errors import ConfigError, SrtError

ABI_VERSION = 11
NUM_PHASES = 14
INPUTS = ("qkv", "o", "gate_up", "down", "head")  # of matrices (srt_input)
ISAS = ("amx", "avx512", "avx2", "portable")  # best first
ALIGNMENT = 64

_DTYPES: dict[Any, np.dtype] = {
    c_float: np.dtype(np.float32),
    c_double: np.dtype(np.float64),
    c_int32: np.dtype(np.int32),
    c_int64: np.dtype(np.int64),
    c_uint8: np.dtype(np.uint8),
    c_uint32: np.dtype(np.uint32),
}
# A bool is a byte that is 0 or 1.
_C_TYPES = {dtype: ctype for ctype, dtype in _DTYPES.items()} | {np.dtype(bool): c_uint8}
C = TypeVar("C", c_float, c_double, c_int32, c_int64, c_uint8, c_uint32)


class NativeUnavailable(SrtError):
    """This installation has no library that can be used; the text says why."""


class Format(IntEnum):
    """Packed weight formats (srt_format)."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4 = 3
    Q4K = 4
    Q8 = 5
    Q6 = 6
    Q4_TILES = 7
    Q4K_TILES = 8
    Q8_TILES = 9
    Q6_TILES = 10

    @property
    def tiled(self) -> "Format":
        """The same values as levels with matrix tiles compute with them; plain numbers stay."""
        return Format(self + 4) if Format.Q4 <= self <= Format.Q6 else self


class Source(IntEnum):
    """Encodings that weights are packed from (srt_source): ggml's type ids."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 8
    Q4_K = 12
    Q6_K = 14
    BF16 = 30

    def row_bytes(self, k: int) -> int:
        """Bytes of one row of `k` weights."""
        weights, size = _BLOCKS[self]
        if k % weights:
            raise ValueError(f"a row of {k} weights is not whole blocks of {self.name}")
        return k // weights * size


_BLOCKS = {  # weights and bytes of a block
    Source.F32: (1, 4),
    Source.F16: (1, 2),
    Source.BF16: (1, 2),
    Source.Q4_0: (32, 18),
    Source.Q4_1: (32, 20),
    Source.Q8_0: (32, 34),
    Source.Q4_K: (256, 144),
    Source.Q6_K: (256, 210),
}


def _fields(ctype: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, ctype) for name in names.split()]


class Matrix(ctypes.Structure):
    _fields_ = (*_fields(c_int32, "format n k"), ("data", c_void_p), ("bias", POINTER(c_float)))


class RouterRule(ctypes.Structure):
    _fields_ = (
        *_fields(c_int32, "sigmoid by_logits normalised groups used_groups"),
        ("scale", c_float),
    )


class Experts(ctypes.Structure):
    _fields_ = (
        *_fields(c_int32, "count used width"),
        ("rule", RouterRule),
        ("router", Matrix),
        *_fields(POINTER(c_float), "router_bias correction"),
        *_fields(POINTER(Matrix), "gate up down"),
        *_fields(Matrix, "shared_gate shared_up shared_down"),
        ("shared_score", POINTER(c_float)),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        *_fields(POINTER(c_float), "attn_norm mlp_norm q_norm k_norm"),
        *_fields(Matrix, "q k v o gate up down"),
        ("experts", POINTER(Experts)),
        *_fields(c_void_p, "k_pool v_pool"),
        ("window", c_int32),
    )


class Model(ctypes.Structure):
    _fields_ = (
        *_fields(c_int32, "num_layers hidden heads kv_heads head_dim intermediate vocab"),
        *_fields(c_int32, "num_slots kv_format"),
        ("activation_bits", c_int32 * len(INPUTS)),
        *_fields(c_float, "rms_eps attn_scale embed_scale residual_scale logit_scale"),
        ("whole_norms", c_int32),
        *_fields(POINTER(c_float), "rope_freqs final_norm"),
        *_fields(Matrix, "embed head"),
        ("layers", POINTER(Layer)),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        *_fields(c_int32, "num_tokens num_rows num_samples num_logprobs num_details"),
        *_fields(POINTER(c_int32), "input_ids positions out_slots qo_indptr kv_indptr kv_indices"),
        ("sample_tokens", POINTER(c_int32)),
        *((name, POINTER(_C_TYPES[dtype])) for name, dtype in SAMPLE_DTYPES.items()),
        *_fields(POINTER(c_int32), "suppress_indptr suppress_ids mask_rows"),
        ("masks", POINTER(c_uint32)),
        *_fields(POINTER(c_int32), "adjust_indptr adjust_ids"),
        *_fields(POINTER(c_float), "adjust_repeat adjust_add"),
        *_fields(POINTER(c_int32), "logprob_tokens logprob_targets"),
        *_fields(POINTER(c_int32), "detail_rows top_indptr detail_indptr detail_ids"),
        ("num_embeds", c_int32),
        ("embed_tokens", POINTER(c_int32)),
        ("embeds", POINTER(c_float)),
        ("share_prefixes", c_int32),
        ("next_ids", POINTER(c_int32)),
        *_fields(POINTER(c_float), "logprobs prompt_logprobs"),
        ("top_ids", POINTER(c_int32)),
        *_fields(POINTER(c_float), "top_logprobs id_logprobs"),
    )

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray], **numbers: int) -> "Batch":
        """The structure with these members, by name; others are 0 or NULL. Raises TypeError for an
        array of another dtype than C reads."""
        return cls(
            **numbers, **{n: pointer(array, _MEMBERS[n]._type_) for n, array in arrays.items()}
        )


_MEMBERS: dict[str, Any] = dict(Batch._fields_)  # type: ignore[arg-type]


class Trie(ctypes.Structure):
    _fields_ = (
        *_fields(c_int32, "num_nodes num_tokens vocab max_depth"),
        ("bytes", POINTER(c_uint8)),
        *_fields(POINTER(c_int32), "depths ends token_indptr token_ids"),
    )


class Dfa(ctypes.Structure):
    _fields_ = (
        *_fields(c_int32, "num_states num_classes"),
        ("transitions", POINTER(c_int32)),
        *_fields(POINTER(c_uint8), "byte_class token_ends"),
    )


_i32, _size, _text, _void = c_int32, ctypes.c_size_t, ctypes.c_char_p, c_void_p
_f32s, _i32s, _u8s, _i64 = POINTER(c_float), POINTER(c_int32), POINTER(c_uint8), c_int64
_matrix, _layer, _model, _batch = map(POINTER, (Matrix, Layer, Model, Batch))
_trie, _dfa = POINTER(Trie), POINTER(Dfa)

# name: (result, *arguments); engines and pools are opaque.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "srt_abi_version": (_i32,),
    "srt_last_error": (_text,),
    "srt_isa": (_text,),
    "srt_isa_available": (_i32, _text),
    "srt_isa_has_tiles": (_i32, _text),
    "srt_packed_bytes": (_size, _i32, _i32, _i32),
    "srt_pack": (_i32, _i32, _void, _i32, _i32, _i32s, _i32, _void),
    "srt_unpack_row": (_i32, _matrix, _i32, _f32s),
    "srt_engine_create": (_void, _model, _i32, _text),
    "srt_engine_destroy": (None, _void),
    "srt_engine_step": (_i32, _void, _batch),
    "srt_engine_profile": (None, _void, POINTER(c_double)),
    "srt_phase_name": (_text, _i32),
    "srt_engine_expert_counts": (None, _void, POINTER(_i64)),
    "srt_engine_growths": (_i64, _void),
    "srt_token_mask": (_i32, _trie, _dfa, _i32, _i32s, _i32, POINTER(c_uint32)),
    "srt_closing_tables": (_i32, _trie, _dfa, _u8s, _i32s, _i32s),
    "srt_closing_region": (_i32, _trie, _dfa, _u8s, _i32s, _i32, _i32, _i64, _i32s),
    "srt_pool_create": (_void, _i32, _text, _i32),
    "srt_pool_destroy": (None, _void),
    "srt_op_linear": (_i32, _void, _matrix, _f32s, _i32, _f32s),
    "srt_op_gate_up": (_i32, _void, _matrix, _matrix, _f32s, _i32, _f32s),
    "srt_op_attention": (_i32, _void, _model, _layer, _batch, _f32s, _f32s),
    "srt_op_rms_norm": (_i32, _void, _f32s, _f32s, _i32, _i32, c_float, _f32s),
    "srt_op_rope": (_i32, _void, _f32s, _i32s, _f32s, _i32, _i32, _i32),
    "srt_op_sample": (_i32, _void, _f32s, _i32, _batch),
    "srt_op_read": (ctypes.c_uint64, _void, _void, _size),
}


class Library:
    """The loaded library. `c` has every function of the header, by name and with its types."""

    def __init__(self, c: ctypes.CDLL) -> None:
        self.c = c

    def check(self, rc: int) -> None:
        """Raise the C side's error if a call returned -1."""
        if rc:
            raise self._error()

    def created(self, handle: int | None) -> int:
        """The engine or pool that a create call made; raises what the C side says if none."""
        if handle is None:
            raise self._error()
        return handle

    def isa(self) -> str:
        """The level that engines and pools use unless another is given. Raises ConfigError if the
        environment's SRT_ISA asks for one that is not among `available_isas`."""
        name: bytes | None = self.c.srt_isa()
        if name is None:
            why = self._error()
            raise ConfigError(f"SRT_ISA: {why}; they have {', '.join(self.available_isas())}")
        return name.decode()

    def available_isas(self) -> tuple[str, ...]:
        """The levels that this CPU runs, best first."""
        return tuple(isa for isa in ISAS if self.c.srt_isa_available(isa.encode()))

    def has_tiles(self, isa: str | None = None) -> bool:
        """Whether that level, by default `isa()`, wants quantised weights in tiles."""
        return bool(self.c.srt_isa_has_tiles(isa.encode() if isa else None))

    def packed_bytes(self, format: Format, n: int, k: int) -> int:
        """Bytes of a packed [n, k] matrix."""
        size: int = self.c.srt_packed_bytes(format, n, k)
        return size

    def pack(
        self,
        source: Source,
        data: np.ndarray,
        n: int,
        k: int,
        format: Format,
        row_order: np.ndarray | None = None,
        arena: "Arena | None" = None,
    ) -> np.ndarray:
        """The rows of `data` (any dtype, encoded as `source`), or those that `row_order` int32 [n]
        lists, as a packed [n, k] matrix: uint8, 64-byte aligned, from `arena` if given."""
        rows = data.nbytes // source.row_bytes(k)
        order = np.arange(n, dtype=np.int32) if row_order is None else row_order
        if len(order) != n or order.min(initial=0) < 0 or order.max(initial=-1) >= rows:
            raise ValueError(f"{n} rows cannot be taken in this order from {rows}")
        size = self.packed_bytes(format, n, k)
        out = huge_memory(size) if arena is None else arena.take(size)
        rows_at = pointer(order, c_int32)
        self.check(self.c.srt_pack(source, address(data), n, k, rows_at, format, address(out)))
        return out

    def _error(self) -> RuntimeError:
        message: bytes | None = self.c.srt_last_error()
        return RuntimeError((message or b"unknown error").decode(errors="replace"))


@cache
def load(path: Path = LIBRARY) -> Library:
    """The library at `path`, once per process. Raises NativeUnavailable."""
    if not path.exists():
        raise NativeUnavailable(
            f"{path} was not built: install again with a C++17 compiler, or run "
            "`python -m scheduler_proc.kernels.build` in a checkout"
        )
    try:
        c = ctypes.CDLL(str(path))
        _check_version(c, path)
        for name, (restype, *argtypes) in SIGNATURES.items():
            _declare(c, name, restype, argtypes)
    except (OSError, AttributeError) as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
    return Library(c)


def _check_version(c: ctypes.CDLL, path: Path) -> None:
    version = c.srt_abi_version()
    if version != ABI_VERSION:
        raise NativeUnavailable(
            f"{path} has ABI version {version}, not {ABI_VERSION}: it was built from other sources"
        )


def _declare(c: ctypes.CDLL, name: str, restype: Any, argtypes: Sequence[Any]) -> None:
    function = getattr(c, name)
    function.restype = restype
    function.argtypes = argtypes


def pointer(array: np.ndarray, ctype: type[C]) -> "ctypes._Pointer[C]":
    """A pointer to the first element of `array`, which must be C-contiguous and of that type."""
    if _C_TYPES.get(array.dtype) is not ctype:
        raise TypeError(f"an array of {array.dtype}, where C reads {_DTYPES[ctype]}")
    return ctypes.pointer(ctype.from_address(address(array)))


def address(array: np.ndarray) -> int:
    """Where `array`, which must be C-contiguous, begins: for void pointers."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of shape {array.shape} is not C-contiguous")
    return array.ctypes.data


class Arena:
    """Memory for packed weights, in large pieces: huge pages where the system grants them, because
    every step walks through all of it."""

    PIECE = 32 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._piece = np.empty(0, np.uint8)
        self._used = 0

    def take(self, size: int) -> np.ndarray:
        """`size` bytes, not initialised, that begin at a multiple of 64. Thread-safe."""
        with self._lock:
            if self._used + size > len(self._piece):
                self._piece = huge_memory(max(size, self.PIECE))
                self._used = 0
            start = self._used
            self._used = (start + size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            return self._piece[start : start + size]


_MADV_DONTNEED, _MADV_POPULATE_WRITE = 4, 23
_AT_ONCE = 1 << 24  # bytes
_LEFT_FREE = 1 << 30  # bytes


def huge_memory(size: int) -> np.ndarray:
    """`size` bytes of anonymous memory on huge pages if possible, touched only when used."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def let_go(mapped: np.ndarray) -> None:
    """Say that this part of a mapped file is not needed for now: it stays in the system's cache,
    not in this process's memory. Only whole pages of it, so that neighbours stay."""
    if not sys.platform.startswith("linux"):
        return
    start = -(-address(mapped) // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (address(mapped) + mapped.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > start:
        madvise = ctypes.CDLL(None).madvise
        madvise(c_void_p(start), ctypes.c_size_t(stop - start), _MADV_DONTNEED)


def populate(pages: "ref[np.ndarray]", parts: Iterable[range]) -> None:
    """Have the system find the pages of an array of `huge_memory` now, not when each is first
    written: those of `parts`, ranges of bytes. For a thread of its own, which gets the least
    priority.

    Leaves what is in it alone, also what others write meanwhile. Returns early where nobody holds
    the array any more, the system cannot do this (Linux before 5.14) or little memory is left.
    """
    if not sys.platform.startswith("linux"):
        return
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    # Not mmap.madvise, which keeps the interpreter's lock.
    madvise = ctypes.CDLL(None).madvise
    for part in parts:
        # Whole pages: the array begins with one.
        for start in range(part.start // mmap.PAGESIZE * mmap.PAGESIZE, part.stop, _AT_ONCE):
            memory = pages()
            if memory is None or memory_left() < _LEFT_FREE:
                return
            place = c_void_p(address(memory) + start)
            length = ctypes.c_size_t(min(_AT_ONCE, part.stop - start))
            if madvise(place, length, _MADV_POPULATE_WRITE) != 0:
                return
            del memory
