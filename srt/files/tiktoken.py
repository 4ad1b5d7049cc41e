"""Reads tiktoken's files (`*.tiktoken`, `tiktoken.model`, some `tokenizer.model`) as the content of
a tokenizer.json, for `HFFiles`.

Such a file has tokens and their ranks, which are their ids and the order of merging: of all pairs
that make a token, the one of the lowest rank is merged first. How text is cut into words is written
in the code of each model, so the model's type decides it here; the special tokens are those that
tokenizer_config.json lists.

Format: openai/tiktoken, tiktoken/load.py.
"""

import base64
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from srt.files.gguf_tokens import (
    PRE_KINDS,
    byte_level_alphabet,
    check_lengths,
    merges_by_score,
)
from srt.files.spm import bos_before
from srt.wire.errors import ConfigError

_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
# The pre-tokenizer of each model type that comes with such a file. Moonlight, whose file is Kimi's,
# calls itself DeepSeek V3, which has none.
MODEL_TYPES = {
    "chatglm": "glm4",
    "dbrx": "dbrx",
    "deepseek_v3": "kimi-k2",
    "glm": "glm4",
    "glm4": "glm4",
    "gpt_oss": "gpt-4o",
    "kimi_k2": "kimi-k2",
    "kimi_linear": "kimi-k2",
    "llama": "llama-bpe",
    "qwen": "qwen2",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
}
_ALPHABET = {byte: character for character, byte in byte_level_alphabet().items()}


class _Added(Struct):
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class _Config(Struct):
    added_tokens_decoder: dict[int, _Added]


def is_tiktoken(data: bytes) -> bool:
    """Whether a `tokenizer.model` is tiktoken's: its first line is a token in base64 and a rank."""
    return _FIRST_LINE.match(data) is not None


def tiktoken_content(
    path: Path, data: bytes, model_type: str, config: dict[str, Any], bos: str | None
) -> dict[str, Any]:
    """What a tokenizer.json would hold for `data`, the bytes of `path`, of a model of `model_type`.

    `config` is tokenizer_config.json. `bos`, a special token, comes before prompts if models of
    this type want it. Raises ConfigError for files of other kinds, and for other models.
    """
    if model_type not in MODEL_TYPES:
        raise ConfigError(
            f"{path}: tiktoken's files are not supported for models of type {model_type!r}, only "
            f"for {', '.join(MODEL_TYPES)}: save the tokenizer as tokenizer.json"
        )
    kind = PRE_KINDS[MODEL_TYPES[model_type]]
    ranks, added = _ranks(path, data), _added_tokens(path, config)
    special = {token["content"]: token["id"] for token in added}
    check_lengths(path, ranks)
    if not (ranks.keys().isdisjoint(special) and set(ranks.values()).isdisjoint(special.values())):
        raise ConfigError(f"{path}: has a token or a rank that tokenizer_config.json has too")
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in kind.patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    has_bos = kind.add_bos and bos in special
    return {
        "version": "1.0",
        "model": {
            "type": "BPE",
            "vocab": ranks | special,  # where they must be to keep their ids
            "merges": merges_by_score({token: -rank for token, rank in ranks.items()}),
            "ignore_merges": True,  # a word that is a token becomes that token
        },
        "normalizer": {"type": "NFC"} if kind.nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*splits, byte_level | {"use_regex": False}],
        },
        "decoder": byte_level | {"use_regex": True},
        "post_processor": bos_before(bos, special[bos]) if bos is not None and has_bos else None,
        "added_tokens": added,
    }


def _ranks(path: Path, data: bytes) -> dict[str, int]:
    """The ranks by token, which is written in the alphabet of byte-level BPE."""
    ranks: dict[str, int] = {}
    lines = data.splitlines()
    line = b""
    try:
        for line in lines:
            token, rank = line.split()
            text = base64.b64decode(token, validate=True).decode("latin-1")
            ranks[text.translate(_ALPHABET)] = int(rank)
    except ValueError as error:
        reason = f"the line {line[:80]!r} is not a token in base64 and its rank"
        raise ConfigError(f"{path}: {reason} ({error})") from error
    missing = [byte for byte in range(256) if _ALPHABET[byte] not in ranks]
    if missing:
        raise ConfigError(f"{path}: no token is the byte 0x{missing[0]:02X}")
    if len(set(ranks.values())) < len(lines):
        raise ConfigError(f"{path}: a token or a rank comes twice")
    return ranks


def _added_tokens(path: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        found = msgspec.convert(config, _Config, str_keys=True).added_tokens_decoder
    except msgspec.ValidationError as error:
        where = path.parent / "tokenizer_config.json"
        raise ConfigError(f"{where}: {error}, and {path.name} needs it") from error
    return [{"id": i, **msgspec.structs.asdict(token)} for i, token in found.items()]
