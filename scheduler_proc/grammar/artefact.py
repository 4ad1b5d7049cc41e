"""The file of a compiled grammar: one format for all back ends, read by memory mapping.

The compile worker writes it; the scheduler maps it, so that replicas share the memory. Layout: a
fixed head, a msgpack header, then raw arrays, each at a multiple of 64 bytes. Everything in it is
checked before it is used, by a checksum as well, so that a damaged file is an error and never a
wrong mask.
"""

import ctypes
import errno
import mmap
import os
import struct
import weakref
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from scheduler_proc.grammar.base import GrammarError
from srt.machine import private

FORMAT_VERSION = 3  # of the file and of what the back ends put into it
MAX_BYTES = 256 * 2**20  # of one artefact
_MAGIC = b"srtgramr"
_HEAD = struct.Struct("<8sIIQI4x")  # magic, version, header bytes, file bytes, checksum of the rest
_ALIGNMENT = 64
# Errors of a process or machine that has no more of something: the file is as good as before.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")


class ArtefactError(GrammarError):
    """A file that is missing or not what was written: made again, it may be good."""


class _Array(Struct, frozen=True, array_like=True):
    """Where an array lies: `offset` bytes after the header's (aligned) end."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(Struct, frozen=True, array_like=True):
    backend: str
    facts: dict[str, Any]
    arrays: list[_Array]
    completion: list[int] | None


class Artefact(NamedTuple):
    """What a back end stored. The arrays are read-only; if read from a file, they are mapped. The
    `completion` is a whole output as tokens, if one has been found; automata find their own."""

    backend: str
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]
    completion: list[int] | None = None


def write_artefact(path: Path, artefact: Artefact) -> int:
    """Write a new file, and return its size in bytes.

    Raises GrammarError if it would be above MAX_BYTES, FileExistsError if there is one already.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in artefact.arrays.items()}
    table, num_bytes = _table(arrays)
    header = msgspec.msgpack.encode(
        _Header(artefact.backend, artefact.facts, table, artefact.completion)
    )
    start = _aligned(_HEAD.size + len(header))
    size = start + num_bytes
    if size > MAX_BYTES:
        limit = f"the compiled grammar takes {size} bytes, above the limit of {MAX_BYTES}"
        raise GrammarError(limit)
    content = np.zeros(size, np.uint8)
    content[_HEAD.size : _HEAD.size + len(header)] = np.frombuffer(header, np.uint8)
    for entry in table:
        _copy(arrays[entry.name], content[start + entry.offset :])
    checksum = zlib.crc32(content[_HEAD.size :].data)
    head = _HEAD.pack(_MAGIC, FORMAT_VERSION, len(header), size, checksum)
    content[: _HEAD.size] = np.frombuffer(head, np.uint8)
    with open(path, "xb", opener=private) as file:
        file.write(content.data)
    return size


def read_artefact(path: Path) -> Artefact:
    """Map a file. Raises ArtefactError if it is missing or not what was written, OSError if this
    process can have no further file or memory now."""
    try:
        content = _mapped_file(path)
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        why = error.strerror or error  # without the path, which users may see
        raise ArtefactError(f"the compiled grammar {path.name} cannot be read: {why}") from None
    header, start = _checked_header(content, path.name)
    try:
        arrays = {array.name: _mapped(content[start:], array) for array in header.arrays}
    except ValueError as error:
        raise _damaged(path.name, str(error)) from None
    return Artefact(header.backend, header.facts, arrays, header.completion)


def _mapped_file(path: Path) -> np.ndarray:
    """The bytes of a file, read-only, mapped for as long as the array or a view of it lives. No
    descriptor stays open with them, as one does with `mmap` and `np.memmap`: files that a process
    may have open are far fewer than maps."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return np.frombuffer(memoryview(memory).toreadonly(), np.uint8)


def _table(arrays: dict[str, np.ndarray]) -> tuple[list[_Array], int]:
    """The places of the arrays, one after the other, and the bytes that they take together."""
    table, end = [], 0
    for name, array in arrays.items():
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"array {name} has dtype {array.dtype}")
        offset = _aligned(end)
        table.append(_Array(name, array.dtype.str, array.shape, offset))
        end = offset + array.nbytes
    return table, end


def _copy(array: np.ndarray, place: np.ndarray) -> None:
    place[: array.nbytes] = array.reshape(-1).view(np.uint8)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _checked_header(content: np.ndarray, name: str) -> tuple[_Header, int]:
    """The header, and where the arrays begin."""
    if len(content) < _HEAD.size:
        raise _damaged(name, "it is too short")
    magic, version, length, size, checksum = _HEAD.unpack(content[: _HEAD.size].tobytes())
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise _damaged(name, "it is of another format")
    if size != len(content) or length > size - _HEAD.size:
        raise _damaged(name, f"it has {len(content)} bytes and says {size}")
    if zlib.crc32(content[_HEAD.size :].data) != checksum:
        raise _damaged(name, "its checksum is wrong")
    end = _HEAD.size + length
    try:
        header = msgspec.msgpack.decode(content[_HEAD.size : end].tobytes(), type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(name, f"its header does not decode ({error})") from None
    return header, _aligned(end)


def _mapped(content: np.ndarray, array: _Array) -> np.ndarray:
    """The array as a view of `content`. Raises ValueError if it does not lie in it."""
    if array.dtype not in _DTYPES:
        raise ValueError(f"array {array.name} has dtype {array.dtype}")
    if any(n < 0 for n in array.shape) or array.offset < 0 or array.offset % _ALIGNMENT:
        raise ValueError(f"array {array.name} has no valid place")
    dtype, count = np.dtype(array.dtype), 1
    for n in array.shape:
        count *= n
    end = array.offset + count * dtype.itemsize
    if end > len(content):
        raise ValueError(f"array {array.name} ends after the file")
    return content[array.offset : end].view(dtype).reshape(array.shape)


def _damaged(name: str, why: str) -> ArtefactError:
    return ArtefactError(f"the compiled grammar {name} is damaged: {why}")
