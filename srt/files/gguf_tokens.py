"""The tokenizer that a GGUF file's metadata describes, with llama.cpp's defaults filled in.

Read by `srt.files.vocab`, which wants bytes and special ids, and by `srt.files.gguf_encoder`, which
builds an encoder of it. Source of the meaning of keys, kinds and defaults: ggml-org/llama.cpp,
src/llama-vocab.cpp.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from srt.files.gguf import GGUFFile
from srt.wire.errors import ConfigError

SPM_SPACE = "\u2581"  # what SentencePiece writes for a space
# Building merges takes time and memory by the squares of the tokens' lengths. Real vocabularies
# have up to 2e7.
MAX_SQUARES = 1 << 27

# Tokens that end a turn or a text in the supported model families, whatever ids the metadata names:
# files name one of them, and chat models write another one after a turn.
_END_TOKENS = {
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>",
    "<end_of_turn>", "<eos>",
}  # fmt: skip
_T = TypeVar("_T")


class TokenType(IntEnum):
    """What a token is, as `tokenizer.ggml.token_type` says."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class PreKind(NamedTuple):
    """How byte-level BPE cuts text into words: by each of `patterns` in turn.

    `whole_words`: a word that is a token becomes that token, whatever the merges would give.
    `nfc`: text is brought to Unicode's composed form first, as the family's tokenizer.json does.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False


_SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_SUFFIXES}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_BEFORE_LETTERS = r"[^\r\n\p{L}\p{N}]?"


def _caseless(digits: str, marks: str = "") -> str:
    """Words of letters of either case, as in Llama 3 and Qwen 2. `marks` count as letters."""
    letters = rf"{_BEFORE_LETTERS}[\p{{L}}{marks}]+"
    others = rf" ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
    return rf"(?i:{_SUFFIXES})|{letters}|{digits}|{others}|{_BREAKS}"


def _cased(digits: str, suffixes: str = "", without: str = "", ends: str = "[\r\n/]*") -> str:
    """Words, a new one at a capital letter after small ones, as in GPT-4o and Mistral.
    `without` narrows the letters; `ends` may follow other characters."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    small = f"{_BEFORE_LETTERS}{upper}*{lower}+{suffixes}"
    capitals = f"{_BEFORE_LETTERS}{upper}+{lower}*{suffixes}"
    return rf"{small}|{capitals}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{ends}|{_BREAKS}"


