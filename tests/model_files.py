"""Small model files for tests: directories with tokenizer.json, and GGUF files.

The byte-level models have one token per byte, some learned merges, and the special tokens `<bos>`
and `<eos>`; the one like SentencePiece has byte fallback.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from srt.files.gguf_tokens import byte_level_alphabet
from srt.files.model_files import ModelFiles

CORPUS = ["the cat sat on the mat", "the hat of the cat", "naïve café, naïve cat", "12 cats 34"]
CONFIG = {"max_position_embeddings": 64, "eos_token_id": 1}
TOKENIZER_CONFIG = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}}


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def save_directory(
    path: Path,
    tokenizer: tokenizers.Tokenizer,
    config: dict[str, Any] | None = None,
    tokenizer_config: dict[str, Any] | None = None,
) -> ModelFiles:
    """Write `tokenizer` as a model directory; its embedding has 5 more rows than tokens."""
    tokenizer.save(str(path / "tokenizer.json"))
    size = tokenizer.get_vocab_size() + 5
    write_json(path / "config.json", {**CONFIG, "vocab_size": size, **(config or {})})
    write_json(path / "tokenizer_config.json", {**TOKENIZER_CONFIG, **(tokenizer_config or {})})
    return ModelFiles("small", "hf", path)


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE trained on CORPUS. Ids 0 and 1 are <bos> and <eos>; "<tool>" is added."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool> é", special=False, normalized=False)])
    return tokenizer


def spm_tokenizer() -> tokenizers.Tokenizer:
    """BPE over characters with U+2581 for spaces and <0xXX> for what is not in the vocabulary."""
    specials = ["<bos>", "<eos>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    chars = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    merges = [("c", "a"), ("\u2581", "t"), ("\u2581t", "h")]
    tokens = specials + byte_tokens + chars + ["".join(pair) for pair in merges]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in specials])
    return tokenizer


GGUF_MERGES = ["t h", "th e", "Ġ the", "Ġ 1"]
GGUF_CONTROL = ["<|end|>", "<|start|>"]
GGUF_PADDING_ROWS = 3


def write_gguf(path: Path, *, pre: str = "smollm", model: str = "gpt2") -> ModelFiles:
    """A GGUF file with the byte alphabet, GGUF_MERGES, two control tokens and an unused one."""
    alphabet = sorted(byte_level_alphabet(), key=byte_level_alphabet().__getitem__)
    normal = alphabet + [merge.replace(" ", "") for merge in GGUF_MERGES]
    tokens = [*GGUF_CONTROL, *normal, "<think>", "[PAD]"]
    types = [3] * len(GGUF_CONTROL) + [1] * len(normal) + [4, 5]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(GGUF_MERGES)
    writer.add_eos_token_id(0)
    writer.add_eot_token_id(1)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(True)
    rows = len(tokens) + GGUF_PADDING_ROWS
    rng = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", rng.random((rows, 8), dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.arange(8, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles("tiny", "gguf", path)
