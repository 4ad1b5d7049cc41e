"""Byte-level BPE from GGUF files: each kind of pre-tokenizer against the tokenizer that
transformers makes of the same file, or, if it does not know the kind, against the patterns."""

import json
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from srt.files.gguf_tokens import PRE_KINDS, byte_level_alphabet
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.spm_files import CORPUS

if TYPE_CHECKING:
    from transformers.integrations.gguf import gguf_tokenizer_mapping
else:
    gguf_tokenizer_mapping = late("transformers.integrations.gguf.gguf_tokenizer_mapping")


SPECIAL = ["<|begin|>", "<|eot_id|>"]
PARTS = sorted({word for text in CORPUS for word in text.split()})
PARTS += [
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "1",
    "2024",
    "don't",
    "WE'LL",
    "HelloWorld",
    "ABCdef",
    "'S",
]
PARTS += ["...", "//", "é", "e\u0301", "ǅ", "ـ", "日本", "٣", "½", "🐈‍⬛", "_", "$", "a'b"]
# Only characters that Python knows: the libraries' tables differ in newer ones.
KNOWN_CHARACTERS = st.characters(exclude_characters="<", exclude_categories=("Cn", "Cs"))
OTHERS = st.text(KNOWN_CHARACTERS, max_size=3)
TEXT = st.lists(st.sampled_from(PARTS) | OTHERS, max_size=12).map("".join)


