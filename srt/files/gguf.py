"""A lean reader for GGUF files: metadata as Python values, tensors as memory-mapped bytes.

The `gguf` package's reader takes about five seconds for a 49k-token vocabulary (one numpy view
per string); every part reads the file at start-up, so this one parses it in a twentieth of a
second. Tests hold it against the package. Format: ggml-org/ggml, docs/gguf.md, version 2 and 3.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from srt.files.model_files import gguf_parts, pointer_advice, require_file
from srt.wire.errors import ConfigError

# Metadata value type -> struct code.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9


class BlockType(NamedTuple):
    """A ggml type: its values lie in blocks of `num_values`, each of `num_bytes` bytes."""

    name: str
    num_values: int
    num_bytes: int


def _block_types(num_values: int, sizes: dict[int, tuple[str, int]]) -> dict[int, BlockType]:
    return {i: BlockType(name, num_values, size) for i, (name, size) in sizes.items()}


# By ggml's id.
BLOCK_TYPES = {
    **_block_types(1, {0: ("F32", 4), 1: ("F16", 2), 30: ("BF16", 2)}),
    **_block_types(
        32,
        {
            2: ("Q4_0", 18), 3: ("Q4_1", 20), 6: ("Q5_0", 22), 7: ("Q5_1", 24), 8: ("Q8_0", 34),
            20: ("IQ4_NL", 18),
        },
    ),
    **_block_types(
        256,
        {
            10: ("Q2_K", 84), 11: ("Q3_K", 110), 12: ("Q4_K", 144), 13: ("Q5_K", 176),
            14: ("Q6_K", 210), 16: ("IQ2_XXS", 66), 17: ("IQ2_XS", 74), 18: ("IQ3_XXS", 98),
            19: ("IQ1_S", 50), 21: ("IQ3_S", 110), 22: ("IQ2_S", 82), 23: ("IQ4_XS", 136),
            29: ("IQ1_M", 56), 34: ("TQ1_0", 54), 35: ("TQ2_0", 66),
        },
    ),
}  # fmt: skip
# Types that weights are not read from, or that ggml has dropped.
_OTHER_TYPES = {
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


class GGUFTensor(NamedTuple):
    """One tensor: row-major `shape` (slowest first), ggml type id, raw block bytes."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    data: memoryview  # memory-mapped; an array of it would load numpy in every process


def open_gguf(path: Path) -> "GGUFFile":
    """The model at `path`: the first file has its metadata, and of several files (gguf-split) each
    has some of the tensors. Raises ConfigError if one is missing, or not of this model."""
    first, *others = gguf_parts(path)
    model = GGUFFile(first)
    count = model.metadata.get("split.count", 0)
    if count not in (0, 1, 1 + len(others)):
        raise ConfigError(
            f"{path} is the first of {count} files, which must be named *-00001-of-NNNNN.gguf"
        )
    for number, other in enumerate(others, start=1):
        part = GGUFFile(other)
        if part.metadata.get("split.no") != number or part.tensors.keys() & model.tensors.keys():
            raise ConfigError(f"{other} is not part {number + 1} of the model in {first}")
        model.tensors |= part.tensors
    wanted = model.metadata.get("split.tensors.count", len(model.tensors))
    if wanted != len(model.tensors):
        raise ConfigError(f"{first}: {wanted} tensors in all its files, not {len(model.tensors)}")
    return model


class GGUFFile:
    """One file. `metadata` maps keys to values; `tensors` maps names to GGUFTensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pos = 0
        require_file(path, None)
        try:
            with open(path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata, self.tensors = self._parse()
        except (struct.error, KeyError, ValueError, OSError, RecursionError) as error:
            raise ConfigError(f"{path}: not a readable GGUF file ({error})") from error

    def _parse(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        if self._map[:4] != b"GGUF":
            what = f"it begins with {self._map[:4]!r}, not b'GGUF'"
            advice = pointer_advice(self._map[:64])
            raise ConfigError(f"{self.path}: not a GGUF file: {what}{advice}")
        self._pos = 4
        version, num_tensors, num_keys = self._unpack("IQQ")
        if version not in (2, 3):
            raise ConfigError(f"{self.path}: GGUF version {version} is not supported (2 and 3 are)")
        metadata = {self._string(): self._value(self._unpack("I")[0]) for _ in range(num_keys)}
        headers = [self._tensor_header() for _ in range(num_tensors)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise ValueError(f"general.alignment is {align!r}")
        base = (self._pos + align - 1) // align * align
        buffer = memoryview(self._map)
        tensors = {}
        for name, shape, ggml_type, offset in headers:
            size = _num_bytes(name, shape, ggml_type)
            data = buffer[base + offset : base + offset + size]
            if len(data) != size:
                raise ValueError(f"tensor {name} is cut short")
            tensors[name] = GGUFTensor(name, shape, ggml_type, data)
        return metadata, tensors

    def _unpack(self, fmt: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + fmt, self._map, self._pos)
        self._pos += struct.calcsize("<" + fmt)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        start = self._pos
        self._pos += length
        if self._pos > len(self._map):
            raise ValueError("string beyond the end")
        return self._map[start : self._pos].decode("utf-8")

    def _strings(self, count: int) -> list[str]:
        """A vocabulary's strings are the bulk of the metadata."""
        data, pos, size, strings = self._map, self._pos, len(self._map), []
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = pos + 8
            pos = start + length_at(data, pos)[0]
            if pos > size:
                raise ValueError("string beyond the end")
            strings.append(data[start:pos])
        self._pos = pos
        return [string.decode() for string in strings]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(_SCALARS[kind])[0]
        item_kind, count = self._unpack("IQ")
        if item_kind == _STRING:
            return self._strings(count)
        if item_kind == _ARRAY:
            return [self._value(_ARRAY) for _ in range(count)]
        return list(self._unpack(f"{count}{_SCALARS[item_kind]}"))

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (num_dims,) = self._unpack("I")
        dims = self._unpack(f"{num_dims}Q")
        ggml_type, offset = self._unpack("IQ")
        return name, tuple(reversed(dims)), ggml_type, offset


def _num_bytes(name: str, shape: tuple[int, ...], ggml_type: int) -> int:
    if ggml_type not in BLOCK_TYPES:
        kind = _OTHER_TYPES.get(ggml_type, ggml_type)
        raise ValueError(f"tensor {name} has the unsupported ggml type {kind}")
    if not shape or 0 in shape:
        raise ValueError(f"tensor {name} is empty: its shape is {list(shape)}")
    kind, num_values, block_bytes = BLOCK_TYPES[ggml_type]
    if shape[-1] % num_values:
        raise ValueError(f"tensor {name} has rows of {shape[-1]} values in blocks of {kind}")
    return math.prod(shape) // num_values * block_bytes
