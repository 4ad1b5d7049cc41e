"""Fingerprints of models: what changes them, what does not, and what they cost."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from srt.args import ServerArgs
from srt.cluster.fingerprint import (
    BLOCK_BYTES,
    NUM_BLOCKS,
    WHOLE_BYTES,
    difference,
    fingerprint,
    fingerprint_of_args,
    value_options,
)
from srt.wire.errors import ConfigError

OPTIONS = value_options(ServerArgs())
LARGE = 3 * WHOLE_BYTES


def model_in(folder: Path) -> Path:
    """A directory with small and large files, of which the large one is sparse."""
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 64}')
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "README.md").write_text("a model")
    with (folder / "model.safetensors").open("wb") as file:
        file.write((300).to_bytes(8, "little") + b"{}".ljust(300))
        file.truncate(LARGE)
    return folder


def of(path: Path) -> str:
    return fingerprint(path, path, OPTIONS)


def test_it_is_of_what_the_files_hold_and_not_of_where_they_are(tmp_path: Path) -> None:
    one = model_in(tmp_path / "one")
    shutil.copytree(one, other := tmp_path / "other" / "name")
    assert of(one) == of(other) == of(one)
    (other / "README.md").write_text("the same model")
    assert of(one) == of(other)


def changed_bytes() -> dict[str, tuple[str, int]]:
    """File and place of one byte, by what is there."""
    step = (LARGE - BLOCK_BYTES) // (NUM_BLOCKS - 1)
    return {
        "configuration": ("config.json", 5),
        "tokenizer": ("tokenizer.json", 5),
        "header": ("model.safetensors", 150),
        "a block": ("model.safetensors", 17 * (LARGE - BLOCK_BYTES) // (NUM_BLOCKS - 1) + 99),
        "second block": ("model.safetensors", step),
        "end": ("model.safetensors", LARGE - 1),
    }


@pytest.mark.parametrize("what", changed_bytes())
def test_a_byte_that_is_another_is_seen(tmp_path: Path, what: str) -> None:
    model = model_in(tmp_path / "model")
    before, (name, place) = of(model), changed_bytes()[what]
    with (model / name).open("r+b") as file:
        file.seek(place)
        file.write(b"\x07")
    os.utime(model / name, ns=(1, 1))  # two writes may fall into one tick of the files' clock
    after = of(model)
    assert after != before
    assert difference(before, after) == "the model's files"


def test_size_names_and_options_count(tmp_path: Path) -> None:
    model = model_in(tmp_path / "model")
    before = of(model)
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(LARGE + 1)
    longer = of(model)
    (model / "model.safetensors").rename(model / "other.safetensors")
    exact = fingerprint(model, model, value_options(ServerArgs(exact=True)))
    assert len({before, longer, of(model), exact}) == 4
    assert difference(of(model), exact) == "the options that change values"
    assert difference(exact, exact) == ""
    assert difference(exact, "0") == "the form of fingerprints"


def test_a_gguf_file_may_be_called_anything_and_has_parts(tmp_path: Path) -> None:
    for name, text in [("a-00001-of-00002.gguf", b"1"), ("a-00002-of-00002.gguf", b"2")]:
        (tmp_path / name).write_bytes(b"GGUF" + text)
    shutil.copytree(tmp_path, other := tmp_path / "other")
    for number in (1, 2):
        (other / f"a-0000{number}-of-00002.gguf").rename(other / f"b-0000{number}-of-00002.gguf")
    first, second = tmp_path / "a-00001-of-00002.gguf", other / "b-00001-of-00002.gguf"
    assert of(first) == of(second)
    (other / "b-00002-of-00002.gguf").write_bytes(b"GGUF3")
    assert of(first) != of(second)
    (other / "b-00002-of-00002.gguf").unlink()
    with pytest.raises(ConfigError, match=r"b-00002-of-00002\.gguf: No such file"):
        of(second)


def test_another_tokenizer_is_another_model(tmp_path: Path) -> None:
    model, text = model_in(tmp_path / "model"), tmp_path / "tokenizer.json"
    text.write_text('{"model": {"type": "BPE"}}')
    assert difference(of(model), fingerprint(model, text, OPTIONS)) == "the tokenizer"
    assert fingerprint_of_args(ServerArgs()) == fingerprint_of_args(ServerArgs(threads=3))
    other = fingerprint_of_args(ServerArgs(quantization="q4"))
    assert fingerprint_of_args(ServerArgs()) != other


def test_sixty_gigabytes_are_sampled_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bytes that are read, which bound the time: 12 files of 5 GB, all of them holes."""
    for number in range(12):
        with (tmp_path / f"model-{number:05}.safetensors").open("wb") as file:
            file.write((20_000).to_bytes(8, "little") + b"{}".ljust(20_000))
            file.truncate(5 * 10**9)
    read: list[int] = []

    def counted(descriptor: int, num_bytes: int, start: int) -> bytes:
        read.append(num_bytes)
        return os_pread(descriptor, num_bytes, start)

    os_pread = os.pread
    monkeypatch.setattr(os, "pread", counted)
    first = of(tmp_path)
    assert 12 * NUM_BLOCKS * BLOCK_BYTES <= sum(read) < 5_000_000
    read.clear()
    assert of(tmp_path) == first and read == []
    os.utime(tmp_path / "model-00003.safetensors")  # somebody has written it, perhaps
    assert of(tmp_path) == first and 0 < sum(read) < 500_000


def test_parts_find_it_in_the_arguments_and_admins_do_not() -> None:
    args = ServerArgs(fingerprint="a-b-c", chosen_sizes=("max_total_tokens",))
    assert msgspec.json.decode(msgspec.json.encode(args), type=ServerArgs) == args
    assert not {"fingerprint", "chosen_sizes", "planned_bytes"} & args.public().keys()
