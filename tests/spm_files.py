"""Tokenizers of SentencePiece's kind for tests: pieces and scores learned here, written as GGUF
files, as `tokenizer.model`, and in the form of transformers' tokenizer classes.
"""

import struct
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from srt.files.gguf_tokens import SPM_SPACE, TokenType
from srt.files.model_files import ModelFiles

CORPUS = [
    "the cat sat on the mat, and the hat of the cat was on the mat as well",
    'a table of numbers: 12, 345, 6789; {"name": "cat", "size": 12, "is": true}',
    "naïve café, größer als der Straße, él está aquí",
    "これは猫です。猫はマットの上にいます。",
    "def main(argument):\n    return argument + 1\n        # two more spaces",
    "if (a == b) { return a; } else { return b; }",
]
CONTROL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# More tokens of all test models of this kind: for turns of a chat, and a user-defined one.
TURNS = ["<|user|>", "<|end|>"]
USER_DEFINED = [f"<a{SPM_SPACE}tool>"]


@cache
def learned_pieces() -> list[str]:
    """The pieces of a BPE over characters in the order of learning, then the characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    vocab = tokenizer.get_vocab()
    characters = sorted(piece for piece in vocab if len(piece) == 1)
    merged = sorted((piece for piece in vocab if len(piece) > 1), key=vocab.__getitem__)
    return [*merged, SPM_SPACE * 2, SPM_SPACE * 4, *characters]


def pieces_and_types() -> tuple[list[str], list[int]]:
    """All tokens and their types, by id."""
    kinds = [
        (["<unk>"], TokenType.UNKNOWN),
        (CONTROL[1:], TokenType.CONTROL),
        (BYTES, TokenType.BYTE),
        (learned_pieces(), TokenType.NORMAL),
        (TURNS, TokenType.CONTROL),
        (USER_DEFINED, TokenType.USER_DEFINED),
    ]
    tokens = [token for group, _ in kinds for token in group]
    return tokens, [kind for group, kind in kinds for _ in group]


def scores() -> list[float]:
    """Scores by id: 0 for tokens that are not learned; the earlier learned, the higher."""
    first, count = len(CONTROL) + len(BYTES), len(learned_pieces())
    learned = [float(-i) for i in range(count)]
    return [0.0] * first + learned + [0.0] * len(TURNS + USER_DEFINED)


def spm_model() -> bytes:
    """A `tokenizer.model` with this tokenizer, as SentencePiece writes it."""
    tokens, types = pieces_and_types()
    pieces = [
        message((1, token.encode()), (2, score), (3, int(kind)))
        for token, kind, score in zip(tokens, types, scores(), strict=True)
    ]
    trainer, normalizer = message((3, 2), (35, 1)), message((4, 0))  # BPE with bytes; no stripping
    return message(*((1, piece) for piece in pieces), (2, trainer), (3, normalizer))


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    """A message of numbers and bytes by field number, in the format of protocol buffers."""
    data = b""
    for number, value in fields:
        if isinstance(value, float):
            data += _varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            data += _varint(number << 3) + _varint(value)
        else:
            data += _varint(number << 3 | 2) + _varint(len(value)) + value
    return data


def _varint(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def write_spm_gguf(
    path: Path,
    arch: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    writer: gguf.GGUFWriter | None = None,
    **keys: Any,
) -> ModelFiles:
    """A GGUF file of `arch` with this tokenizer. `keys` add to tokenizer.ggml.* or replace it:
    booleans, integers, texts, or lists."""
    writer = writer or gguf.GGUFWriter(path, arch)
    writer.add_context_length(256)
    add_spm_tokenizer(writer, **keys)
    for name, array in (tensors or {"output_norm.weight": np.ones(8, np.float32)}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles(path.stem, "gguf", path)


def add_spm_tokenizer(writer: gguf.GGUFWriter, **keys: Any) -> None:
    """Write this tokenizer's metadata."""
    tokens, types = pieces_and_types()
    content: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [int(kind) for kind in types],
        "scores": scores(),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    for key, value in {**content, **keys}.items():
        if value is not None:
            _add(writer, f"tokenizer.ggml.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
    add: Any = kinds.get(type(value), writer.add_array)
    add(key, value)
