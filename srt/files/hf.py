"""The JSON files of a Hugging Face model directory that concern text, read once.

Used by `srt.files.vocab` and `srt.files.tokenizer`. Only config.json and a tokenizer must exist:
tokenizer.json, or SentencePiece's or tiktoken's file, which is read as one. The others default to
empty. The tokenizer, with what configures it, may be in another directory than the model, which may
then be a GGUF file. Nothing of a model's own code is ever run.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from srt.files.gguf_tokens import check_lengths
from srt.files.model_files import MAX_JSON_BYTES, require_file
from srt.files.sampling_defaults import ModelSampling, read_sampling
from srt.files.spm import spm_content
from srt.files.text_config import gguf_text, text_config
from srt.files.tiktoken import is_tiktoken, tiktoken_content
from srt.wire.errors import ConfigError

# A list has an entry per row of the embedding; models have up to half a million.
MAX_VOCAB_SIZE = 1 << 24
MAX_TOKENIZER_BYTES = 128 * 2**20  # Gemma 3's has 32 MiB

_NAMES = ("tokenizer.json", "tokenizer.model", "tiktoken.model")

_T = TypeVar("_T")
_Id = Annotated[int, Meta(ge=0)]


class Frame(NamedTuple):
    """The special tokens before and after a prompt's own."""

    before: list[int]
    after: list[int]


class _Named(Struct):
    id: str


class _TemplatePart(Struct):
    """A part of a template: the text, or a special token."""

    special: _Named | None = field(name="SpecialToken", default=None)


class _Special(Struct):
    ids: list[_Id]


class TokenizerStep(Struct):
    """A normalizer, pre-tokenizer, post-processor or decoder, or a sequence of such steps."""

    type: str
    decoders: list["TokenizerStep"] = []
    processors: list["TokenizerStep"] = []
    normalizers: list["TokenizerStep"] = []
    pretokenizers: list["TokenizerStep"] = []
    single: list[_TemplatePart] = []
    special_tokens: dict[str, _Special] = {}
    cls: tuple[str, _Id] | None = None
    sep: tuple[str, _Id] | None = None
    pattern: dict[str, str] | None = None
    content: str | None = None
    replacement: str | None = None
    start: int = 0
    prepend_scheme: str = "always"
    add_prefix_space: bool = True


class AddedToken(Struct):
    """A token that is found in a text before it is cut into words."""

    id: _Id
    content: str
    special: bool = False


class _Model(Struct):
    vocab: dict[str, _Id] | list[tuple[str, float]]  # Unigram: piece and score, in order of ids
    merges: list[str | tuple[str, str]] = []


class _TokenizerFile(Struct):
    model: _Model
    added_tokens: list[AddedToken] = []
    normalizer: TokenizerStep | None = None
    pre_tokenizer: TokenizerStep | None = None
    post_processor: TokenizerStep | None = None
    decoder: TokenizerStep | None = None


class _Content(Struct):
    content: str


class _Template(Struct):
    name: str
    template: str


class _TokenizerConfig(Struct):
    bos_token: str | _Content | None = None
    eos_token: str | _Content | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    chat_template: str | list[_Template] | dict[str, str] | None = None


class _Ids(Struct):
    bos_token_id: int | list[int] | None = None
    eos_token_id: int | list[int] | None = None


class _Generation(NamedTuple):
    ids: _Ids
    sampling: ModelSampling


def tokenizer_path(place: Path) -> Path:
    """The file that a tokenizer is read from: of a directory, tokenizer.json if it is there."""
    if place.is_file():
        return place
    paths = [place / name for name in _NAMES] + sorted(place.glob("*.tiktoken"))
    return next((path for path in paths if path.exists()), paths[0])


