"""The tokenizer against goldens, and against the library on small models.

goldens_smollm2.json was made once: transformers' AutoTokenizer read the embedded GGUF file, its
pre-tokenizer was replaced by the one that `pre = smollm` stands for (single digits split off, then
GPT-2's pattern; transformers leaves out the digits), and it encoded each text. A plain-Python BPE
over the file's merges, with GPT-2's pattern in the `regex` package, gave the same ids.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from srt.files.model_files import ModelFiles, resolve_model
from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from srt.wire.errors import ConfigError
from tests.model_files import CORPUS, byte_level_tokenizer, save_directory, write_gguf

GOLDENS = json.loads((Path(__file__).parent / "goldens_smollm2.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2"))


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return load_vocab(resolve_model("smollm2"))


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: ascii(golden["text"])[:30])
def test_golden(smollm2: Tokenizer, vocab: Vocab, golden: dict[str, object]) -> None:
    ids = smollm2.encode(str(golden["text"]))
    assert ids.dtype == np.int32
    assert ids.tolist() == golden["ids"]
    assert vocab.decode(ids, skip_special_tokens=False) == golden["text"]


def test_gpt2_pattern_keeps_digits_together(tmp_path: Path) -> None:
    digits_split = load_tokenizer(write_gguf(tmp_path / "a.gguf", pre="smollm"))
    plain = load_tokenizer(write_gguf(tmp_path / "b.gguf", pre="gpt-2"))
    vocab = load_vocab(ModelFiles("b", "gguf", tmp_path / "b.gguf"))

    def split(tokenizer: Tokenizer) -> list[bytes]:
        return [vocab.token_bytes[i] for i in tokenizer.encode("x 12", False)]

    assert split(digits_split) == [b"x", b" ", b"1", b"2"]
    assert split(plain) == [b"x", b" 1", b"2"]


def test_gguf_control_and_user_defined_tokens_match_literally(tmp_path: Path) -> None:
    files = write_gguf(tmp_path / "tiny.gguf")
    ids = load_tokenizer(files).encode("the<|end|> the<think>", add_special_tokens=False)
    pieces = [load_vocab(files).token_bytes[i] for i in ids]
    assert pieces == [b"the", b"<|end|>", b" the", b"<think>"]


def test_bos_comes_once(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf"))
    assert tokenizer.encode("a").tolist()[:1] == [1]
    assert tokenizer.encode("").tolist() == [1]
    assert tokenizer.encode("<|start|>a").tolist() == tokenizer.encode("a").tolist()
    assert tokenizer.encode("", add_special_tokens=False).tolist() == []


def test_unknown_pre_tokenizer_lists_the_supported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'viking' is not supported \(bloom, .*, tekken are\)"):
        load_tokenizer(write_gguf(tmp_path / "tiny.gguf", pre="viking"))


def test_directory(tmp_path: Path) -> None:
    library = byte_level_tokenizer()
    library.enable_truncation(2)
    tokenizer = load_tokenizer(save_directory(tmp_path, library))
    library.no_truncation()
    for text in [*CORPUS, "é日本"]:
        assert tokenizer.encode(text).tolist() == library.encode(text).ids


def test_directory_with_a_broken_tokenizer(tmp_path: Path) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer())
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"BPE"', '"Odd"'))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_tokenizer(files)
