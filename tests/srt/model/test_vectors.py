"""The vectors of llama.cpp: texts, and the ids that each family's own tokenizer made of them.

They are not copied: SRT_VOCABS names the folder of its `ggml-vocab-NAME.gguf`, `.gguf.inp` and
`.gguf.out`, which its source has as `models/`; skipped without.
"""

import os
from pathlib import Path

import pytest

from srt.model.files import ModelFiles
from srt.model.tokenizer import load_tokenizer

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
    tokenizer = load_tokenizer(ModelFiles(name, "gguf", path))
    content = Path(f"{path}.inp").read_bytes().decode()
    texts = content.removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{path}.out").read_text(encoding="utf-8").splitlines()
    assert len(texts) >= 46
    for text, line in zip(texts, lines, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).tolist()
        assert ids == [int(i) for i in line.split()], text
