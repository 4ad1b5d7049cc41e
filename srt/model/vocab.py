"""What every process must know of a model's vocabulary: the bytes of each id, special and EOS ids.

The tokenizer, the scheduler (grammars, limits) and the detokenizer each load one `Vocab`; it needs
neither torch nor a tokenizer library. Invariant: `token_bytes` has one entry per embedding row,
and joining the entries of a sequence of ids gives the UTF-8 bytes of its text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from srt.errors import ConfigError
from srt.model.files import ModelFiles
from srt.model.gguf_file import GGUFFile
from srt.model.hf_files import HFFiles, token_text

_GGUF_UNKNOWN, _GGUF_CONTROL, _GGUF_USER_DEFINED, _GGUF_UNUSED = 2, 3, 4, 5
_GGUF_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPM_SPACE = "\u2581"
_SPM_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPM_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip"}


@dataclass(frozen=True)
class Vocab:
    """A model's vocabulary and the facts of its configuration that decide about text.

    `eos_ids[0]` is the tokenizer's own EOS token. `add_bos` says whether prompts start with
    `bos_id`. Ids that no token stands for (padding rows of the embedding) have no bytes.
    """

    model_name: str
    token_bytes: list[bytes]
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    context_len: int
    chat_template: str | None

    @property
    def vocab_size(self) -> int:
        """The number of embedding rows: every valid id is below it."""
        return len(self.token_bytes)

    def pieces(self, skip_special_tokens: bool) -> list[bytes]:
        """The bytes of each id, with nothing for special tokens when they are skipped."""
        if not skip_special_tokens:
            return self.token_bytes
        hidden = self.special_ids
        return [b"" if i in hidden else data for i, data in enumerate(self.token_bytes)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        hidden: frozenset[int] = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes[i] for i in ids if i not in hidden)
        return data.decode("utf-8", errors="replace")


def load_vocab(files: ModelFiles) -> Vocab:
    """Read the vocabulary of a model. Raises ConfigError for kinds that are not supported."""
    if files.kind == "gguf":
        return _from_gguf(files.name, GGUFFile(files.path))
    return _from_hf(files.name, HFFiles(files.path))


def byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE tokens, as in GPT-2.

    Printable Latin-1 stands for itself; the other bytes follow from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:  # not written in the alphabet: it stands for itself
        return token.encode()


def _spm_bytes(token: str) -> bytes:
    byte = _SPM_BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPM_SPACE, " ").encode()


# ---- GGUF ------------------------------------------------------------------------------------


def _from_gguf(name: str, file: GGUFFile) -> Vocab:
    meta = file.metadata
    model = gguf_value(file, "tokenizer.ggml.model")
    if model != "gpt2":
        raise ConfigError(
            f"{file.path}: tokenizer {model!r} is not supported (GGUF files with 'gpt2' are)"
        )
    tokens: list[str] = gguf_value(file, "tokenizer.ggml.tokens")
    arch = gguf_value(file, "general.architecture")
    types: list[int] = meta.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    embedding = file.tensors.get("token_embd.weight")
    eos = [meta.get(f"tokenizer.ggml.{key}") for key in _GGUF_EOS_KEYS]
    return Vocab(
        model_name=name,
        token_bytes=_sized(
            [_gguf_bytes(token, kind) for token, kind in zip(tokens, types, strict=True)],
            embedding.shape[0] if embedding else len(tokens),
        ),
        special_ids=frozenset(
            i for i, kind in enumerate(types) if kind in (_GGUF_CONTROL, _GGUF_UNKNOWN)
        ),
        eos_ids=_distinct(eos),
        bos_id=meta.get("tokenizer.ggml.bos_token_id"),
        add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        context_len=int(gguf_value(file, f"{arch}.context_length")),
        chat_template=meta.get("tokenizer.chat_template"),
    )


def _gguf_bytes(token: str, kind: int) -> bytes:
    if kind == _GGUF_UNUSED:
        return b""
    if kind in (_GGUF_CONTROL, _GGUF_UNKNOWN, _GGUF_USER_DEFINED):
        return token.encode()
    return _byte_level_bytes(token)


def gguf_value(file: GGUFFile, key: str) -> Any:
    """A metadata value that the file must have."""
    if key not in file.metadata:
        raise ConfigError(f"{file.path}: the key {key} is missing")
    return file.metadata[key]


# ---- Hugging Face directory ------------------------------------------------------------------


def _from_hf(name: str, files: HFFiles) -> Vocab:
    tokenizer = files.tokenizer
    to_bytes = _spm_bytes if _is_spm(files) else _byte_level_bytes
    added = {item["id"]: item for item in tokenizer.get("added_tokens", [])}
    ids = files.token_ids
    token_bytes = {i: to_bytes(token) for token, i in ids.items() if i not in added}
    token_bytes |= {i: item["content"].encode() for i, item in added.items()}
    size = files.required("vocab_size")
    bos_id = ids.get(token_text(files.tokenizer_config.get("bos_token")) or "")
    return Vocab(
        model_name=name,
        token_bytes=_sized([token_bytes.get(i, b"") for i in range(max(token_bytes) + 1)], size),
        special_ids=frozenset(i for i, item in added.items() if item.get("special") and i < size),
        eos_ids=tuple(i for i in _distinct(_hf_eos_ids(files)) if i < size),
        bos_id=files.config.get("bos_token_id") if bos_id is None else bos_id,
        add_bos=files.adds_bos(),
        context_len=files.required("max_position_embeddings"),
        chat_template=files.chat_template(),
    )


def _is_spm(files: HFFiles) -> bool:
    """Whether the decoder is SentencePiece's (True) or byte-level (False); else ConfigError.

    `Strip`, which removes the first space of a whole text, is left out on purpose: what a model
    generates continues a prompt, so its first space is text.
    """
    decoder = files.tokenizer.get("decoder") or {"type": None}
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return False
    spaces = [step for step in steps if step["type"] == "Replace"]
    if spaces and set(kinds) <= _SPM_DECODERS and all(_replaces_space(step) for step in spaces):
        return True
    raise ConfigError(
        f"{files.path / 'tokenizer.json'}: decoder {'+'.join(map(str, kinds))} is not supported "
        "(ByteLevel, and Replace+ByteFallback+Fuse are)"
    )


def _replaces_space(step: dict[str, Any]) -> bool:
    return step.get("pattern") == {"String": _SPM_SPACE} and step.get("content") == " "


def _hf_eos_ids(files: HFFiles) -> list[int | None]:
    found: list[int | None] = [
        files.token_ids.get(token_text(files.tokenizer_config.get("eos_token")) or "")
    ]
    for config in (files.generation_config, files.config):
        value = config.get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return found


def _sized(token_bytes: list[bytes], size: int) -> list[bytes]:
    return token_bytes[:size] + [b""] * (size - len(token_bytes))


def _distinct(ids: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(i for i in ids if i is not None))
