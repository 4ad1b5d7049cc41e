"""Text to token ids, through the `tokenizers` library and without transformers.

The tokenizer process encodes prompts with it, the scheduler what a grammar forces.
`load_tokenizer` builds the library's tokenizer from a GGUF file's metadata or loads it from
tokenizer.json. Invariant: BOS is added here and nowhere else, and never twice.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from srt.files.control_tokens import NO_TOKEN, ControlTokens
from srt.files.gguf import GGUFFile
from srt.files.gguf_encoder import begins_words_with_space, gguf_encoder, spm_words
from srt.files.gguf_tokens import GGUFTokens
from srt.files.hf import HFFiles, merged_tokens, tokenizer_path
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError


@contextmanager
def raising_exceptions() -> Iterator[None]:
    """Turn a panic of the library, which is no Exception and would end a process, into one."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ != "PanicException":
            raise
        reason = str(error).splitlines()[0] if str(error) else "a panic"
        raise RuntimeError(f"the tokenizers' library failed: {reason}") from None


class Tokenizer:
    """Encodes text for one model. The special tokens `before` and `after` are put around each
    prompt. `inner`: an encoder for text that does not begin a prompt, if `encoder` would treat it
    differently. `controls`, texts or ids, are control tokens besides those that look like ones."""

    def __init__(
        self,
        encoder: tokenizers.Tokenizer,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        inner: tokenizers.Tokenizer | None = None,
        controls: Collection[str | int] = (),
    ) -> None:
        self.control = ControlTokens(encoder, controls)
        self._encoder = encoder
        self._inner = inner or encoder
        if inner is not None:
            ControlTokens(inner, controls)
        self._before = list(before)
        self._after = list(after)

    def encode(self, text: str, add_special_tokens: bool = True) -> np.ndarray:
        """The ids of `text`, int32 [n]. Special tokens written in the text become their ids.

        With `add_special_tokens`, the text gets those that the model wants at its start, most often
        BOS, unless it already starts with them; the same at its end, where few models want any.
        """
        return self._framed(_ids(self._encoder, text), add_special_tokens)

    def encode_marked(self, text: str, mark: str, add_special_tokens: bool = True) -> np.ndarray:
        """The ids of `text` without its characters `mark`, int32 [n]. Control tokens that hold a
        mark (see `ControlTokens.marked`) are text, the others become their ids."""
        ids: list[int] = []
        done = 0
        for found in self.control.find(text):
            if found.id == NO_TOKEN:
                continue
            ids += self._plain(text[done : found.start].replace(mark, ""), done)
            ids.append(found.id)
            done = found.stop
        ids += self._plain(text[done:].replace(mark, ""), done)
        return self._framed(ids, add_special_tokens)

    def _plain(self, text: str, start: int) -> list[int]:
        """The ids of a text at `start` of a prompt, in which control tokens are text."""
        if not text:
            return []
        encoder = self._inner if start else self._encoder
        with _special_as_text(encoder), _special_as_text(self._inner):
            ids = _ids(encoder, text)
            if not self.control.ids.isdisjoint(ids):
                # The control token is also a word of the model's own vocabulary: it is cut.
                ids = [i for part in self.control.broken(text) for i in _ids(self._inner, part)]
        return ids

    def _framed(self, ids: list[int], add_special_tokens: bool) -> np.ndarray:
        if add_special_tokens:
            before, after = self._before, self._after
            if ids[: len(before)] != before:
                ids = before + ids
            if after and ids[-len(after) :] != after:
                ids = ids + after
        return np.array(ids, dtype=np.int32)

    def normalized_length(self, text: str) -> int:
        """How many characters the normalizer makes of `text`."""
        normalizer = self._encoder.normalizer
        with raising_exceptions():
            return len(normalizer.normalize_str(text)) if normalizer else len(text)

    def encode_inside(self, text: str) -> np.ndarray:
        """The ids of `text` where it continues other text, int32 [n].

        Some tokenizers put a space before a text, so it is encoded after a line break, or alone
        where it would merge with the line break.
        """
        before, ids, alone = (
            self.encode(t, add_special_tokens=False) for t in ("\n", "\n" + text, text)
        )
        count = len(before)
        return ids[count:] if np.array_equal(ids[:count], before) else alone


@contextmanager
def _special_as_text(encoder: tokenizers.Tokenizer) -> Iterator[None]:
    encoder.encode_special_tokens = True
    try:
        yield
    finally:
        encoder.encode_special_tokens = False


