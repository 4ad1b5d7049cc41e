"""Which files of a repository a model needs."""

import json
from collections.abc import Sequence

import pytest

from srt.hub.names import HubName
from srt.hub.offer import RepoFile, choose, variants
from srt.wire.errors import ConfigError

NAME = HubName("org/name")
ROOM = 10 * 2**30
INDEX = "model.safetensors.index.json"


def files(*paths: str, size: int = 1000) -> list[RepoFile]:
    return [RepoFile(path, size) for path in paths]


def chosen(name: HubName, offered: Sequence[RepoFile], index: object = None) -> list[str]:
    found = choose(name, offered, lambda path: json.dumps(index).encode(), ROOM)
    return [file.path for file in found.files]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("model.Q8_0.gguf", "Q8_0"),
        ("x-IQ2_XXS.gguf", "IQ2_XXS"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/x-BF16-00001-of-00002.gguf", "BF16"),
        ("x-f16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("plain.gguf", "plain"),
        ("Q1-model.gguf", "Q1"),
    ],
)
def test_labels(path: str, label: str) -> None:
    assert [variant.label for variant in variants(files(path))] == [label]


def test_safetensors_take_what_is_read_and_no_code() -> None:
    offered = files(
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("modeling_name.py", "pytorch_model.bin", "README.md", "onnx/model.onnx", "x.tiktoken"),
        *("consolidated.safetensors", "training_args.bin", "chat_template.jinja"),
    )
    assert set(chosen(NAME, offered)) == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("x.tiktoken", "chat_template.jinja"),
    }


def test_shards_are_those_of_the_index() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    offered = files("config.json", INDEX, *shards, "extra.safetensors")
    index = {"weight_map": {"a": shards[1], "b": shards[0], "c": shards[1]}}
    assert chosen(NAME, offered, index) == ["config.json", INDEX, *shards]
    index["weight_map"]["d"] = "model-00003-of-00002.safetensors"
    with pytest.raises(ConfigError, match="model-00003-of-00002"):
        chosen(NAME, offered, index)
    with pytest.raises(ConfigError, match="is not an index"):
        chosen(NAME, offered, [])


def test_one_gguf_needs_no_name() -> None:
    offered = files("a-Q4_0.gguf", "mmproj-a-F16.gguf", "imatrix.gguf", "README.md")
    assert chosen(NAME, offered) == ["a-Q4_0.gguf"]


def test_several_are_a_table() -> None:
    offered = [
        RepoFile("a-Q8_0.gguf", 2**30),
        RepoFile("a-Q4_K_M.gguf", 2**29),
        RepoFile("a-F32.gguf", 20 * 2**30),
    ]
    with pytest.raises(ConfigError) as error:
        chosen(NAME, offered)
    first, *lines = str(error.value).splitlines()
    assert first == "org/name has several models: name one."
    assert [line.split()[0] for line in lines] == [
        *("org/name:Q4_K_M", "org/name:Q8_0", "org/name:F32"),
    ]
    assert "512.0 MiB" in lines[0] and "1.0 GiB" in lines[1]
    assert ["does not fit" in line for line in lines] == [False, False, True]


@pytest.mark.parametrize("text", ["Q4_K_M", "q4_k_m"])
def test_a_quantisation_goes_before_safetensors(text: str) -> None:
    offered = files("config.json", "model.safetensors", "a-Q4_K_M.gguf", "a-Q4_K_S.gguf")
    assert chosen(NAME._replace(variant=text), offered) == ["a-Q4_K_M.gguf"]


def test_a_quantisation_of_a_publisher() -> None:
    offered = files("a-UD-Q4_K_XL.gguf", "a-UD-Q2_K_XL.gguf")
    assert chosen(NAME._replace(variant="Q4_K_XL"), offered) == ["a-UD-Q4_K_XL.gguf"]


def test_a_quantisation_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="has no GGUF file 'Q5_0'") as error:
        chosen(NAME._replace(variant="Q5_0"), files("a-Q4_0.gguf"))
    assert "org/name:Q4_0" in str(error.value)
    with pytest.raises(ConfigError, match="nor any other"):
        chosen(NAME._replace(variant="Q5_0"), files("config.json", "model.safetensors"))


def test_two_models_of_one_quantisation() -> None:
    offered = files("a-Q4_0.gguf", "b-Q4_0.gguf")
    with pytest.raises(ConfigError, match="several files of Q4_0") as error:
        chosen(NAME._replace(variant="Q4_0"), offered)
    assert "hf://org/name/b-Q4_0.gguf" in str(error.value)
    assert chosen(NAME._replace(file="b-Q4_0.gguf"), offered) == ["b-Q4_0.gguf"]


def test_split_files() -> None:
    parts = [f"Q8_0/a-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    offered = files(parts[2], parts[0], parts[1], "a-Q4_0.gguf")
    assert chosen(NAME._replace(variant="Q8_0"), offered) == parts
    assert chosen(NAME._replace(file=parts[1]), offered) == parts
    with pytest.raises(ConfigError, match="2 parts of 3"):
        chosen(NAME._replace(variant="Q8_0"), files(*parts[:2]))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["config.json", "pytorch_model.bin"], "pickled weights only"),
        (["adapter_config.json", "adapter_model.safetensors"], "is an adapter"),
        (["diffusion.safetensors"], "no config.json"),
        (["README.md"], "no safetensors and no GGUF"),
    ],
)
def test_repositories_without_a_model(paths: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(NAME, files(*paths))
