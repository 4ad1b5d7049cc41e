"""A tokenizer that is not the model's own, and a context that is shorter than the model's."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from srt.args import ServerArgs
from srt.files.model_files import ModelFiles, fingerprint_of, resolve_model
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab, served_vocab
from srt.trial import check_files, try_tokenizer
from srt.wire.errors import ConfigError
from srt.wire.filled_params import NEUTRAL
from tests.model_files import byte_level_tokenizer, save_directory, write_gguf

TEXT = "the cat <tool> é, naïve 12"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A directory with a tokenizer, a template, and a model of other sizes."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    template = {"chat_template": "{{ messages[0].content }}"}
    save_directory(folder, byte_level_tokenizer(), {"vocab_size": 7}, template)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> ModelFiles:
    """A model with the same tokenizer of its own."""
    folder = tmp_path / "own"
    folder.mkdir()
    return save_directory(folder, byte_level_tokenizer())


def model_without(tmp_path: Path, size: int) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"vocab_size": size, "max_position_embeddings": 99, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ["", "tokenizer.json", "renamed.json"])
def test_a_directory_gets_it_from_elsewhere(
    tmp_path: Path, tokenizer: Path, own: ModelFiles, name: str
) -> None:
    """Texts become what they do with a tokenizer of the model's own; sizes are the model's."""
    if name == "renamed.json":
        (tokenizer / "tokenizer.json").rename(tokenizer / name)
    expected = load_vocab(own)
    model = model_without(tmp_path, expected.vocab_size)
    files = resolve_model(str(model), str(tokenizer / name))
    check_files(files)
    try_tokenizer(files)
    vocab = load_vocab(files)
    assert (vocab.token_bytes, vocab.eos_ids) == (expected.token_bytes, expected.eos_ids)
    assert (vocab.model_name, vocab.context_len) == ("model", 99)
    assert vocab.chat_template == "{{ messages[0].content }}"
    ids, expected_ids = (load_tokenizer(each).encode(TEXT).tolist() for each in (files, own))
    assert ids == expected_ids
    cut, expected_cut = (load_plain_tokenizer(each).split(TEXT) for each in (files, own))
    assert cut.ids == expected_cut.ids


def test_a_gguf_model_gets_it_from_elsewhere(tmp_path: Path, tokenizer: Path) -> None:
    files = resolve_model("smollm2", str(tokenizer))
    model, vocab = load_vocab(resolve_model("smollm2")), load_vocab(files)
    ids = load_tokenizer(files).encode(TEXT)
    assert vocab.decode(ids, skip_special_tokens=False) == TEXT
    assert (vocab.vocab_size, vocab.context_len) == (model.vocab_size, model.context_len)
    assert vocab.sampling.values == model.sampling.values
    other = write_gguf(tmp_path / "other.gguf")
    files = resolve_model("smollm2", str(other.path))
    check_files(files)
    vocab = load_vocab(files)
    assert vocab.token_bytes[:263] == load_vocab(other).token_bytes[:263]
    assert vocab.vocab_size == model.vocab_size
    ids, expected = (load_tokenizer(each).encode("the").tolist() for each in (files, other))
    assert ids == expected


def test_a_model_that_is_larger_than_the_trial_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.save(str(tmp_path / "tokenizer.json"))
    model = write_gguf(tmp_path / "model.gguf")
    os.truncate(model.path, 2**32)  # without taking room
    try_tokenizer(resolve_model(str(model.path), str(tmp_path)))


def test_what_lies_beside_its_file_is_tried_too(
    tmp_path: Path, tokenizer: Path, own: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = model_without(tmp_path, load_vocab(own).vocab_size)
    files = resolve_model(str(model), str(tokenizer / "tokenizer.json"))
    try_tokenizer(files)
    (tokenizer / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    with pytest.raises(ConfigError, match="add_bos_token without such a token"):
        try_tokenizer(files)


def test_it_must_suit_the_embedding(tmp_path: Path, tokenizer: Path) -> None:
    model = write_gguf(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match=r"vocab_size of model\.gguf, the rows of the embedding"):
        load_tokenizer(resolve_model(str(model.path), str(tokenizer)))


def test_it_is_part_of_what_tells_a_model_from_others(tokenizer: Path) -> None:
    names = ("", str(tokenizer), str(tokenizer / "tokenizer.json"))
    found = {fingerprint_of(resolve_model("smollm2", name), "16", NEUTRAL) for name in names}
    assert len(found) == 3


def test_a_context_can_be_cut_and_not_extended() -> None:
    assert served_vocab(ServerArgs(max_model_len=100)).context_len == 100
    assert served_vocab(ServerArgs()).context_len == 8192
    with pytest.raises(ConfigError, match="8193 is above the context of this model, 8192 tokens"):
        served_vocab(ServerArgs(max_model_len=8193))
    with pytest.raises(ConfigError, match=r"--max-model-len must be 0 .* or at least 16"):
        ServerArgs(max_model_len=15).check()
