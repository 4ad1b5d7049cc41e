"""tiktoken's files in a model directory, against the tiktoken package and against the merges from
which the ranks come."""

import base64
import random
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.files.gguf_tokens import PRE_KINDS, byte_level_alphabet
from srt.files.model_files import ModelFiles
from srt.files.tiktoken import MODEL_TYPES
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.errors import ConfigError
from tests.model_files import write_json
from tests.running.profiles import some
from tests.srt.files.test_bpe_kinds import LLAMA3, TEXT, trained, write_bpe

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{word}(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    for word in (f"{UPPER}*{LOWER}+", f"{UPPER}+{LOWER}*")
)
OTHERS = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# From the families' own code.
PATTERNS = {
    "glm4": LLAMA3,
    "dbrx": LLAMA3,
    "llama-bpe": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
    "gpt-4o": CASED + OTHERS,
    "kimi-k2": r"[\p{Han}]+|"
    + CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
    + OTHERS.replace("/]", "]"),
}
ADDED = {"<|bos|>": 1505, "<|im_end|>": 1510, "<think>": 1500}  # ids with gaps
CONFIG = {
    "bos_token": "<|bos|>",
    "eos_token": {"content": "<|im_end|>"},
    "added_tokens_decoder": {
        str(i): {"content": text, "special": "|" in text} for text, i in ADDED.items()
    },
}
PIECES = st.lists(TEXT | st.sampled_from(sorted(ADDED)), max_size=4).map("".join)
BYTES = {bytes([byte]): byte for byte in range(256)}


def learned() -> dict[bytes, int]:
    """The ranks of a vocabulary that was learned: bytes, then tokens in the order of merging."""
    alphabet = byte_level_alphabet()
    return {bytes(map(alphabet.__getitem__, token)): i for i, token in enumerate(trained()[0])}


def file_of(ranks: Mapping[bytes, int]) -> bytes:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    return b"".join(lines)


def write_directory(
    path: Path,
    data: bytes,
    model_type: Any = "qwen2",
    name: str = "qwen.tiktoken",
    config: Mapping[str, Any] = CONFIG,
    rows: int = 1600,
) -> ModelFiles:
    (path / name).write_bytes(data)
    sizes = {"max_position_embeddings": 64, "vocab_size": rows, "model_type": model_type}
    write_json(path / "config.json", sizes)
    write_json(path / "tokenizer_config.json", config)
    return ModelFiles("small", "hf", path)


def of_tiktoken(ranks: dict[bytes, int], pattern: str) -> Any:
    """The package's own encoding."""
    make = pytest.importorskip("tiktoken").Encoding
    return make("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens=ADDED)


@pytest.mark.parametrize("model_type", some(MODEL_TYPES, "llama"))
@pytest.mark.draws
def test_ids_are_those_of_tiktoken(tmp_path: Path, model_type: str) -> None:
    kind = MODEL_TYPES[model_type]
    files = write_directory(tmp_path, file_of(learned()), model_type)
    theirs = of_tiktoken(learned(), PATTERNS[kind])
    ours, plain, vocab = load_tokenizer(files), load_plain_tokenizer(files), load_vocab(files)

    @given(PIECES)
    def check(text: str) -> None:
        text = unicodedata.normalize("NFC", text) if PRE_KINDS[kind].nfc else text
        ids = theirs.encode(text, allowed_special="all")
        assert ours.encode(text, add_special_tokens=False).tolist() == ids
        assert vocab.decode(ids, skip_special_tokens=False) == text
        as_text = plain.split(text).ids
        assert vocab.special_ids.isdisjoint(as_text)
        assert vocab.decode(as_text) == text

    check()
    assert (ours.encode("the")[0] == 1505) == vocab.add_bos == (model_type == "llama")


def test_vocabularies_that_nobody_learned(tmp_path: Path) -> None:
    """Ranks in random order, and tokens that no merges make, are encoded as tiktoken does."""
    rng = random.Random(3)
    for _ in range(40):
        made = {"".join(rng.choices("abc", k=rng.randint(2, 5))).encode() for _ in range(30)}
        ids = rng.sample(range(1000), 256 + len(made))
        ranks = dict(zip([*BYTES, *sorted(made)], ids, strict=True))
        ours = load_tokenizer(write_directory(tmp_path, file_of(ranks)))
        theirs = of_tiktoken(ranks, PATTERNS["qwen2"])
        for _ in range(60):
            text = "".join(rng.choices("aabbc ", k=rng.randint(1, 40)))
            assert ours.encode(text).tolist() == theirs.encode(text), text


@pytest.mark.draws
def test_ids_are_those_of_the_merges(tmp_path: Path) -> None:
    """Also without the package, against the BPE that learned the ranks."""
    ours = load_tokenizer(write_directory(tmp_path, file_of(learned())))
    theirs = load_tokenizer(write_bpe(tmp_path / "m.gguf", "qwen2"))

    @given(TEXT)
    def check(text: str) -> None:
        ids = theirs.encode(text, add_special_tokens=False) - 2  # it has 2 special tokens first
        assert ours.encode(text).tolist() == ids.tolist()

    check()


@pytest.mark.parametrize("name", ["a.tiktoken", "tokenizer.model", "tiktoken.model"])
def test_names_of_files(tmp_path: Path, name: str) -> None:
    vocab = load_vocab(write_directory(tmp_path, file_of(BYTES), name=name))
    assert vocab.token_bytes[:256] == list(BYTES)
    assert (vocab.bos_id, vocab.eos_ids) == (1505, (1510,))
    assert vocab.special_ids == {1505, 1510}
    assert vocab.token_bytes[1500] == b"<think>"


def test_every_model_type_is_in_the_documents() -> None:
    text = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"`model_type` of `config.json`, which must be one of([^;]*);", text)
    assert re.findall("`(.*?)`", listed) == list(MODEL_TYPES)


