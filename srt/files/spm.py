"""Reads SentencePiece's `tokenizer.model` as the content of a tokenizer.json, for `HFFiles`.

Differences from SentencePiece, as with GGUF files: control pieces are found in a text, a space is
put after control and user-defined pieces as before a text, and where extra white space is removed,
it is also removed next to such pieces. In unigram models, the text "<0x41>" is that byte if one of
its characters is not a piece. With a charsmap, the library maps clusters of characters: marks that
combine with a changed character may be lost, and half-width kana keep their marks apart.

Format: google/sentencepiece, src/sentencepiece_model.proto.
"""

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from srt.files.gguf_tokens import SPM_SPACE, TokenType, check_lengths, merges_by_score
from srt.wire.errors import ConfigError

_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {_UNIGRAM: "unigram", _BPE: "bpe", 3: "word", 4: "char"}
# A score below that of any splitting of a text: for pieces that are only found literally.
_NEVER = -1e9


class _ModelPiece(NamedTuple):
    text: str
    score: float
    kind: int


def spm_content(path: Path, data: bytes) -> dict[str, Any]:
    """What a tokenizer.json would hold for the model in `data`, the bytes of `path`.

    Raises ConfigError for other files, and for kinds of model other than unigram and BPE.
    """
    try:
        message = _fields(data)
        pieces = [_piece(_fields(piece)) for piece in message.get(1, [])]
        trainer, normalizer = (_fields(message.get(i, [b""])[-1]) for i in (2, 3))
        kind = _last(trainer, 3, _UNIGRAM)
        if kind not in (_UNIGRAM, _BPE):
            name = _MODEL_TYPES.get(kind, kind)
            raise ConfigError(f"{path}: model type {name!r} is not supported (unigram and bpe are)")
        if _last(trainer, 24, 0):
            raise ConfigError(f"{path}: treat_whitespace_as_suffix is not supported")
        if not _last(normalizer, 5, 1):
            raise ConfigError(f"{path}: escape_whitespaces = false is not supported")
        return _content(path, pieces, kind, trainer, normalizer)
    except (ValueError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise ConfigError(f"{path}: not a SentencePiece model ({error})") from error


def _content(
    path: Path,
    pieces: list[_ModelPiece],
    kind: int,
    trainer: dict[int, list[Any]],
    normalizer: dict[int, list[Any]],
) -> dict[str, Any]:
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    if not ids or len(ids) < len(pieces):
        raise ConfigError(f"{path}: has no pieces, or the same piece twice")
    check_lengths(path, ids)
    unknown = next((i for i, p in enumerate(pieces) if p.kind == TokenType.UNKNOWN), None)
    has_bytes, has_prefix = bool(_last(trainer, 35, 0)), bool(_last(normalizer, 3, 1))
    bos_id = _last(trainer, 41, 1)
    model: dict[str, Any]
    if kind == _BPE:
        scores = {p.text: p.score for p in pieces if p.kind == TokenType.NORMAL}
        name = None if unknown is None else pieces[unknown].text
        model = {"type": "BPE", "vocab": ids, "merges": merges_by_score(scores), "unk_token": name}
        model["fuse_unk"] = True
    else:
        normal = TokenType.NORMAL
        vocab = [(p.text, p.score if p.kind == normal else _NEVER) for p in pieces]
        model = {"type": "Unigram", "vocab": vocab, "unk_id": unknown}
    return {
        "version": "1.0",
        "model": model | {"byte_fallback": has_bytes},
        "normalizer": _sequence("normalizers", _normalizers(normalizer, has_prefix)),
        "decoder": _sequence("decoders", _decoders(has_bytes, has_prefix)),
        "post_processor": bos_before(pieces[bos_id].text, bos_id)
        if 0 <= bos_id < len(pieces)
        else None,
        "added_tokens": [
            _added(i, piece) for i, piece in enumerate(pieces) if piece.kind in (2, 3, 4)
        ],
    }


def _sequence(key: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", key: steps}


def _normalizers(normalizer: dict[int, list[Any]], has_prefix: bool) -> list[dict[str, Any]]:
    steps = []
    charsmap: bytes = normalizer.get(2, [b""])[-1]
    if charsmap:
        text = base64.b64encode(charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": text})
    if _last(normalizer, 4, 1):
        steps += [_replace({"Regex": r"\A +| +\z"}, ""), _replace({"Regex": " {2,}"}, " ")]
    if has_prefix:
        steps.append({"type": "Prepend", "prepend": SPM_SPACE})
    return [*steps, _replace({"String": " "}, SPM_SPACE)]


def _decoders(has_bytes: bool, has_prefix: bool) -> list[dict[str, Any]]:
    steps = [_replace({"String": SPM_SPACE}, " "), {"type": "Fuse"}]
    if has_bytes:
        steps.insert(1, {"type": "ByteFallback"})
    if has_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def bos_before(name: str, bos_id: int) -> dict[str, Any]:
    """The post-processor that puts the token `name` before a prompt, as in llama.cpp, unless
    tokenizer_config.json says otherwise."""
    bos, text = (
        {"SpecialToken": {"id": name, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    special = {"id": name, "ids": [bos_id], "tokens": [name]}
    return {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text],
        "special_tokens": {name: special},
    }


def _added(i: int, piece: _ModelPiece) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = piece.kind != TokenType.USER_DEFINED
    return {"id": i, "content": piece.text, "special": special, **flags}


def _piece(message: dict[int, list[Any]]) -> _ModelPiece:
    text = message[1][-1].decode() if 1 in message else ""
    score = struct.unpack("<f", message[2][-1])[0] if 2 in message else 0.0
    kind = _last(message, 3, TokenType.NORMAL)
    # Found in the given text, not in the normalised one.
    found = text.replace(SPM_SPACE, " ") if kind == TokenType.USER_DEFINED else text
    return _ModelPiece(found, score, kind)


# ---- Protocol buffers --------------------------------------------------------------------------


def _last(message: dict[int, list[Any]], field: int, default: int) -> int:
    """The field's integer, which may be negative."""
    value: int = message.get(field, [default])[-1]
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The values of a message by field number: integers, or bytes where it has bytes or floats."""
    found: dict[int, list[Any]] = {}
    for number, value in _each_field(data):
        found.setdefault(number, []).append(value)
    return found


def _each_field(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of wire type {wire}")
        if at + size > len(data):
            raise ValueError("it ends too early")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")
