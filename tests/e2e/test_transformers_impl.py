"""A model that only transformers supports, served by the whole ring."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from srt.files.model_files import ModelFiles
from srt.files.vocab import load_vocab
from tests.e2e.server import Server, running_server
from tests.model_files import TOKENIZER_CONFIG, byte_level_tokenizer, write_json
from tests.running.late import late
from tests.scheduler_proc.models.transformers_families import random_model, save

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

TEXT = "the cat sat on the mat, the hat of the cat: "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFiles, Any]:
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_tokenizer()
    model = random_model("gpt2", vocab_size=tokenizer.get_vocab_size())
    files = save(model, path)
    tokenizer.save(str(path / "tokenizer.json"))
    write_json(path / "tokenizer_config.json", TOKENIZER_CONFIG)
    return files, model


@pytest.fixture(scope="module")
def server(
    model: tuple[ModelFiles, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    tmp: Path = tmp_path_factory.mktemp("server")
    args = ("--model", str(model[0].path), "--max-total-tokens", "1024", "--check-invariants")
    with running_server(tmp, *args) as server:
        yield server
        server.wait_idle()


def generate(server: Server, text: str, count: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    body = {"text": text, "sampling_params": sampling}
    answer: dict[str, Any] = httpx2.post(server.url + "/generate", json=body, timeout=60).json()
    return answer


def test_its_greedy_text_is_that_of_transformers_and_its_cache_is_used(
    server: Server, model: tuple[ModelFiles, Any]
) -> None:
    files, reference = model
    tokenizer = byte_level_tokenizer()
    for text, least_cached in ((TEXT, 0), (TEXT + "12 cats", 10)):
        ids = tokenizer.encode(text).ids
        expected = reference.generate(
            torch.tensor([ids]), max_new_tokens=24, min_new_tokens=24, do_sample=False
        )[0, len(ids) :].tolist()
        answer = generate(server, text, 24)
        assert answer["output_ids"] == expected
        text = load_vocab(files).decode(expected).rstrip("\ufffd")  # the limit may cut a character
        assert answer["text"].rstrip("\ufffd") == text
        assert least_cached <= answer["meta_info"]["cached_tokens"] < len(ids)


def test_the_log_says_once_what_computes(server: Server) -> None:
    assert server.log().count("transformers' GPT2LMHeadModel computes the model") == 1