def test_a_model_that_wants_bos_and_does_not_name_it(tmp_path: Path) -> None:
    config: dict[str, Any] = {"added_tokens_decoder": {}}
    files = write_directory(tmp_path, file_of(BYTES), "llama", config=config)
    assert load_tokenizer(files).encode("a").tolist() == [97]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "no token is the byte 0x00"),
        (b"IQ== 0\nIg==\n", "the line b'Ig==' is not a token in base64 and its rank"),
        (b"IQ== 0\n!! 1\n", "the line b'!! 1' is not a token"),
        (b"IQ== 0\n\nIg== 1\n", "the line b'' is not a token"),
        (b"IQ== x\n", "the line b'IQ== x' is not a token"),
        (b"IQ== " + b"9" * 5000, "is not a token"),
        (file_of(BYTES)[7:], "no token is the byte 0x00"),
        (file_of(BYTES | {b"ab": 7}), "a token or a rank comes twice"),
        (file_of(BYTES) + b"YWI= 256\nYWI= 257\n", "a token or a rank comes twice"),
        (file_of(BYTES | {b"ab": 1505}), "has a token or a rank that tokenizer_config.json"),
        (file_of(BYTES | {b"<think>": 300}), "has a token or a rank that tokenizer_config"),
        (file_of(BYTES | {b"ab": -1}), "Expected `int` >= 0"),
        (file_of(BYTES | {b"ab": 1 << 40}), "cannot be loaded|text becomes tokens of ids up to"),
        (file_of(BYTES | {b"a" * 12_000: 256}), "the squares of their lengths add up to 144000256"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, data: bytes, error: str) -> None:
    files = write_directory(tmp_path, data)
    with pytest.raises(ConfigError, match=f"qwen.tiktoken: .*({error})"):
        load_tokenizer(files)


@pytest.mark.parametrize("model_type", [None, "bert", ["llama"], {}])
def test_models_whose_words_are_not_known(tmp_path: Path, model_type: Any) -> None:
    files = write_directory(tmp_path, file_of(BYTES), model_type)
    with pytest.raises(ConfigError, match=r"qwen.tiktoken: .* for models of type .* only for"):
        load_vocab(files)


@pytest.mark.parametrize(
    "config", [{}, {"added_tokens_decoder": None}, {"added_tokens_decoder": {"x": {}}}]
)
def test_special_tokens_must_be_listed(tmp_path: Path, config: dict[str, Any]) -> None:
    """Without the list, the control tokens of a chat would be text."""
    files = write_directory(tmp_path, file_of(BYTES), config=config)
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: .*qwen.tiktoken needs it"):
        load_vocab(files)


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    """Only ids that no text has may be above the model's rows."""
    assert load_tokenizer(write_directory(tmp_path, file_of(BYTES), rows=300)).encode(
        "a"
    ).tolist() == [97]
    for ranks in (BYTES | {b"ab": 300}, {**BYTES, b"b": 300}):
        files = write_directory(tmp_path, file_of(ranks), rows=300)
        with pytest.raises(ConfigError, match=r"ids up to 300, but vocab_size of config.json"):
            load_tokenizer(files)
