"""What every process must know of a model's vocabulary: each id's bytes, special and EOS ids.

The tokenizer, the scheduler (grammars, limits) and the detokenizer each load one `Vocab`; it needs
neither torch nor a tokenizer library. Invariant: `token_bytes` has one entry per embedding row,
and joining the entries of a sequence of ids gives the UTF-8 bytes of its text.
"""

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from srt.answers.reasoning import reasoning_tags
from srt.answers.tool_format import text_marks
from srt.files.chat_templates import END_TEXTS, chosen_template
from srt.files.context import capped, gguf_context_len, hf_context_len
from srt.files.gguf import GGUFFile
from srt.files.gguf_tokens import SPM_SPACE, GGUFTokens, TokenType, byte_level_alphabet
from srt.files.hf import HFFiles, TokenizerStep
from srt.files.model_files import ModelFiles, resolve_model
from srt.files.sampling_defaults import NO_SAMPLING, ModelSampling, read_sampling
from srt.wire.errors import ConfigError

_SPM_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# GPT-2 and its descendants, DBRX and nanochat have names of their own.
_CONTEXT_LEN = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")
MAX_CHARACTER_BYTES = 4
_SPM_DECODERS = {"Replace", "ByteFallback", "Fuse", "Strip"}


@dataclass(frozen=True)
class Vocab:
    """A model's vocabulary and what its configuration says about text.

    `eos_ids[0]` is the tokenizer's own EOS token. `add_bos` says whether prompts start with
    `bos_id`, `add_eos` whether they end with `eos_ids[0]`, `space_prefix` whether their text gets a
    space in front. `named_tokens` are what chat templates call `bos_token`, `eos_token` and so on,
    as far as the model has them. `tool_template` is the chat template for chats with tools, if
    they have their own. `mark_ids` are control tokens that are nevertheless text where the
    model writes them: those around its calls and its reasoning. `sampling` is how the model's files
    say that it should be sampled. Ids without a token
    (padding rows of the embedding) have no bytes.
    """

    model_name: str
    token_bytes: list[bytes]
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    context_len: int
    chat_template: str | None
    tool_template: str | None = None
    add_eos: bool = False
    space_prefix: bool = False
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    sampling: ModelSampling = NO_SAMPLING

    @cached_property
    def mark_ids(self) -> frozenset[int]:
        texts = text_marks(self.chat_template) | text_marks(self.tool_template)
        marks = {mark.encode() for mark in (*texts, *reasoning_tags(self.chat_template))}
        return frozenset(i for i in self.special_ids if self.token_bytes[i] in marks)

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """The special tokens that are not text."""
        return self.special_ids - self.mark_ids

    @property
    def vocab_size(self) -> int:
        """The number of embedding rows: every valid id is below it."""
        return len(self.token_bytes)

    def pieces(self, skip_special_tokens: bool) -> list[bytes]:
        """The bytes of each id, with nothing for special tokens when they are skipped."""
        if not skip_special_tokens:
            return self.token_bytes
        hidden = self.hidden_ids
        return [b"" if i in hidden else data for i, data in enumerate(self.token_bytes)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        hidden: frozenset[int] = self.hidden_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes[i] for i in ids if i not in hidden)
        return data.decode("utf-8", errors="replace")

    def begun_by(self, ids: Sequence[int]) -> bytes:
        """The bytes of the character that `ids` end inside of, b"" if they end with a whole one."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        last = [i for i in ids[-MAX_CHARACTER_BYTES:] if 0 <= i < self.vocab_size]
        decoder.decode(b"".join(self.token_bytes[i] for i in last))
        return decoder.getstate()[0]

    def decode_prompt(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The same without the space that the tokenizer has put in front of a prompt."""
        text = self.decode(ids, skip_special_tokens)
        return text.removeprefix(" ") if self.space_prefix else text