class HFFiles:
    """Parsed configuration of the model in directory `path`, or in a GGUF file, with the tokenizer
    at `text_path`. Raises ConfigError when unusable."""

    def __init__(self, path: Path, text_path: Path | None = None) -> None:
        self.tokenizer_path = tokenizer_path(text_path or path)
        if path.is_dir():
            self._config_path = path / "config.json"
            self.config = text_config(_read(self._config_path, must_exist=True))
            self._generation = _generation_config(path / "generation_config.json")
        else:
            self._config_path = path
            self.config, sampling = gguf_text(path)
            self._generation = _Generation(_Ids(), sampling)
        found = _read(options := self._folder / "tokenizer_config.json")
        self._tokenizer_config = _convert(options, found, _TokenizerConfig)
        self.named_tokens = _named_tokens(found)
        self._converts = self.tokenizer_path.suffix != ".json"
        if self._converts:
            self.tokenizer = self._converted(found)
        else:
            self.tokenizer = _read(self.tokenizer_path, True, MAX_TOKENIZER_BYTES)
        self._typed = _convert(self.tokenizer_path, self.tokenizer, _TokenizerFile)
        check_lengths(self.tokenizer_path, [token.content for token in self.added_tokens])
        self._config_ids = _convert(self._config_path, self.config, _Ids)

    @property
    def _folder(self) -> Path:
        return self.tokenizer_path.parent

    def _converted(self, tokenizer_config: dict[str, Any]) -> dict[str, Any]:
        """What a tokenizer.json would hold, made from a file of another kind."""
        path = self.tokenizer_path
        require_file(path, MAX_TOKENIZER_BYTES)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from error
        is_spm = path.suffix == ".model" and path.name != "tiktoken.model"
        if is_spm and not is_tiktoken(data):
            return spm_content(path, data)
        bos = _text_of(self._tokenizer_config.bos_token)
        return tiktoken_content(
            path, data, str(self.config.get("model_type")), tokenizer_config, bos
        )

    def required(self, key: str, *other_names: str) -> int:
        """A positive integer that config.json must have, under the first of the names there is."""
        value = next((self.config[k] for k in (key, *other_names) if k in self.config), None)
        if not isinstance(value, int) or value < 1:
            found = "missing" if value is None else f"{value!r}, not a positive integer"
            raise ConfigError(f"{self._config_path}: {key} is {found}")
        return value

    @property
    def vocab_size(self) -> int:
        """The rows of the embedding."""
        size = self.required("vocab_size")
        if size > MAX_VOCAB_SIZE:
            raise ConfigError(f"{self._config_path}: vocab_size {size} is not credible")
        return size

    @property
    def added_tokens(self) -> list[AddedToken]:
        """Tokens besides the model's own, in the order of the file."""
        return self._typed.added_tokens

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """Token text (in the vocabulary's own alphabet) to id, added tokens included."""
        vocab = self._typed.model.vocab
        if isinstance(vocab, list):
            ids = {piece: i for i, (piece, _) in enumerate(vocab)}
        else:
            ids = dict(vocab)
        ids |= {token.content: token.id for token in self.added_tokens}
        if not ids:
            raise ConfigError(f"{self.tokenizer_path}: the vocab is empty")
        return ids

    @cached_property
    def embedded_tokenizer(self) -> dict[str, Any] | None:
        """tokenizer.json without the tokens that the embedding has no row for, such as Gemma 3's
        for images: text that looks like them stays text. None if the file itself can be loaded.

        Raises ConfigError if BPE makes such tokens of text: the embedding belongs to another
        vocabulary.
        """
        size = self.vocab_size
        if max(self.token_ids.values()) < size:
            return self.tokenizer if self._converts else None
        model, vocab = self.tokenizer["model"], self._typed.model.vocab
        if isinstance(vocab, list):
            kept: Any = model["vocab"][:size]
        else:
            kept = {token: i for token, i in vocab.items() if i < size}
            made = {*merged_tokens(self._typed.model.merges)}
            made |= {token for token in vocab if len(token) == 1}
            made -= {token.content for token in self.added_tokens}
            most = max((vocab.get(token, 0) for token in made), default=0)
            if most >= size:
                raise ConfigError(
                    f"{self.tokenizer_path}: text becomes tokens of ids up to {most}, but "
                    f"vocab_size of {self._config_path.name}, the rows of the embedding, is {size}"
                )
        added = [token for token in self.tokenizer.get("added_tokens", []) if token["id"] < size]
        return {**self.tokenizer, "model": {**model, "vocab": kept}, "added_tokens": added}

    @cached_property
    def decoder_steps(self) -> list[TokenizerStep]:
        """tokenizer.json's decoder, taken apart if it is a sequence of several."""
        decoder = self._typed.decoder
        if decoder is None:
            return []
        return decoder.decoders if decoder.type == "Sequence" else [decoder]

    @property
    def is_spm(self) -> bool:
        """Whether tokens are written as SentencePiece does, with U+2581 for a space."""
        return any(step.type in ("Replace", "Metaspace") for step in self.decoder_steps)

    @cached_property
    def chat_templates(self) -> dict[str, str]:
        """Templates by name, "default" and "tool_use" among them: from the files that hold one
        each, and from tokenizer_config.json if there are none."""
        paths = {path.stem: path for path in self._folder.glob("additional_chat_templates/*.jinja")}
        default = self._folder / "chat_template.jinja"
        if default.exists():
            paths["default"] = default
        if paths:
            return {name: self._text(path) for name, path in paths.items()}
        template = self._tokenizer_config.chat_template or {}
        if isinstance(template, list):
            return {item.name: item.template for item in template}
        return {"default": template} if isinstance(template, str) else template

    @staticmethod
    def _text(path: Path) -> str:
        require_file(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read ({error})") from error

    @property
    def bos_id(self) -> int | None:
        """The token that texts begin with: tokenizer_config.json's, else config.json's."""
        found = self.token_ids.get(_text_of(self._tokenizer_config.bos_token) or "")
        configured = self._config_ids.bos_token_id
        return configured if found is None and isinstance(configured, int) else found

    @property
    def sampling(self) -> ModelSampling:
        """How generation_config.json says that the model should be sampled."""
        return self._generation.sampling

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end a text by any of the files, tokenizer_config.json's first."""
        named = self.token_ids.get(_text_of(self._tokenizer_config.eos_token) or "")
        found = [] if named is None else [named]
        for ids in (self._generation.ids.eos_token_id, self._config_ids.eos_token_id):
            if ids is not None:
                found += [ids] if isinstance(ids, int) else ids
        return list(dict.fromkeys(found))

    @cached_property
    def frame(self) -> Frame:
        """What tokenizer.json puts around a prompt; tokenizer_config.json may add or remove BOS
        and EOS."""
        step, config = self._typed.post_processor, self._tokenizer_config
        steps = [] if step is None else step.processors or [step]
        frames = [_frame(step) for step in steps]
        before = [i for frame in reversed(frames) for i in frame.before]
        after = [i for frame in frames for i in frame.after]
        before = self._switched(before, config.add_bos_token, self.bos_id, "add_bos_token")
        eos_id = next(iter(self.eos_ids), None)
        after = self._switched(after[::-1], config.add_eos_token, eos_id, "add_eos_token")[::-1]
        for i in (*before, *after):
            if not 0 <= i < self.vocab_size:
                where = self._folder
                raise ConfigError(f"{where}: prompts get the token {i}, which has no embedding")
        return Frame(before, after)

    def _switched(
        self, ids: list[int], switch: bool | None, token: int | None, key: str
    ) -> list[int]:
        """`ids`, with `token` in front or without it as `switch` says."""
        if switch is None:
            return ids
        if not switch:
            return [i for i in ids if i != token]
        if token is None:
            where = self._folder / "tokenizer_config.json"
            raise ConfigError(f"{where}: {key} without such a token")
        return ids if token in ids else [token, *ids]


def _read(
    path: Path,
    must_exist: bool = False,
    max_bytes: int = MAX_JSON_BYTES,
    decode: Callable[[bytes], Any] = msgspec.json.decode,
) -> dict[str, Any]:
    if not must_exist and not path.exists():
        return {}
    require_file(path, max_bytes)
    try:
        return msgspec.convert(decode(path.read_bytes()), dict[str, Any])
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error


def _convert(path: Path, content: Mapping[str, Any], kind: type[_T]) -> _T:
    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _generation_config(path: Path) -> _Generation:
    """What generation_config.json says; nothing if it cannot be read, as no model needs it. It is
    read as transformers does, which writes NaN and Infinity."""
    try:
        found = _read(path, decode=json.loads)
    except ConfigError as error:
        problem = f"{error}: neither its sampling nor its end tokens (eos_token_id) are used"
        return _Generation(_Ids(), ModelSampling(problems=(problem,)))
    return _Generation(_convert(path, found, _Ids), read_sampling(path, found, "hf"))


def merged_tokens(merges: Iterable[str | Sequence[str]]) -> Iterator[str]:
    """What each of tokenizer.json's merges makes."""
    for merge in merges:
        yield "".join(merge.split(" ") if isinstance(merge, str) else merge)


def _named_tokens(tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """The texts of `bos_token`, `pad_token` and so on, without those that are not set."""
    names = {}
    for name, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            names[name] = text
    return names


def _text_of(token: str | _Content | None) -> str | None:
    """A token of tokenizer_config.json, written there as a string or as an object."""
    return token.content if isinstance(token, _Content) else token


def _frame(processor: TokenizerStep) -> Frame:
    """What one post-processor puts around a text."""
    if processor.type in ("BertProcessing", "RobertaProcessing"):
        before, after = ([] if end is None else [end[1]] for end in (processor.cls, processor.sep))
        return Frame(before, after)
    frame, has_text = Frame([], []), False
    for piece in processor.single:
        if piece.special is None:
            has_text = True
        elif piece.special.id in processor.special_tokens:
            (frame.after if has_text else frame.before).extend(
                processor.special_tokens[piece.special.id].ids
            )
    return frame
