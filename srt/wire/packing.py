"""Token ids and numbers as the bytes that are sent: little-endian, four bytes each.

numpy takes a tenth of a second to load, and processes that only pass lists on do without it.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ITEM_BYTES = 4


def num_packed(data: bytes | bytearray) -> int:
    """The number of ids or numbers in packed data."""
    return len(data) // ITEM_BYTES


def packed_size(count: int) -> int:
    """The number of bytes that `count` ids or numbers take: the position after these in packed
    data."""
    return ITEM_BYTES * count


def packed_slice(start: int, stop: int) -> slice:
    """The bytes of the ids or numbers from `start` up to `stop` in packed data."""
    return slice(ITEM_BYTES * start, ITEM_BYTES * stop)


def pack_ids(ids: Any) -> bytes:
    """Token ids (a sequence or array of ints) as little-endian int32 bytes. Raises ValueError for
    what is not int32."""
    return _packed(ids, "i")


def pack_floats(values: Any) -> bytes:
    """Numbers as little-endian float32 bytes; NaN stands for "no value"."""
    return _packed(values, "f")


def id_list(data: bytes) -> list[int]:
    """The ids that `pack_ids` has packed."""
    return list(struct.unpack_from(f"<{num_packed(data)}i", data))


def float_list(data: bytes) -> list[float]:
    """The numbers that `pack_floats` has packed."""
    return list(struct.unpack_from(f"<{num_packed(data)}f", data))


def unpack_ids(data: bytes) -> "np.ndarray":
    """The ids that `pack_ids` has packed: a read-only int32 array [n]."""
    import numpy as np

    return np.frombuffer(data, dtype="<i4")


def unpack_floats(data: bytes) -> "np.ndarray":
    """The numbers that `pack_floats` has packed: a read-only float32 array [n]."""
    import numpy as np

    return np.frombuffer(data, dtype="<f4")


def _packed(values: Any, code: str) -> bytes:
    if hasattr(values, "astype"):
        packed: bytes = values.astype(f"<{code}4").tobytes()
        return packed
    return _of_list(values, code)


def _of_list(values: Sequence[Any], code: str) -> bytes:
    try:
        return struct.pack(f"<{len(values)}{code}", *values)
    except struct.error as error:
        raise ValueError(str(error)) from None