def text_decoder(begun: bytes = b"") -> Callable[..., str]:
    """Decodes UTF-8 that arrives in pieces (`bytes`, then whether they are the last) after `begun`,
    the bytes of a character that the prompt ends inside of. U+FFFD for these, where the text does
    not go on with them, is not part of the text; for other bytes that are not UTF-8 it is."""
    rest = b""  # of a character

    def decode(data: bytes, final: bool = False) -> str:
        nonlocal rest
        data = rest + data
        text, used = codecs.utf_8_decode(data, "replace", final)
        rest = data[used:]
        return text

    if not begun:
        return decode
    decode(begun)
    is_first, seen = True, begun

    def decoded(data: bytes, final: bool = False) -> str:
        nonlocal is_first, seen
        text = decode(data, final)
        if is_first:
            seen += data
            if text:
                is_first = False
                is_own = seen.startswith("\ufffd".encode())
                text = text if is_own else text.removeprefix("\ufffd")
        return text

    return decoded


class Served(Protocol):
    """What a server's arguments say of its model's text; see `srt.args.ServerArgs`."""

    @property
    def model(self) -> str: ...

    @property
    def tokenizer(self) -> str: ...

    @property
    def chat_template(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...


def served_vocab(args: Served) -> Vocab:
    """The vocabulary of a server's model, as all of its parts use it. Raises ConfigError."""
    vocab = load_vocab(resolve_model(args.model, args.tokenizer), args.chat_template)
    if args.max_model_len > vocab.context_len:
        raise ConfigError(
            f"--max-model-len {args.max_model_len} is above the context of this model, "
            f"{vocab.context_len} tokens, and cannot extend it"
        )
    return replace(vocab, context_len=capped(vocab.context_len, args.max_model_len))


def load_vocab(files: ModelFiles, chat_template: str = "") -> Vocab:
    """Read the vocabulary of a model, with the template that `--chat-template` names, if any, in
    place of its own; what ends a turn in one of our templates then ends a text too.

    Raises ConfigError for kinds that are not supported, and for the template.
    """
    vocab = _from_gguf(files) if files.text_kind == "gguf" else _from_hf(files)
    chosen = chosen_template(chat_template)
    if chosen is None:
        return vocab
    source, is_ours = chosen
    head = "{{ bos_token }}" if is_ours and vocab.add_bos else ""
    ends = {text.encode() for text in END_TEXTS.get(chat_template, ())}
    ids = (i for i, data in enumerate(vocab.token_bytes) if data in ends)
    return replace(
        vocab,
        chat_template=head + source,
        tool_template=None,
        eos_ids=tuple(dict.fromkeys([*vocab.eos_ids, *ids])),
    )


_ALPHABET = byte_level_alphabet()
_TO_BYTES = codecs.charmap_build("".join(sorted(_ALPHABET, key=_ALPHABET.__getitem__)))


def _byte_level_bytes(token: str) -> bytes:
    try:
        return codecs.charmap_encode(token, "strict", _TO_BYTES)[0]
    except UnicodeEncodeError:  # not in the byte alphabet: it is literal text
        return token.encode()


def _spm_bytes(token: str) -> bytes:
    return token.replace(SPM_SPACE, " ").encode()


def _spm_or_byte(token: str) -> bytes:
    byte = _SPM_BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _spm_bytes(token)


# ---- GGUF ------------------------------------------------------------------------------------


def _from_gguf(files: ModelFiles) -> Vocab:
    file = GGUFFile(files.path)
    text = file if files.tokenizer is None else GGUFFile(files.tokenizer)
    tokens = GGUFTokens(text)
    token_bytes = _gguf_bytes(tokens)
    embedding = file.tensors.get("token_embd.weight")
    size = embedding.shape[0] if embedding else len(token_bytes)
    if size < len(token_bytes):
        raise ConfigError(f"{text.path}: {len(token_bytes)} tokens, but {size} embeddings")
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    eos_ids = tuple(tokens.eos_ids())
    return Vocab(
        model_name=files.name,
        token_bytes=token_bytes + [b""] * (size - len(token_bytes)),
        special_ids=frozenset(i for i, kind in enumerate(tokens.types) if kind in special),
        eos_ids=eos_ids,
        bos_id=tokens.bos_id,
        add_bos=tokens.add_bos,
        context_len=gguf_context_len(file),
        chat_template=_gguf_template(text, "tokenizer.chat_template"),
        tool_template=_gguf_template(text, "tokenizer.chat_template.tool_use"),
        add_eos=tokens.add_eos,
        space_prefix=tokens.space_prefix,
        named_tokens={
            name: token_bytes[i].decode("utf-8", errors="replace")
            for name, i in (("bos_token", tokens.bos_id), ("eos_token", next(iter(eos_ids), None)))
            if i is not None
        },
        sampling=read_sampling(file.path, file.metadata, "gguf"),
    )


def _gguf_template(file: GGUFFile, key: str) -> str | None:
    template = file.metadata.get(key)
    if template is not None and not isinstance(template, str):
        raise ConfigError(f"{file.path}: {key} is not a string")
    return template


def _gguf_bytes(tokens: GGUFTokens) -> list[bytes]:
    normal = _spm_bytes if tokens.is_spm else _byte_level_bytes
    to_bytes: dict[int, Callable[[str], bytes]] = {
        TokenType.UNKNOWN: str.encode,
        TokenType.CONTROL: str.encode,
        TokenType.USER_DEFINED: str.encode,
        TokenType.UNUSED: lambda text: b"",
        TokenType.BYTE: _spm_or_byte,
    }
    texts = tokens.literal_texts()
    return [to_bytes.get(t, normal)(text) for text, t in zip(texts, tokens.types, strict=True)]


# ---- Hugging Face directory ------------------------------------------------------------------


def positions_of(path: Path, files: HFFiles) -> int:
    """The context in tokens of the model at `path`. Raises ConfigError, which names the file."""
    positions = files.required(*_CONTEXT_LEN)
    try:
        return hf_context_len(files.config, positions)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _from_hf(model: ModelFiles) -> Vocab:
    files = HFFiles(model.path, model.text_path)
    to_bytes = _token_decoder(files)
    added = {token.id: token for token in files.added_tokens}
    token_bytes = {i: to_bytes(token) for token, i in files.token_ids.items() if i not in added}
    literal = str.encode if to_bytes is _byte_level_bytes else _spm_bytes
    token_bytes |= {i: literal(token.content) for i, token in added.items()}
    size, bos_id = files.vocab_size, files.bos_id
    eos_ids = tuple(i for i in files.eos_ids if 0 <= i < size)
    return Vocab(
        model_name=model.name,
        token_bytes=[token_bytes.get(i, b"") for i in range(size)],
        special_ids=frozenset(i for i, token in added.items() if token.special and i < size),
        eos_ids=eos_ids,
        bos_id=bos_id if bos_id is not None and 0 <= bos_id < size else None,
        add_bos=bos_id in files.frame.before,
        context_len=positions_of(model.path, files),
        chat_template=files.chat_templates.get("default"),
        tool_template=files.chat_templates.get("tool_use"),
        add_eos=not set(eos_ids[:1]).isdisjoint(files.frame.after),
        space_prefix=any(_strips_space(step) for step in files.decoder_steps),
        named_tokens=files.named_tokens,
        sampling=files.sampling,
    )


def _token_decoder(files: HFFiles) -> Callable[[str], bytes]:
    """The function from a token to its bytes, by the decoder: SentencePiece's or byte-level's.

    `Strip`, which removes the first space of a whole text, is left out on purpose: what a model
    generates continues a prompt, so its first space is text.
    """
    steps = files.decoder_steps
    kinds = [step.type for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level_bytes
    if kinds == ["Metaspace"] and steps[0].replacement == SPM_SPACE:
        return _spm_bytes
    spaces = [step for step in steps if step.type == "Replace"]
    if spaces and set(kinds) <= _SPM_DECODERS and all(_replaces_space(step) for step in spaces):
        return _spm_or_byte if "ByteFallback" in kinds else _spm_bytes
    raise ConfigError(
        f"{files.tokenizer_path}: decoder {'+'.join(kinds) or None} is not supported "
        "(ByteLevel, Metaspace, and Replace+ByteFallback+Fuse are)"
    )


def _replaces_space(step: TokenizerStep) -> bool:
    return step.pattern == {"String": SPM_SPACE} and step.content == " "


def _strips_space(step: TokenizerStep) -> bool:
    if step.type == "Metaspace":
        return step.prepend_scheme != "never" and step.add_prefix_space
    return step.type == "Strip" and step.content == " " and step.start > 0
