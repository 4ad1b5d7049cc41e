"""Vocab from GGUF files and from Hugging Face directories."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, processors

from srt.files.model_files import resolve_model
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.errors import ConfigError
from tests.model_files import (
    CORPUS,
    GGUF_PADDING_ROWS,
    byte_level_tokenizer,
    save_directory,
    spm_tokenizer,
    write_gguf,
    write_json,
)
from tests.running.late import late
from tests.spm_files import write_spm_gguf

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


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


def test_control_tokens_around_reasoning_and_calls_are_text(tmp_path: Path) -> None:
    """If the model's template has them; other control tokens are left out of texts."""
    marks = ["[THINK]", "[TOOL_CALLS]", "[INST]"]
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    ids: list[int] = [tokenizer.get_vocab()[mark] for mark in marks]
    template = "[THINK]{% if tools %}[TOOL_CALLS]{% endif %}"
    sizes = {"model_type": "llama", "bos_token_id": 0}
    for given, shown in ((template, "[THINK][TOOL_CALLS]"), ("{{ messages }}", "")):
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": given}
        vocab = load_vocab(save_directory(tmp_path, tokenizer, sizes, config))
        assert vocab.decode(ids) == b"".join(vocab.pieces(True)[i] for i in ids).decode() == shown
        assert vocab.decode(ids, skip_special_tokens=False) == "".join(marks)


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


@pytest.mark.parametrize(
    "template", ["[gMASK] <sop> $A", "[gMASK] <bos> $A", "<sop> $A <eos> [gMASK]", "$A"]
)
@pytest.mark.parametrize("bos", [{}, {"bos_token": None}])
def test_all_special_tokens_of_a_template_surround_a_prompt(
    tmp_path: Path, template: str, bos: dict[str, Any]
) -> None:
    """Not only BOS and EOS: GLM-4's prompts begin with two others."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens(["[gMASK]", "<sop>"])
    special = [(t, tokenizer.token_to_id(t)) for t in ("<bos>", "<eos>", "[gMASK]", "<sop>")]
    tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=special)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", **bos}
    files = save_directory(tmp_path, tokenizer, {"model_type": "llama"}, config)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(files)
    for text in ("the cat", ""):
        assert ours.encode(text).tolist() == theirs(text).input_ids
    assert ours.encode(tokenizer.decode(theirs("cat").input_ids, False)).tolist() == (
        theirs("cat").input_ids
    )


def test_roberta_s_post_processor(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.post_processor = processors.RobertaProcessing(("<eos>", 1), ("<bos>", 0))
    files = save_directory(tmp_path, tokenizer)
    assert load_tokenizer(files).encode("cat").tolist() == tokenizer.encode("cat").ids
    vocab = load_vocab(files)
    assert (vocab.add_bos, vocab.add_eos) == (True, True)


@pytest.mark.parametrize("special", [True, False])
def test_tokens_without_an_embedding_are_text(tmp_path: Path, special: bool) -> None:
    """Gemma 3's tokenizer has one for images that the text models do not have."""
    tokenizer = byte_level_tokenizer()
    size = tokenizer.get_vocab_size()
    text = "the <image> cat<tool> é"
    without = tokenizer.encode(text).ids
    tokenizer.add_tokens([AddedToken("<image>", special=special, normalized=False)])
    assert max(tokenizer.encode(text).ids) == size
    files = save_directory(tmp_path, tokenizer, {"vocab_size": size})
    assert load_tokenizer(files).encode(text).tolist() == without
    assert max(load_plain_tokenizer(files).split(text).ids) < size
    assert load_vocab(files).decode(without) == text


def test_gguf_tokens_without_an_embedding_are_refused(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": np.ones((100, 8), np.float32)}
    with pytest.raises(ConfigError, match=r"tokens, but 100 embeddings"):
        load_vocab(write_spm_gguf(tmp_path / "m.gguf", tensors=tensors))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", [], "Expected `object`"),
        ("config.json", {"vocab_size": 1 << 40}, "vocab_size 1099511627776 is not credible"),
        ("config.json", {"vocab_size": -1}, "vocab_size is -1, not a positive integer"),
        (
            "config.json",
            {"vocab_size": 9, "max_position_embeddings": 0},
            "max_position_embeddings is 0",
        ),
        ("config.json", {"vocab_size": 9, "eos_token_id": "x"}, "eos_token_id"),
        ("generation_config.json", {"eos_token_id": {}}, "eos_token_id"),
        ("tokenizer_config.json", {"bos_token": 5}, "bos_token"),
        ("tokenizer_config.json", {"chat_template": [{}]}, "chat_template"),
        ("tokenizer_config.json", {"bos_token": None, "add_bos_token": True}, "add_bos_token with"),
        ("tokenizer.json", {"model": None}, "model"),
        ("tokenizer.json", {"model": {"vocab": {"a": "x"}}}, "vocab"),
        (
            "tokenizer.json",
            {"model": {"vocab": {}}, "decoder": {"type": "ByteLevel"}},
            "the vocab is empty",
        ),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}, "added_tokens": [{}]}, "added_tokens"),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}, "decoder": {}}, "decoder"),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}, "normalizer": 5}, "normalizer"),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}}, "decoder None is not supported"),
    ],
)
def test_malformed_files_are_named(
    tmp_path: Path, name: str, content: object, message: str
) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer())
    write_json(tmp_path / name, content)
    with pytest.raises(ConfigError, match=f"{name}.*{message}"):
        load_vocab(files)


def test_a_special_token_around_prompts_without_an_embedding(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    template = processors.TemplateProcessing("<eos> $A", special_tokens=[("<eos>", 9999)])
    tokenizer.post_processor = template
    with pytest.raises(ConfigError, match="prompts get the token 9999, which has no embedding"):
        load_tokenizer(save_directory(tmp_path, tokenizer))


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
