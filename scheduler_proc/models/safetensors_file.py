"""A safetensors file: shapes and bytes of its tensors, memory-mapped; torch only for who asks.

Format: huggingface/safetensors, README.md: the length of a header (8 bytes), the header as JSON,
then the tensors at the offsets that it names. The library checks the header.
"""

import mmap
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from srt.wire.errors import ConfigError

if TYPE_CHECKING:
    import torch

_LENGTH_BYTES = 8
_ALIGNMENT = 4  # of what the kernels read


class Stored(Struct):
    """What the header says of a tensor: its type by safetensors' name, its shape, and where its
    bytes begin and end after the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class SafetensorsFile:
    """`tensors` by their names in the file. Raises ConfigError for a file that is missing or
    malformed."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise ConfigError(f"{path} is missing")
        self._path = path
        try:
            safe_open(path, framework="numpy")
        except SafetensorError as error:
            raise ConfigError(f"{path}: not a readable safetensors file ({error})") from error
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = msgspec.json.decode(data[_LENGTH_BYTES:start], type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        self.tensors = {n: msgspec.json.decode(raw, type=Stored) for n, raw in header.items()}
        self._data = np.frombuffer(data, np.uint8)[start:]

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return len(self._data)

    def data(self, name: str, part: int | None = None) -> np.ndarray:
        """The bytes of the tensor, or of element `part` of its first dimension: uint8 [nbytes]."""
        start, stop = self.tensors[name].data_offsets
        data = self._data[start:stop]
        if part is not None:
            size = len(data) // self.tensors[name].shape[0]
            data = data[part * size : (part + 1) * size]
        return data if data.ctypes.data % _ALIGNMENT == 0 else data.copy()

    def tensor(self, name: str) -> "torch.Tensor":
        """All of it, on the CPU."""
        found: torch.Tensor = self._torch.get_tensor(name)
        return found

    def rows(self, name: str, start: int, stop: int, part: int | None = None) -> "torch.Tensor":
        """Rows [start, stop) of its first dimension, or of the second one of its element `part`, on
        the CPU."""
        whole = self._torch.get_slice(name)
        found: torch.Tensor = (
            whole[start:stop] if part is None else whole[part : part + 1, start:stop][0]
        )
        return found

    @cached_property
    def _torch(self) -> Any:
        from safetensors import safe_open

        return safe_open(self._path, framework="pt")  # imports torch
