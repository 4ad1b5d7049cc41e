"""What `srt.LLM` asks of its server, and what it refuses before."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from srt.args import ServerArgs
from srt.client.face import AsyncClient
from srt.client.media import Video
from srt.llm import LLM, SamplingParams, StructuredOutputsParams, _parts_of
from srt.offline.multi_modal import media_of
from srt.wire.answer_meta import DraftCounts
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage
from tests.fakes import FakeClient
from tests.srt.gateway.setup import fake_vocab


def test_prompts_of_every_kind() -> None:
    text, ids = ("a", None, (), ()), (None, [1, 2], (), ())
    assert _parts_of("a") == _parts_of({"prompt": "a", "multi_modal_data": None}) == text
    assert _parts_of([1, 2]) == _parts_of({"prompt_token_ids": (1, 2)}) == ids
    assert _parts_of({"prompt": "a", "prompt_token_ids": [1]})[:2] == ("a", [1])


FRAME = np.zeros((2, 2, 3), np.uint8)
FILM = np.zeros((3, 2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("data", "media"),
    [
        ({"image": b"a"}, [b"a"]),
        ({"image": [b"a", "b"], "video": None}, [b"a", "b"]),
        ({"video": b"a", "image": b"b"}, [Video(b"a"), b"b"]),
        ({"video": [b"a", Video(b"b", 2)]}, [Video(b"a"), Video(b"b", 2)]),
        ({"video": (b"a", {"fps": 2})}, [Video(b"a")]),
        ({"video": []}, []),
    ],
)
def test_what_vllm_shows(data: Any, media: list[Any]) -> None:
    text, _, shown, names = _parts_of({"prompt": "a", "multi_modal_data": data})
    assert (text, list(shown)) == ("a", media) and len(names) == len(media)


def test_videos_of_pictures() -> None:
    for given, count in (([FRAME, FRAME], 1), (FILM, 1), ([FILM, FILM], 2)):
        media, names = media_of({"video": given})
        assert len(media) == len(names) == count
        assert all(isinstance(each, Video) for each in media)


class FakeEngine:
    """Runs what it is given on a loop of its own, against `transport`."""

    args = ServerArgs()

    def __init__(self, transport: FakeClient) -> None:
        self.client = AsyncClient.__new__(AsyncClient)  # without a connection
        self.client._transport = transport

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """What an LLM asks; its vocabulary is not read."""
    made = FakeClient()
    monkeypatch.setattr("srt.llm.Engine", lambda *_, **__: FakeEngine(made))
    monkeypatch.setattr("srt.llm.served_vocab", lambda _: fake_vocab())
    return made


def test_prompts_that_show_something(fake: FakeClient) -> None:
    prompts: list[Any] = [
        "plain text",
        {"prompt": "<image> a", "multi_modal_data": {"image": b"cat"}},
        {"prompt_token_ids": [5, 6], "multi_modal_data": {"image": [b"dog", b"cat"]}},
        {"prompt": "<image> b", "multi_modal_data": {"image": b"cat"}},
    ]
    outputs = LLM().generate(prompts, use_tqdm=False)
    assert [each.prompt for each in outputs] == ["plain text", "<image> a", None, "<image> b"]
    assert [each.prompt_token_ids for each in outputs] == [[1, 5, 4], [], [5, 6], []]
    asked = {each.text or tuple(each.input_ids or ()): each for each in fake.requests}
    shown = {
        name: [file.frames for file in each.media] for name, each in asked.items() if each.media
    }
    assert shown == {
        "<image> a": [(b"cat",)],
        "<image> b": [(b"cat",)],
        (5, 6): [(b"dog",), (b"cat",)],
    }


def test_an_output_says_what_guessing_did(fake: FakeClient) -> None:
    fake.drafts = DraftCounts(verified=2, drafted=5, accepted=3)
    (output,) = LLM().generate(["a"], SamplingParams(speculative="off"), use_tqdm=False)
    assert output.outputs[0].drafts == fake.drafts
    assert fake.requests[0].sampling.speculative == "off"


def test_chats_that_show_something(fake: FakeClient) -> None:
    message = {"role": "user", "content": [{"type": "image", "image": b"cat"}, "What is it?"]}
    texts = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    (first, second) = LLM().chat([[message], [texts]], use_tqdm=False)
    assert (first.prompt_token_ids, second.prompt_token_ids) == ([], [5])
    (shows,) = (each for each in fake.requests if each.media)
    assert shows.messages == [ChatMessage("user", "", parts=[0, "What is it?"])]
    assert [file.frames for file in shows.media] == [(b"cat",)]


def test_a_wrong_picture_has_its_name(fake: FakeClient) -> None:
    prompt = {"prompt": "a", "multi_modal_data": {"image": [b"a", 3]}}
    with pytest.raises(RequestError) as caught:
        LLM().generate(prompt, use_tqdm=False)
    assert caught.value.info.param == "multi_modal_data.image[1]"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ({"prompt": "a", "multi_modal_data": {"audio": b"a"}}, "multi_modal_data"),
        ({"prompt": "a", "multi_modal_data": [b"a"]}, "multi_modal_data"),
        ({"prompt": "a", "mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_prompts_that_say_more_or_nothing_are_refused(prompt: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        _parts_of(prompt)
    assert caught.value.info.param == param


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_all_log_probabilities_cannot_be_had(name: str) -> None:
    """In vLLM, -1 stands for all of them."""
    asked: dict[str, Any] = {name: -1}
    with pytest.raises(RequestError, match=f"{name} must be 0 or more"):
        SamplingParams(**asked).request()
    asked[name] = 0
    assert SamplingParams(**asked).request()["return_logprob"]


def test_a_schema_that_allows_everything_is_a_constraint() -> None:
    assert StructuredOutputsParams(json={}).fields() == {"json_schema": {}}
    for params in (StructuredOutputsParams(), StructuredOutputsParams(json_object=False)):
        with pytest.raises(ValueError, match="exactly one"):
            params.fields()


def test_facts_of_a_completion(fake: FakeClient) -> None:
    fake.facts = {"retractions": 2}
    (output,) = LLM().generate(["a"], use_tqdm=False)
    assert output.outputs[0].retractions == 2
