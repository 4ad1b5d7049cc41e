"""Weights in encodings that the native kernels read, where a GGUF file has another one.

Called by the packer. No value changes: blocks of Q5_0 become blocks of Q8_0 with the same scales,
those of all other types float32.
"""

import numpy as np

from scheduler_proc.kernels.library import Source
from scheduler_proc.models.checkpoint import F32, RawTensor, dequantise
from srt.files.gguf import BLOCK_TYPES

Q5_0 = 6
_Q5_0_BYTES = BLOCK_TYPES[Q5_0].num_bytes
# Values that are dequantised at a time: numpy needs several times their memory meanwhile.
_CHUNK_VALUES = 1 << 21


def for_kernels(raw: RawTensor) -> RawTensor:
    """The same values; `raw` itself if the kernels can read it."""
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
