"""Pictures through a whole server: the tokens are transformers' own, and nobody harms another."""

import base64
import io
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from tests.checkpoints_vision import FAMILIES, make_vision_checkpoint
from tests.e2e.server import Server, running_server
from tests.running.late import late

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")

RNG = np.random.default_rng(3)
NEW_TOKENS = 12
PICTURES = [
    Image.fromarray(RNG.integers(0, 255, (*size, 3), np.uint8)) for size in ((80, 150), (50, 60))
]
QUESTIONS = [
    ("What is ", [0], "?"),
    ("What is ", [0], "? And where?"),
    ("Compare ", [0, 1], " with each other"),
    ("Tell me of ", [1], " "),
    ("No picture, <image> is only a word", [], ""),
]


def data_url(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def messages(question: tuple[str, list[int], str]) -> list[dict[str, Any]]:
    before, pictures, after = question
    shown = [
        {"type": "image_url", "image_url": {"url": data_url(PICTURES[number])}}
        for number in pictures
    ]
    texts = [{"type": "text", "text": text} for text in (before, after)]
    return [{"role": "user", "content": [texts[0], *shown, texts[1]]}]


class Reference:
    """Transformers' model and processor."""

    def __init__(self, path: Path) -> None:
        self.model = make_vision_checkpoint("idefics3", path)
        settings = dict(FAMILIES["idefics3"].preprocessor)
        del settings["image_processor_type"]
        from transformers.models.idefics3 import Idefics3Processor
        from transformers.models.idefics3.image_processing_pil_idefics3 import (
            Idefics3ImageProcessorPil,
        )

        make_images: Any = Idefics3ImageProcessorPil
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        make_processor: Any = Idefics3Processor
        self.processor = make_processor(make_images(**settings), self.tokenizer, image_seq_len=4)

    def answer(self, question: tuple[str, list[int], str]) -> list[int]:
        """What it generates greedily."""
        before, pictures, after = question
        text = f"<|user|>{before}{'<image>' * len(pictures)}{after}<|end|><|assistant|>"
        if pictures:
            shown = [PICTURES[number] for number in pictures]
            inputs = self.processor(text=text, images=[shown], return_tensors="pt")
        else:  # what a user writes is text
            head, tail = text.split("<image>")
            ids = [
                *self.tokenizer(head, add_special_tokens=False).input_ids,
                *self.tokenizer("<", add_special_tokens=False).input_ids,
                *self.tokenizer("image>" + tail, add_special_tokens=False).input_ids,
            ]
            inputs = {"input_ids": torch.tensor([ids])}
        with torch.inference_mode():
            out = self.model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
        answer: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
        return answer


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    path = tmp_path_factory.mktemp("seeing") / "model"
    return path, Reference(path)


@pytest.fixture(scope="module")
def server(
    reference: tuple[Path, Reference], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    options = ("--model", str(reference[0]), "--max-total-tokens", "2048", "--check-invariants")
    exact = (
        "--executor",
        "native",
        "--exact",
        "--media-domain",
        "localhost",
        "--queue-while-restarting",
    )
    with running_server(tmp_path_factory.mktemp("server"), *options, *exact) as running:
        yield running


def ask(server: Server, question: tuple[str, list[int], str]) -> Any:
    limits = {"max_tokens": NEW_TOKENS, "temperature": 0}
    body = {"messages": messages(question), **limits}
    answer = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.full
def test_tokens_are_those_of_transformers(
    server: Server, reference: tuple[Path, Reference]
) -> None:
    """One after the other, and at once. The second question about a picture encodes nothing."""
    model = reference[1]
    expected = [model.answer(question) for question in QUESTIONS]
    first = ask(server, QUESTIONS[0])
    encoded = server.stats()["media_encoded_total"]
    second = ask(server, QUESTIONS[1])
    assert server.stats()["media_encoded_total"] == encoded > 0
    details = second["usage"]["prompt_tokens_details"]
    assert details["image_tokens"] == first["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    assert details["cached_tokens"] > details["image_tokens"]
    answers = [first, second, *(ask(server, question) for question in QUESTIONS[2:])]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: ask(server, question), QUESTIONS))
    for some in (answers, together):
        for answer, ids in zip(some, expected, strict=True):
            assert answer["usage"]["completion_tokens"] == len(ids)
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [answer["choices"][0]["message"]["content"] for answer in together]
    for answer, ids in zip(answers, expected, strict=True):
        text = str(model.tokenizer.decode(ids, skip_special_tokens=True)).rstrip("\ufffd")
        content = answer["choices"][0]["message"]["content"]
        assert (content or "").rstrip("\ufffd") == text  # the limit may cut a character


HOSTILE: list[tuple[Any, str]] = [
    ("data:image/png;base64,AAAA", "not an image"),
    ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "not an image"),
    ("http://127.0.0.1/x.png", "--media-domain"),
    ("http://localhost/x.png", "no public address"),
    ("file:///etc/passwd", "data:"),
    (data_url(PICTURES[0])[:-3000], "truncated"),
]


@pytest.mark.parametrize(("url", "message"), HOSTILE)
def test_hostile_pictures_are_refused(server: Server, url: str, message: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    answer = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[0].image_url.url" and message in error["message"]


@pytest.mark.full
def test_a_killed_scheduler_sees_again(server: Server, reference: tuple[Path, Reference]) -> None:
    """The next one asks the front for the pixels of what it is to continue."""
    question = ("Describe ", [1, 0], " at length")
    expected = reference[1].answer(question)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, question)
        os.kill(server.pids()["scheduler"], signal.SIGKILL)
        assert answer.result()["usage"]["completion_tokens"] == len(expected)
    assert ask(server, question)["usage"]["completion_tokens"] == len(expected)