def _ids(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    # Unlike `encode`, this does not keep where each token lies in the text: half the time.
    with raising_exceptions():
        (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


class Pieces(NamedTuple):
    """A text's ids, and for each id the index of the pre-tokenizer's word that it belongs to."""

    ids: list[int]
    words: list[int | None]


class PlainTokenizer:
    """Encodes text that continues other text, and in which special tokens are text like any other.

    No space is put in front of it.
    """

    def __init__(self, encoder: tokenizers.Tokenizer) -> None:
        encoder.encode_special_tokens = True
        self._encoder = encoder

    def split(self, text: str) -> Pieces:
        """The ids of `text`, without BOS."""
        with raising_exceptions():
            encoding = self._encoder.encode(text, add_special_tokens=False)
        return Pieces(encoding.ids, encoding.word_ids)

    @property
    def cuts_words(self) -> bool:
        """Whether text is encoded word by word. If not, the ids at a text's end depend on all of
        it."""
        normalizer, cut = self._encoder.normalizer, self._encoder.pre_tokenizer
        text = normalizer.normalize_str("a a") if normalizer else "a a"
        return cut is not None and len(cut.pre_tokenize_str(text)) > 1


def load_tokenizer(files: ModelFiles, controls: Collection[str | int] = ()) -> Tokenizer:
    """The tokenizer of a model, with further control tokens. Raises ConfigError for kinds that are
    not supported."""
    if files.text_kind == "hf":
        hf = HFFiles(files.path, files.text_path)
        encoder = _built(files, hf.embedded_tokenizer)
        return Tokenizer(encoder, *hf.frame, _inner(files, hf), controls)
    tokens = GGUFTokens(GGUFFile(files.text_path))
    before = [tokens.bos_id] if tokens.add_bos and tokens.bos_id is not None else []
    ends = tokens.eos_ids()
    after = ends[:1] if tokens.add_eos else ()
    return Tokenizer(_of_gguf(tokens), before, after, controls=controls)


def _inner(files: ModelFiles, hf: HFFiles) -> tokenizers.Tokenizer | None:
    """The encoder for text inside a prompt, where only the prompt's beginning gets a space."""
    content = hf.embedded_tokenizer or hf.tokenizer
    steps = json.dumps(content.get("pre_tokenizer"))
    never = steps.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    if never == steps:
        return None
    return _built(files, {**content, "pre_tokenizer": json.loads(never)})


def load_plain_tokenizer(files: ModelFiles) -> PlainTokenizer:
    """The same for text that is not a prompt. Raises ConfigError as `load_tokenizer` does."""
    if files.text_kind == "gguf":
        return PlainTokenizer(_of_gguf(GGUFTokens(GGUFFile(files.text_path)), plain=True))
    hf = HFFiles(files.path, files.text_path)
    content = hf.embedded_tokenizer or hf.tokenizer
    changed = {part: _without_prefix(content.get(part)) for part in _PREFIXING_PARTS}
    encoder = _built(files, {**content, **changed})
    if hf.is_spm and _can_cut_at_spaces(content["model"]):
        cuts = [encoder.pre_tokenizer] if encoder.pre_tokenizer else []
        encoder.pre_tokenizer = pre_tokenizers.Sequence([*cuts, spm_words()])
    return PlainTokenizer(encoder)


def _of_gguf(tokens: GGUFTokens, plain: bool = False) -> tokenizers.Tokenizer:
    try:
        with raising_exceptions():
            return _tried(gguf_encoder(tokens, plain))
    except ConfigError:
        raise
    except Exception as error:  # the library raises bare Exception for every kind of bad merge
        raise ConfigError(f"{tokens.path}: tokenizer.ggml cannot be used ({error})") from error


# ---- tokenizer.json ---------------------------------------------------------------------------

_TRIAL = "A trial, 12 words:\n\tit's naïve 汉字."
_PREFIXING_PARTS = ("normalizer", "pre_tokenizer")
_NO_PREFIX = {"add_prefix_space": False, "prepend_scheme": "never"}


def _built(files: ModelFiles, content: dict[str, Any] | None = None) -> tokenizers.Tokenizer:
    """The library's tokenizer made from tokenizer.json, or from `content` in its place, without
    the limits that it may set."""
    path = str(tokenizer_path(files.text_path))
    try:
        library = tokenizers.Tokenizer
        with raising_exceptions():
            if content is None:
                encoder = _tried(library.from_file(path))
            else:
                encoder = _tried(library.from_str(json.dumps(content)))
    except Exception as error:  # the library raises bare Exception for every kind of bad file
        raise ConfigError(f"{path}: cannot be loaded ({error})") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _tried(encoder: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """An encoder that can encode anything at all: some files only fail when they are used."""
    encoder.encode_batch_fast([_TRIAL], add_special_tokens=False)
    return encoder


def _without_prefix(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer that does the same without a space in front of the text."""
    if step is None or step["type"] == "Prepend":
        return None
    changed = dict(step)
    for parts in ("normalizers", "pretokenizers"):
        if parts in step:
            changed[parts] = [part for s in step[parts] if (part := _without_prefix(s))]
    changed |= {key: value for key, value in _NO_PREFIX.items() if key in step}
    return changed


def _can_cut_at_spaces(model: dict[str, Any]) -> bool:
    """Whether a model of SentencePiece's kind encodes a text as it encodes its words one by one."""
    return model.get("type") == "BPE" and begins_words_with_space(merged_tokens(model["merges"]))
