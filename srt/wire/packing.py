"""Token ids and numbers as the bytes that are sent: little-endian, four bytes each."""

from struct import unpack_from
from typing import Any

import numpy as np


def pack_ids(ids: Any) -> bytes:
    """Token ids (a sequence or array of ints) as little-endian int32 bytes."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> np.ndarray:
    """The inverse of `pack_ids`: a read-only int32 array [n]."""
    return np.frombuffer(data, dtype="<i4")


def id_list(data: bytes) -> list[int]:
    """The ids that `pack_ids` has packed, as a list; for a few ids faster than an array."""
    return list(unpack_from(f"<{len(data) // 4}i", data))


def pack_floats(values: Any) -> bytes:
    """Numbers as little-endian float32 bytes; NaN stands for "no value"."""
    return np.asarray(values, dtype="<f4").tobytes()


def unpack_floats(data: bytes) -> np.ndarray:
    """The inverse of `pack_floats`: a read-only float32 array [n]."""
    return np.frombuffer(data, dtype="<f4")
