"""Vocab from GGUF files and from Hugging Face directories."""

from pathlib import Path

import gguf
import pytest
from tokenizers import decoders, processors

from srt.errors import ConfigError
from srt.model.files import resolve_model
from srt.model.tokenizer import load_tokenizer
from srt.model.vocab import load_vocab
from tests.model_files import (
    CORPUS,
    GGUF_PADDING_ROWS,
    byte_level_tokenizer,
    save_directory,
    spm_tokenizer,
    write_gguf,
    write_json,
)
from tests.spm_files import write_spm_gguf

TEXTS = [*CORPUS, "日本 é\n\tx", "👍🏽 ok"]


def test_gguf(tmp_path: Path) -> None:
    vocab = load_vocab(write_gguf(tmp_path / "tiny.gguf"))
    assert vocab.model_name == "tiny"
    assert vocab.token_bytes[:2] == [b"<|end|>", b"<|start|>"]
    assert vocab.token_bytes[2:258] == [bytes([byte]) for byte in range(256)]
    assert vocab.token_bytes[258:263] == [b"th", b"the", b" the", b" 1", b"<think>"]
    assert vocab.token_bytes[263:] == [b""] * (1 + GGUF_PADDING_ROWS)
    assert vocab.vocab_size == 264 + GGUF_PADDING_ROWS
    assert vocab.special_ids == {0, 1}
    assert vocab.eos_ids == (0, 1)
    assert (vocab.bos_id, vocab.add_bos) == (1, True)
    assert (vocab.context_len, vocab.chat_template) == (128, None)


def test_gguf_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'rwkv' is not supported"):
        load_vocab(write_gguf(tmp_path / "other.gguf", model="rwkv"))


def test_the_embedded_model() -> None:
    vocab = load_vocab(resolve_model("smollm2"))
    assert (vocab.vocab_size, vocab.context_len) == (49152, 8192)
    assert [vocab.token_bytes[i] for i in vocab.eos_ids] == [b"<|im_end|>", b"<|endoftext|>"]
    assert not vocab.add_bos
    assert vocab.special_ids == set(range(17))
    assert vocab.token_bytes[2] == b"<|im_end|>"
    assert {bytes([byte]) for byte in b"\n\t aZ~"} <= set(vocab.token_bytes)
    assert vocab.chat_template is not None
    assert "<|im_start|>" in vocab.chat_template


def test_byte_level_directory(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    vocab = load_vocab(save_directory(tmp_path, tokenizer))
    size = tokenizer.get_vocab_size()
    assert vocab.vocab_size == size + 5
    assert vocab.token_bytes[size:] == [b""] * 5
    assert vocab.special_ids == {0, 1}
    assert vocab.token_bytes[size - 1] == "<tool> é".encode()
    for text in TEXTS:
        assert vocab.decode(tokenizer.encode(text).ids) == text
    assert vocab.decode([0, size - 1, 1]) == "<tool> é"
    assert vocab.decode([0, 1], skip_special_tokens=False) == "<bos><eos>"


def test_spm_directory(tmp_path: Path) -> None:
    tokenizer = spm_tokenizer()
    vocab = load_vocab(save_directory(tmp_path, tokenizer))
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert vocab.decode_prompt(ids) == tokenizer.decode(ids) == text
        assert b"".join(vocab.token_bytes[i] for i in ids) == b" " + text.encode()


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    vocab = load_vocab(save_directory(tmp_path, byte_level_tokenizer()))
    broken = vocab.token_bytes.index(b"\xc3")
    assert vocab.decode([broken, vocab.token_bytes.index(b"a")]) == "\ufffda"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder()])
def test_other_decoders_are_refused_by_name(tmp_path: Path, decoder: decoders.Decoder) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.decoder = decoder
    with pytest.raises(ConfigError, match=type(decoder).__name__):
        load_vocab(save_directory(tmp_path, tokenizer))


def test_eos_ids_of_all_files_tokenizer_first(tmp_path: Path) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer(), {"eos_token_id": [7, 1]})
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [9, 7]})
    assert load_vocab(files).eos_ids == (1, 9, 7)


def test_bos_is_added_as_tokenizer_json_says(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    assert not load_vocab(save_directory(tmp_path, tokenizer)).add_bos
    template = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    vocab = load_vocab(save_directory(tmp_path, tokenizer))
    assert (vocab.add_bos, vocab.bos_id) == (True, 0)
    off = save_directory(tmp_path, tokenizer, tokenizer_config={"add_bos_token": False})
    assert not load_vocab(off).add_bos


def test_eos_is_added_as_tokenizer_json_says(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    assert not load_vocab(save_directory(tmp_path, tokenizer)).add_eos
    special = [("<bos>", 0), ("<eos>", 1)]
    template = processors.TemplateProcessing("<bos> $A <eos>", special_tokens=special)
    tokenizer.post_processor = template
    files = save_directory(tmp_path, tokenizer)
    assert load_vocab(files).add_eos
    for text in ("the cat", "the cat<eos>", ""):
        ids = load_tokenizer(files).encode(text).tolist()
        assert ids == tokenizer.encode(text.removesuffix("<eos>")).ids
    config = {"add_eos_token": False, "add_bos_token": False}
    files = save_directory(tmp_path, tokenizer, tokenizer_config=config)
    plain = tokenizer.encode("the cat", add_special_tokens=False).ids
    assert load_tokenizer(files).encode("the cat").tolist() == plain


def test_chat_templates_of_files_win(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    config = {"chat_template": templates}
    files = save_directory(tmp_path, byte_level_tokenizer(), tokenizer_config=config)
    vocab = load_vocab(files)
    assert (vocab.chat_template, vocab.tool_template) == ("D", "T")
    (tmp_path / "chat_template.jinja").write_text("J")
    vocab = load_vocab(files)
    assert (vocab.chat_template, vocab.tool_template) == ("J", None)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("U")
    vocab = load_vocab(files)
    assert (vocab.chat_template, vocab.tool_template) == ("J", "U")


@pytest.mark.parametrize("given", ["D", {"default": "D"}])
def test_a_chat_template_alone(tmp_path: Path, given: object) -> None:
    config = {"chat_template": given}
    files = save_directory(tmp_path, byte_level_tokenizer(), tokenizer_config=config)
    vocab = load_vocab(files)
    assert (vocab.chat_template, vocab.tool_template) == ("D", None)


def test_chat_templates_of_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_chat_template("D")
    assert load_vocab(write_spm_gguf(path, writer=writer)).chat_template == "D"
    writer = gguf.GGUFWriter(path, "llama")
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    writer.add_chat_template(named)
    vocab = load_vocab(write_spm_gguf(path, writer=writer))
    assert (vocab.chat_template, vocab.tool_template) == ("D", "T")


def test_missing_context_length_is_named(tmp_path: Path) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer(), {"max_position_embeddings": None})
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        load_vocab(files)
