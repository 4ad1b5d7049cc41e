"""The sampling defaults in the files of models of both kinds."""

from pathlib import Path
from typing import Any

import gguf
import pytest

from srt.files.sampling_defaults import GGUF_KEYS, ModelSampling, read_sampling
from srt.files.vocab import load_vocab
from tests.model_files import byte_level_tokenizer, save_directory, write_json

FILE = "generation_config.json"


def found_in(directory: Path, content: Any) -> ModelSampling:
    files = save_directory(directory, byte_level_tokenizer())
    write_json(directory / FILE, content)
    return load_vocab(files).sampling


def test_keys_are_those_of_the_gguf_package() -> None:
    keys = gguf.Keys.General
    names = ("TEMP", "TOP_P", "TOP_K", "MIN_P", "PENALTY_REPEAT")
    assert [*GGUF_KEYS.values()] == [getattr(keys, f"SAMPLING_{name}") for name in names]


def test_what_a_directory_says(tmp_path: Path) -> None:
    content = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1}
    others = {"do_sample": False, "max_new_tokens": 5, "min_p": None, "typical_p": 0.5}
    found = found_in(tmp_path, {**content, **others, "eos_token_id": 9})
    assert found == ModelSampling(FILE, content)
    defaults = found.defaults
    assert (defaults.temperature, defaults.min_p, defaults.repetition_penalty) == (0.6, 0.0, 1)
    assert {name: each.source for name, each in found.sources.items()} == {
        **dict.fromkeys(content, FILE),
        "min_p": "neutral",
    }
    assert found.under("model") == found
    neutral = found.under("neutral")
    assert {each.source for each in neutral.sources.values()} == {"neutral"}
    assert neutral.defaults == ModelSampling().defaults != defaults


def test_what_a_gguf_file_says() -> None:
    # 0.6 and 1.05 as 32 bits have them.
    temp, penalty = 0.6000000238418579, 1.0499999523162842
    metadata = {"general.sampling.temp": temp, "general.sampling.penalty_repeat": penalty}
    found = read_sampling(Path("m.gguf"), {**metadata, "general.sampling.top_k": 0}, "gguf")
    values = {"temperature": 0.6, "top_k": -1, "repetition_penalty": 1.05}
    assert found == ModelSampling("m.gguf", values)
    assert read_sampling(Path("m.gguf"), {"temperature": 0.5}, "gguf").values == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.5),
        ("temperature", "warm"),
        ("temperature", True),
        ("temperature", [0.5]),
        ("top_p", 0),
        ("top_p", float("nan")),
        ("top_k", 2.5),
        ("top_k", -2),
        ("top_k", 10**30),
        ("min_p", 1.5),
        ("repetition_penalty", 10**400),
        ("repetition_penalty", 0),
    ],
)
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_wrong_values_are_named_and_left_out(field: str, value: Any, kind: Any) -> None:
    names = {name: key if kind == "gguf" else name for name, key in GGUF_KEYS.items()}
    content = {names["top_k"]: 7, names["min_p"]: 0.25, names[field]: value}
    found = read_sampling(Path("dir/file"), content, kind)
    assert found.values == {k: v for k, v in {"top_k": 7, "min_p": 0.25}.items() if k != field}
    (problem,) = found.problems
    assert problem.startswith(f"dir/file: {names[field]} must be ") and len(problem) < 200


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity"])
def test_numbers_that_only_python_reads_cost_themselves_only(tmp_path: Path, value: str) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer())
    text = '\ufeff{"eos_token_id": 9, "top_k": 7, "temperature": '
    (tmp_path / FILE).write_text(text + value + "}")
    vocab = load_vocab(files)
    assert 9 in vocab.eos_ids and vocab.sampling.values == {"top_k": 7}
    (problem,) = vocab.sampling.problems
    assert f"{FILE}: temperature must be " in problem


@pytest.mark.parametrize("text", ["{", "[1]", "\x00", '{"temperature": 1e}', "9" * 5000])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer())
    (tmp_path / FILE).write_text(text)
    found = load_vocab(files).sampling
    assert found.values == {}
    (problem,) = found.problems
    assert FILE in problem and "end tokens" in problem


def test_without_a_file_all_is_neutral(tmp_path: Path) -> None:
    files = save_directory(tmp_path, byte_level_tokenizer())
    assert load_vocab(files).sampling.values == {}
    assert load_vocab(files).sampling.problems == ()
