"""Text to token ids, through the `tokenizers` library and without transformers.

The tokenizer process encodes prompts with it, the scheduler what a grammar forces.
`load_tokenizer` builds the library's tokenizer from a GGUF file's metadata or loads it from
tokenizer.json. Invariant: BOS is added here and nowhere else, and never twice.
"""

from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from srt.errors import ConfigError
from srt.model.files import ModelFiles
from srt.model.gguf_file import GGUFFile
from srt.model.vocab import gguf_value, load_vocab

_GGUF_CONTROL, _GGUF_USER_DEFINED = 3, 4


class Tokenizer:
    """Encodes text for one model. `bos_id` is put before each prompt unless it is None."""

    def __init__(self, encoder: tokenizers.Tokenizer, bos_id: int | None) -> None:
        self._encoder = encoder
        self._bos_id = bos_id

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """The ids of `text`, int32 [n]. Special tokens written in the text become their ids.

        With `add_special_tokens`, BOS comes first if the model wants one and the text does not
        already start with it.
        """
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        bos = self._bos_id
        if add_special_tokens and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return np.array(ids, dtype=np.int32)


class Pieces(NamedTuple):
    """A text's ids, and for each id the index of the pre-tokenizer's word that it belongs to."""

    ids: list[int]
    words: list[int | None]


class PlainTokenizer:
    """Encodes text in which special tokens are text like any other."""

    def __init__(self, encoder: tokenizers.Tokenizer) -> None:
        encoder.encode_special_tokens = True
        self._encoder = encoder

    def split(self, text: str) -> Pieces:
        """The ids of `text`, without BOS."""
        encoding = self._encoder.encode(text, add_special_tokens=False)
        return Pieces(encoding.ids, encoding.word_ids)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a model. Raises ConfigError for kinds that are not supported."""
    vocab = load_vocab(files)
    return Tokenizer(_load(files), vocab.bos_id if vocab.add_bos else None)


def load_plain_tokenizer(files: ModelFiles) -> PlainTokenizer:
    """The same for text that is not a prompt. Raises ConfigError as `load_tokenizer` does."""
    return PlainTokenizer(_load(files))


def _load(files: ModelFiles) -> tokenizers.Tokenizer:
    return _from_gguf(files) if files.kind == "gguf" else _from_directory(files)


def _from_directory(files: ModelFiles) -> tokenizers.Tokenizer:
    path = files.path / "tokenizer.json"
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise ConfigError(f"{path}: cannot be loaded ({error})") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _from_gguf(files: ModelFiles) -> tokenizers.Tokenizer:
    file = GGUFFile(files.path)
    tokens: list[str] = gguf_value(file, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ", 1)) for m in gguf_value(file, "tokenizer.ggml.merges")]
    model = models.BPE({token: i for i, token in enumerate(tokens)}, merges)
    encoder = tokenizers.Tokenizer(model)
    encoder.pre_tokenizer = _pre_tokenizer(file.metadata.get("tokenizer.ggml.pre"))
    _add_literal_tokens(encoder, tokens, file.metadata.get("tokenizer.ggml.token_type", []))
    return encoder


def _add_literal_tokens(encoder: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Make control and user-defined tokens match literally, before any splitting."""
    marked = list(zip(tokens, types, strict=False))
    encoder.add_special_tokens([_literal(t, True) for t, kind in marked if kind == _GGUF_CONTROL])
    encoder.add_tokens([_literal(t, False) for t, kind in marked if kind == _GGUF_USER_DEFINED])


def _literal(token: str, special: bool) -> AddedToken:
    return AddedToken(token, special=special, normalized=False)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


_PRE_TOKENIZERS = {"gpt-2": _gpt2, "smollm": _smollm}


def _pre_tokenizer(name: Any) -> pre_tokenizers.PreTokenizer:
    if name not in _PRE_TOKENIZERS:
        supported = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ConfigError(f"GGUF pre-tokenizer {name!r} is not supported ({supported} are)")
    return _PRE_TOKENIZERS[name]()