# The cased letters that DeepSeek lists: those of an older Unicode, without some ranges.
_DEEPSEEK_LETTERS = (
    r"[\p{Lu}\p{Ll}\p{Lt}\x{295}&&[^\x{560}-\x{588}\x{10C6}-\x{10FF}\x{1C80}-\x{1C8A}"
    r"\x{2D00}-\x{2D2D}\x{A790}-\x{A7FF}\x{AB30}-\x{AB6F}\x{10570}-\x{105BC}"
    r"\x{10D50}-\x{10D85}\x{16E40}-\x{16ED3}\x{1D400}-\x{1DF96}]]+"
)
_DEEPSEEK_ASIAN = r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+"
_KINDS = {
    ("gpt-2", "phi-2"): PreKind((_GPT2,)),
    ("mpt",): PreKind((_GPT2,), nfc=True),
    ("smollm", "starcoder", "refact"): PreKind((r"\p{N}", _GPT2)),
    ("command-r",): PreKind((r"\p{N}", _GPT2), nfc=True),
    ("falcon",): PreKind((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("bloom",): PreKind((" ?[^(\\s|.,!?…。，、।۔،)]+",)),
    ("deepseek-llm",): PreKind(
        (
            r"[\r\n]",
            rf"\s?{_DEEPSEEK_LETTERS}",
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            _DEEPSEEK_ASIAN,
            r"\p{N}+",
        )
    ),
    ("deepseek-coder",): PreKind(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_ASIAN, r"\p{N}")
    ),
    ("deepseek-v3",): PreKind(
        (
            r"\p{N}{1,3}",
            r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
            (
                r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}"
            ),
        )
    ),
    ("default",): PreKind((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("llama-bpe", "llama3", "llama-v3", "falcon3"): PreKind(
        (_caseless(r"\p{N}{1,3}"),), whole_words=True, add_bos=True
    ),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): PreKind((_caseless(r"\p{N}{1,3}"),)),
    ("glm4",): PreKind((_caseless(r"\p{N}{1,3}"),), whole_words=True),
    ("qwen2", "deepseek-r1-qwen"): PreKind((_caseless(r"\p{N}"),), nfc=True),
    # llama.cpp's vectors of this kind hold decomposed text, and ids that keep it so.
    ("qwen35",): PreKind((_caseless(r"\p{N}", marks=r"\p{M}"),)),
    ("tekken",): PreKind((_cased(r"\p{N}"),), whole_words=True, add_bos=True),
    ("gpt-4o",): PreKind((_cased(r"\p{N}{1,3}", f"(?i:{_SUFFIXES})?"),)),
    ("kimi-k2",): PreKind(
        (r"\p{Han}+|" + _cased(r"\p{N}{1,3}", f"(?i:{_SUFFIXES})?", r"&&[^\p{Han}]", r"[\r\n]*"),),
        whole_words=True,
    ),
}
PRE_KINDS = {name: kind for names, kind in _KINDS.items() for name in names}


def byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE tokens, as in GPT-2.

    Printable Latin-1 stands for itself; U+0100 and what follows stands for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def check_lengths(path: Path, texts: Iterable[str]) -> None:
    """Raise ConfigError, which names `path`, if tokens are so long that building their merges
    would take too much time and memory."""
    squares = sum(len(text) ** 2 for text in texts)
    if squares > MAX_SQUARES:
        raise ConfigError(
            f"{path}: the tokens are too long: the squares of their lengths add up to {squares}, "
            f"above the limit, {MAX_SQUARES}"
        )


def merges_by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of tokens whose concatenation is a token, that of the best score first. See
    `check_lengths`."""
    merges = [
        (score, token[:cut], token[cut:])
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in scores and token[cut:] in scores
    ]
    merges.sort(key=lambda merge: (-merge[0], -len(merge[1]), -len(merge[2])))
    return [(left, right) for _, left, right in merges]


class _TokenizerKeys(Struct):
    """The metadata `tokenizer.ggml.*`, without the prefix."""

    model: str
    tokens: list[str]
    pre: str | None = None
    token_type: list[int] | None = None
    found_scores: list[float] | None = field(name="scores", default=None)
    found_merges: list[str] | None = field(name="merges", default=None)
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    eom_token_id: int | None = None
    unknown_token_id: int | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool = False
    add_space_prefix: bool | None = None


class GGUFTokens:
    """Token texts and types by id, and the tokens that the model wants around a prompt.

    `is_spm`: the texts are SentencePiece's, with U+2581 for a space; else they are written in the
    alphabet of byte-level BPE. `is_scored`: scores decide what is merged first, else the order of
    the merges. Raises ConfigError for other tokenizers.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file, self.path = file, file.path
        self._keys = keys = _read_keys(file)
        if keys.model not in ("llama", "gpt2", "gemma4"):
            raise ConfigError(
                f"{file.path}: tokenizer {keys.model!r} is not supported (GGUF files with 'gpt2', "
                "'llama' and 'gemma4' are)"
            )
        self.is_scored = keys.model == "llama"
        self.is_spm = keys.model != "gpt2"
        self.texts = keys.tokens
        check_lengths(file.path, self.texts)
        self.types = self._types()
        self.bos_id = self._id("bos_token_id", 1 if self.is_scored else None)
        self.unknown_id = self._id("unknown_token_id")
        prefix = keys.add_space_prefix
        self.space_prefix = self.is_spm and (self.is_scored if prefix is None else prefix)
        adds_bos = self.is_scored if self.is_spm else self.pre_kind().add_bos
        self.add_bos = adds_bos if keys.add_bos_token is None else keys.add_bos_token
        self.add_eos = keys.add_eos_token
        if self.add_bos and self.bos_id is None:
            raise ConfigError(f"{file.path}: tokenizer.ggml.bos_token_id is missing")
        if self.add_eos and not self.eos_ids():
            raise ConfigError(f"{file.path}: tokenizer.ggml.eos_token_id is missing")

    def pre_kind(self) -> PreKind:
        """How byte-level BPE cuts text into words."""
        name = self._keys.pre
        if name not in PRE_KINDS:
            raise ConfigError(
                f"{self.path}: GGUF pre-tokenizer {name!r} is not supported "
                f"({', '.join(sorted(PRE_KINDS))} are)"
            )
        return PRE_KINDS[name]

    def eos_ids(self) -> list[int]:
        """The ids that end an output, the tokenizer's own EOS first."""
        named = [
            self._id("eos_token_id", 2 if self.is_scored else None),
            self._id("eot_token_id"),
            self._id("eom_token_id"),
        ]
        ends = [
            i
            for i, text in enumerate(self.texts)
            if text in _END_TOKENS and self.types[i] == TokenType.CONTROL
        ]
        return [i for i in dict.fromkeys([*named, *ends]) if i is not None]

    def scores(self) -> list[float]:
        """SentencePiece's score of each token: the higher, the sooner two tokens become it."""
        scores = self._required("scores", self._keys.found_scores)
        if len(scores) != len(self.texts):
            raise ConfigError(f"{self.path}: {len(scores)} scores for {len(self.texts)} tokens")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """BPE's pairs of tokens, in the order in which they are merged."""
        pairs = []
        for merge in self._required("merges", self._keys.found_merges):
            left, space, right = merge.partition(" ")
            if not space:
                raise ConfigError(f"{self.path}: tokenizer.ggml.merges has {merge!r}")
            pairs.append((left, right))
        return pairs

    def literal_texts(self) -> list[str]:
        """`texts`, with spaces in user-defined tokens, which are found in the given text."""
        if not self.is_spm:
            return self.texts
        return [
            text.replace(SPM_SPACE, " ") if kind == TokenType.USER_DEFINED else text
            for text, kind in zip(self.texts, self.types, strict=True)
        ]

    @property
    def strips_after_special(self) -> bool:
        """Whether special tokens take the white space after them: those of Phi-3 do."""
        return self.is_spm and self._file.metadata.get("general.architecture") == "phi3"

    def _required(self, key: str, value: _T | None) -> _T:
        if value is None:
            raise ConfigError(f"{self.path}: the key tokenizer.ggml.{key} is missing")
        return value

    def _id(self, key: str, default: int | None = None) -> int | None:
        """A token id, which must be one of the vocabulary."""
        given: int | None = getattr(self._keys, key)
        found = default if given is None else given
        if found is not None and not 0 <= found < len(self.texts):
            raise ConfigError(
                f"{self.path}: tokenizer.ggml.{key} is {found}, and there are "
                f"{len(self.texts)} tokens"
            )
        return found

    def _types(self) -> list[int]:
        types = self._keys.token_type
        if types is None and not self.is_spm:
            types = [TokenType.NORMAL] * len(self.texts)
        # In SentencePiece's vocabularies bytes look like any other token, so types must be given.
        types = self._required("token_type", types)
        if len(types) != len(self.texts):
            raise ConfigError(f"{self.path}: {len(types)} types for {len(self.texts)} tokens")
        return [
            TokenType.CONTROL if text in _END_TOKENS and kind == TokenType.USER_DEFINED else kind
            for text, kind in zip(self.texts, types, strict=True)
        ]


def _read_keys(file: GGUFFile) -> _TokenizerKeys:
    prefix = "tokenizer.ggml."
    found = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    try:
        return msgspec.convert(found, _TokenizerKeys)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file.path}: tokenizer.ggml: {error}") from error