@cache
def trained() -> tuple[list[str], list[str]]:
    """Tokens and merges learned across words, so that only a pre-tokenizer keeps the pieces of two
    words apart."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=sorted(byte_level_alphabet()),
        max_token_length=6,
        show_progress=False,
    )
    pairs = [a + b for a in PARTS for b in PARTS[::7]]
    tokenizer.train_from_iterator([*CORPUS, *pairs], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = model["vocab"]
    return sorted(vocab, key=vocab.__getitem__), [" ".join(merge) for merge in model["merges"]]


def write_bpe(
    path: Path, pre: str | None, extra: Sequence[str] = (), has_bos: bool = True, **keys: bool
) -> ModelFiles:
    tokens, merges = trained()
    tokens = [*tokens, *extra]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*SPECIAL, *tokens])
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(tokens))
    writer.add_token_merges(merges)
    if has_bos:
        writer.add_bos_token_id(0)
    for key, value in keys.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    writer.add_tensor("output_norm.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles(path.stem, "gguf", path)


def of_transformers(path: Path, pre: str) -> Tokenizer:
    """The tokenizer that transformers makes of a GGUF file, with `ignore_merges` added."""
    arch, content, _ = gguf_tokenizer_mapping.get_gguf_tokenizer(str(path))
    tokenizer = gguf_tokenizer_mapping.convert_gguf_tokenizer(arch, content)[0]
    tokenizer.model.ignore_merges = PRE_KINDS[pre].whole_words
    return tokenizer


def cut_in_turn(text: str, patterns: list[str]) -> list[str]:
    """`text` cut by each pattern in turn: its matches, and the text between them."""
    parts = [text]
    for pattern in patterns:
        found = []
        for part in parts:
            ends = [0, *(at for m in regex.finditer(pattern, part) for at in m.span()), len(part)]
            found += [part[a:b] for a, b in pairwise(ends) if a < b]
        parts = found
    return parts


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ASIAN = "[一-龥ࠀ-一가-\ud7ff]+"
KIMI_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}--\p{Han}]"
KIMI_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}--\p{Han}]"
# As llama.cpp lists them.
IN_TURN = {
    "smollm": [r"\p{N}", GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "refact": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "mpt": [GPT2],
    "chatglm-bpe": [LLAMA3],
    "glm4": [LLAMA3],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "deepseek-llm": [
        r"[\r\n]",
        r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",  # in place of llama.cpp's list; see below
        r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        ASIAN,
        r"\p{N}+",
    ],
    "kimi-k2": [
        r"(?V1)\p{Han}+|"
        + "|".join(
            rf"[^\r\n\p{{L}}\p{{N}}]?{word}(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
            for word in (f"{KIMI_UPPER}*{KIMI_LOWER}+", f"{KIMI_UPPER}+{KIMI_LOWER}*")
        )
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", ASIAN, r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        (
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ],
}


OTHER_CASED = regex.compile(r"(?V1)[\p{Lu}\p{Ll}\p{Lt}\u0295--[\x00-\u024f]]")
# Those that transformers knows by name, but for two that it takes for another.
KNOWN = sorted(PRE_KINDS.keys() - IN_TURN.keys() - {"gpt-2", "phi-2"})


@pytest.mark.parametrize("pre", some([*KNOWN, "gpt-2", "phi-2"], "llama-bpe", "qwen2"))
@pytest.mark.draws
def test_ids_are_those_of_transformers(tmp_path: Path, pre: str) -> None:
    files = write_bpe(tmp_path / "m.gguf", pre)
    ours, theirs = load_tokenizer(files), of_transformers(files.path, pre)
    vocab = load_vocab(files)
    composed = PRE_KINDS[pre].nfc

    @given(TEXT)
    def check(text: str) -> None:
        ids = ours.encode(text, add_special_tokens=False).tolist()
        if composed:
            text = unicodedata.normalize("NFC", text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert vocab.decode(ids) == text

    check()


@pytest.mark.parametrize("pre", some(IN_TURN, "falcon", "deepseek-v3"))
@pytest.mark.draws
def test_words_are_those_of_the_patterns(tmp_path: Path, pre: str) -> None:
    files = write_bpe(tmp_path / "m.gguf", pre)
    plain, token_bytes = load_plain_tokenizer(files), load_vocab(files).token_bytes

    @given(TEXT)
    def check(text: str) -> None:
        if pre == "deepseek-llm":
            text = OTHER_CASED.sub("", text)
        if PRE_KINDS[pre].nfc:
            text = unicodedata.normalize("NFC", text)
        pieces = plain.split(text)
        words: dict[int | None, bytes] = {}
        for piece, word in zip(pieces.ids, pieces.words, strict=True):
            words[word] = words.get(word, b"") + token_bytes[piece]
        found = [word.decode() for word in words.values()]
        assert found == cut_in_turn(text, IN_TURN[pre])

    check()


@pytest.mark.parametrize(
    ("letters", "words"), [("ЖǅꭰʕΩ", 1), ("aա", 2), ("a𝐀", 2), ("aꞐ", 2), ("aª", 2)]
)
def test_the_letters_that_deepseek_lists(tmp_path: Path, letters: str, words: int) -> None:
    plain = load_plain_tokenizer(write_bpe(tmp_path / "m.gguf", "deepseek-llm"))
    assert len(set(plain.split(letters).words)) == words


def test_every_kind_is_tested_and_in_the_documents() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in PRE_KINDS if f"`{name}`" not in text] == []
    assert {*KNOWN} == PRE_KINDS.keys() & gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS.keys()


@pytest.mark.parametrize(
    ("pre", "keys", "first"),
    [
        ("llama-bpe", {}, 0),
        ("tekken", {}, 0),
        ("qwen2", {}, None),
        ("llama-bpe", {"add_bos_token": False}, None),
        ("qwen2", {"add_bos_token": True}, 0),
    ],
)
def test_bos_by_kind_unless_the_file_says(
    tmp_path: Path, pre: str, keys: dict[str, Any], first: int | None
) -> None:
    files = write_bpe(tmp_path / "m.gguf", pre, **keys)
    ids = load_tokenizer(files).encode("the").tolist()
    assert ids[: len(ids) - 1] == ([] if first is None else [first])
    assert load_vocab(files).eos_ids == (1,)


def test_a_file_that_wants_bos_must_name_it(tmp_path: Path) -> None:
    assert load_vocab(write_bpe(tmp_path / "a.gguf", "qwen2", has_bos=False)).bos_id is None
    cases: Any = (("b", "tekken", {}), ("c", "qwen2", {"add_bos_token": True}))
    for path, pre, keys in cases:
        with pytest.raises(ConfigError, match="bos_token_id is missing"):
            load_vocab(write_bpe(tmp_path / f"{path}.gguf", pre, has_bos=False, **keys))


def test_a_whole_word_that_is_a_token(tmp_path: Path) -> None:
    """Llama 3's tokenizer has tokens that its merges do not lead to."""
    tokens, _ = trained()
    files = write_bpe(tmp_path / "m.gguf", "llama-bpe", extra=["\u0120qqqq"])
    ids = load_tokenizer(files).encode("the qqqq the qqqqq", add_special_tokens=False)
    assert ids.tolist().count(len(SPECIAL) + len(tokens)) == 1
    files = write_bpe(tmp_path / "m2.gguf", "qwen2", extra=["\u0120qqqq"])
    ids = load_tokenizer(files).encode("the qqqq the qqqqq", add_special_tokens=False)
    assert ids.tolist().count(len(SPECIAL) + len(tokens)) == 0


def test_a_file_that_does_not_name_its_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pre-tokenizer None is not supported"):
        load_tokenizer(write_bpe(tmp_path / "m.gguf", pre=None))
