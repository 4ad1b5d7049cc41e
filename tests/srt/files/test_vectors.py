"""The vectors of llama.cpp: texts, and the ids that each family's own tokenizer made of them.

They are not copied: SRT_VOCABS names the folder with `ggml-vocab-NAME.gguf`, `.gguf.inp` and
`.gguf.out`, which is `models/` of llama.cpp's source; without it these tests are skipped.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from srt.files.gguf import GGUFFile
from srt.files.gguf_tokens import GGUFTokens, TokenType, byte_level_alphabet
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import Tokenizer, load_tokenizer
from tests.srt.files.test_tiktoken import file_of, write_directory

VOCABS = Path(os.environ.get("SRT_VOCABS", "none"))
SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VOCABS.is_dir(), reason="no vocabularies: set SRT_VOCABS"),
]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_the_vectors(name: str) -> None:
    path = VOCABS / f"ggml-vocab-{name}.gguf"
    check_vectors(load_tokenizer(ModelFiles(name, "gguf", path)), path)


@pytest.mark.parametrize(("name", "model_type"), [("llama-bpe", "llama"), ("qwen2", "qwen2")])
def test_ids_of_tiktokens_files(tmp_path: Path, name: str, model_type: str) -> None:
    """The same vocabularies as files of tiktoken, which have only ranks: the merges are found."""
    path = VOCABS / f"ggml-vocab-{name}.gguf"
    tokens, alphabet = GGUFTokens(GGUFFile(path)), byte_level_alphabet()
    ranks = {
        bytes(map(alphabet.__getitem__, text)): i
        for i, text in enumerate(tokens.texts)
        if tokens.types[i] == TokenType.NORMAL
    }
    config: dict[str, Any] = {"added_tokens_decoder": {}}
    rows = len(tokens.texts)
    files = write_directory(tmp_path, file_of(ranks), model_type, config=config, rows=rows)
    check_vectors(load_tokenizer(files), path)


def check_vectors(tokenizer: Tokenizer, path: Path) -> None:
    content = Path(f"{path}.inp").read_bytes().decode()
    texts = content.removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    assert len(texts) >= 46
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).tolist()
        assert ids == [int(i) for i in line.split()], text
