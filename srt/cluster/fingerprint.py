"""What tells one model on a machine from another: a fingerprint of its weights, its tokenizer and
the options that change what it computes.

Two servers with the same one compute the same keys and values of a prompt, wherever their files
lie and whatever they are called. Files of many gigabytes are not read whole: their size, their
header and 64 blocks stand for them.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from srt.args import ServerArgs
from srt.files.model_files import files_at, gguf_parts, resolve_model
from srt.wire.errors import ConfigError

# Options of a server on which the values depend that it computes.
_OPTIONS = (
    *("dtype", "kv_cache_dtype", "quantization", "exact", "activations", "max_model_len"),
    *("model_impl", "executor", "limit_media"),
)
_PARTS = ("the weights", "the tokenizer", "the options that change values")
_PART_BYTES = 8
NUM_BLOCKS, BLOCK_BYTES = 64, 4096
WHOLE_BYTES = 32 * 2**20  # a file up to this size is read whole
_HEADER_BYTES = 16 * 2**20  # of a GGUF file, which has its vocabulary there
_PART_HEADER_BYTES = 2**20  # of those of its parts that have only tensors
_MAX_FILES = 4096  # whose hashes are remembered


def value_options(args: ServerArgs) -> dict[str, Any]:
    """The options of a server on which the values depend that it computes."""
    return {name: getattr(args, name) for name in _OPTIONS}


def fingerprint_of_args(args: ServerArgs) -> str:
    """The fingerprint of the model that `args` name. Raises ConfigError if it is not there."""
    files = resolve_model(args.model, args.tokenizer)
    return fingerprint(files.path, files.text_path, value_options(args))


def fingerprint(path: Path, text_path: Path, options: Mapping[str, Any]) -> str:
    """The fingerprint of the model at `path`, with the tokenizer at `text_path`: for each of
    weights, tokenizer and options 16 hexadecimal digits. May take a second where files are large;
    those that have not changed since are not read again.

    Raises ConfigError for a file that cannot be read.
    """
    told = msgspec.json.encode(dict(options), order="deterministic")
    parts = _of_files(path), _of_files(text_path), blake2b(told, digest_size=_PART_BYTES).digest()
    return "-".join(part.hex() for part in parts)


def difference(mine: str, theirs: str) -> str:
    """What is not the same in two models with these fingerprints, in words; "" if nothing is."""
    ours, others = mine.split("-"), theirs.split("-")
    if len(ours) != len(others) or len(ours) != len(_PARTS):
        return "the form of fingerprints"
    parts = [part for part, *two in zip(_PARTS, ours, others, strict=True) if two[0] != two[1]]
    if parts[:2] == [*_PARTS[:2]]:  # as a rule they are in the same files
        parts[:2] = ["the model's files"]
    return ", ".join(parts)


def _of_files(path: Path) -> bytes:
    """Of a directory's files with their names, or a file that may be called anything."""
    digest = blake2b(digest_size=_PART_BYTES)
    try:
        for file in files_at(path):
            stat = file.stat()
            name = file.name if path.is_dir() else ""
            of_file = _of_file(str(file), stat.st_size, stat.st_mtime_ns, stat.st_ino)
            digest.update(msgspec.msgpack.encode((name, stat.st_size, of_file)))
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from error
    return digest.digest()


@lru_cache(maxsize=_MAX_FILES)
def _of_file(path: str, size: int, mtime_ns: int, inode: int) -> bytes:
    """Of what is in a file that had this size, time and inode when it was looked up."""
    digest = blake2b(digest_size=16)
    with Path(path).open("rb", buffering=0) as file:
        descriptor = file.fileno()
        if size <= WHOLE_BYTES:
            digest.update(_read(descriptor, 0, size))
            return digest.digest()
        digest.update(_read(descriptor, 0, _header_bytes(Path(path), descriptor)))
        for number in range(NUM_BLOCKS):
            start = number * (size - BLOCK_BYTES) // (NUM_BLOCKS - 1)
            digest.update(_read(descriptor, start, BLOCK_BYTES))
    return digest.digest()


def _header_bytes(path: Path, descriptor: int) -> int:
    """How much of the beginning of a large file describes the rest."""
    if path.suffix == ".safetensors":
        return min(8 + int.from_bytes(_read(descriptor, 0, 8), "little"), _HEADER_BYTES)
    is_first = gguf_parts(path)[0].name == path.name
    return _HEADER_BYTES if is_first else _PART_HEADER_BYTES


def _read(descriptor: int, start: int, num_bytes: int) -> bytes:
    """These bytes of a file, or as many of them as there are."""
    pieces = []
    while num_bytes and (piece := os.pread(descriptor, num_bytes, start)):
        pieces.append(piece)
        start, num_bytes = start + len(piece), num_bytes - len(piece)
    return b"".join(pieces)
