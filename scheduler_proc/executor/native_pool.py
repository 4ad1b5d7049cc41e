"""The native executor's KV pool: its formats, its memory, and what a token takes of it."""

from enum import IntEnum
from threading import Thread
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from scheduler_proc.kernels.library import huge_memory, populate
from srt.machine import cpu_vendor
from srt.wire.errors import ConfigError

# The first of the pool, whose memory is taken while the model is loaded: a few prompts.
_READY_SLOTS = 4096
_LINE = 64  # bytes


class PoolFormat(IntEnum):
    """What KV pools hold (of srt_format)."""

    F32 = 0
    F16 = 1
    I16 = 11


class KVFormat(NamedTuple):
    """Elements of a pool, and the bytes of the scale that each head of a token has."""

    format: PoolFormat
    dtype: type[np.generic]
    scale_bytes: int = 0


KV_DTYPES = {
    "float16": KVFormat(PoolFormat.F16, np.float16),
    "float32": KVFormat(PoolFormat.F32, np.float32),
    "int16": KVFormat(PoolFormat.I16, np.int16, 4),
}


def pool_dtype(name: str, exact: bool, integers: bool, isa: str) -> str:
    """What --kv-cache-dtype `name` means at a level, for a model that `integers` suit or not.

    Raises ConfigError for what is none.
    """
    if name == "auto":
        if exact:
            return "float32"
        return "int16" if integers and _has_fast_integers(isa) else "float16"
    if name not in KV_DTYPES:
        raise ConfigError(f"KV dtype {name!r} is not one of auto, {', '.join(KV_DTYPES)}")
    if exact and name == "int16":
        raise ConfigError("--kv-cache-dtype int16: with --exact the pool is of floats")
    return name


def _has_fast_integers(isa: str) -> bool:
    """Whether attention over 16-bit integers is the faster one, as measured. With AVX-512 that
    depends on the processor: on one of Intel's decoding lost by it what prompts won."""
    return isa == "avx2" or (isa == "avx512" and cpu_vendor() == "AuthenticAMD")


class KVPool:
    """[layers, K and V], each of [slots, kv_heads, head_dim] elements and then, if the format has
    them, [slots, kv_heads] scales; in whole lines of the cache.

    Huge pages, where the system grants them on request: slots of a request may lie anywhere. Pages
    are taken as the pool fills, a little ahead of it in a thread of the lowest priority, so that no
    step waits for them: `use` is told how far the slots are used.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        layers, parts, slots, kv_heads, head_dim = shape
        self.format, element, scale_bytes = KV_DTYPES[dtype]
        row = kv_heads * head_dim * np.dtype(element).itemsize  # of a token, K or V
        elements, scales = slots * row, slots * kv_heads * scale_bytes
        stride = -(-(elements + scales) // _LINE) * _LINE
        self.num_bytes = layers * parts * stride
        try:
            self._memory = huge_memory(self.num_bytes)
        except OSError as error:
            size = f"{slots} tokens takes {self.num_bytes / 2**30:.1f} GiB"
            raise ConfigError(f"a KV pool of {size}, which cannot be had: {error}") from error
        part = self._memory.reshape(layers, parts, stride)
        self.elements = part[..., :elements].view(element).reshape(shape)
        self.scales: np.ndarray | None = None
        if scale_bytes:
            self.scales = (
                part[..., elements : elements + scales].view(np.float32).reshape(shape[:-1])
            )
        self._ready = 0  # slots whose pages have been asked for
        self.use(_READY_SLOTS // 2)

    def use(self, stop: int) -> None:
        """Slots below `stop` are about to be written: ask for the pages of twice as many. They are
        the lowest that are free, so pages beyond are not needed before that. Returns at once."""
        begin, slots = self._ready, self.elements.shape[2]
        if 2 * stop <= begin or begin == slots:
            return
        self._ready = min(slots, max(2 * stop, 2 * begin))
        places = self._places(begin, self._ready)
        Thread(
            target=populate, args=(ref(self._memory), places), name="kv-pages", daemon=True
        ).start()

    def _places(self, begin: int, stop: int) -> list[range]:
        """The bytes of these slots' elements and scales, in all layers."""
        return [
            range(start + begin * size, start + stop * size)
            for part in (self.elements, self.scales)
            if part is not None
            for size in (part[0, 0, 0].nbytes,)
            for start in (
                each.ctypes.data - self._memory.ctypes.data
                for each in part.reshape(-1, *part.shape[2:])
            )
        ]

    def attach(self, layers: Any) -> None:
        """Give each layer the address of its part."""
        for layer, part in zip(layers, self.elements, strict=True):
            layer.k_pool, layer.v_pool = part[0].ctypes.data, part[1].ctypes.data
