"""The OpenAI routes."""

from typing import Any

import pytest

from srt.gateway.fields import CHAT, COMPLETION, NATIVE, NATIVE_SAMPLING, Kind, describe
from srt.gateway.wire_native import NativeRequest, NativeSampling
from srt.gateway.wire_openai import ChatRequest, CompletionRequest
from srt.messages import ChatMessage, Finish
from tests.fakes import FakeClient
from tests.srt.gateway_setup import error_of, in_process, sse_payloads

CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def test_completion() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/v1/completions", json={"model": "tiny", "prompt": "a b"})
    body = response.json()
    assert body.pop("created") > 0
    assert body == {
        "id": "cmpl-r0",
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "text": "Hello, wörld",
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": 2,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }
    assert client.requests[0].sampling.max_new_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "submitted"),
    [
        ("a", [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2], [(None, [1, 2])]),
        ([[1], [2, 3]], [(None, [1]), (None, [2, 3])]),
    ],
)
async def test_prompt_forms(prompt: Any, submitted: list[Any]) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        body = (await http.post("/v1/completions", json={"prompt": prompt})).json()
    assert [(r.text, r.input_ids) for r in client.requests] == submitted
    assert [c["index"] for c in body["choices"]] == list(range(len(submitted)))
    assert body["usage"]["completion_tokens"] == 3 * len(submitted)


async def test_completion_stream_without_usage() -> None:
    client = FakeClient()
    client.finish = Finish("length")
    async with in_process(client) as http:
        response = await http.post(
            "/v1/completions", json={"prompt": "a", "stream": True, "rid": "z", "max_tokens": 2}
        )
    chunks = sse_payloads(response.text)
    assert [c["choices"][0]["text"] for c in chunks] == ["Hello", ", "]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, "length"]
    assert all("usage" not in c and c["id"] == "z" for c in chunks)


async def test_chat() -> None:
    client = FakeClient()
    messages = [
        {"role": "developer", "content": "be brief", "name": None},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    body = {
        "model": "/models/tiny.gguf",
        "messages": messages,
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "n": 1,
        "frequency_penalty": 0,
        "logit_bias": {},
        "logprobs": False,
        "top_k": 5,
    }
    async with in_process(client) as http:
        answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"content": "Hello, wörld", "role": "assistant"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert client.requests[0].messages == [
        ChatMessage("system", "be brief"),
        ChatMessage("user", "ab"),
    ]
    assert client.requests[0].sampling.max_new_tokens is None


async def test_chat_stream_with_usage() -> None:
    client = FakeClient(("a", "", "b"))
    body = CHAT_BODY | {"stream": True, "stream_options": {"include_usage": True}}
    async with in_process(client) as http:
        response = await http.post("/v1/chat/completions", json=body)
    *chunks, usage = sse_payloads(response.text)
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert all(c["usage"] is None for c in chunks)
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 3


async def test_max_completion_tokens_wins() -> None:
    client = FakeClient()
    body = CHAT_BODY | {"max_tokens": 5, "max_completion_tokens": 2, "min_tokens": 1}
    async with in_process(client) as http:
        answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert client.requests[0].sampling.max_new_tokens == 2
    assert client.requests[0].sampling.min_new_tokens == 1
    assert answer["usage"]["completion_tokens"] == 2


async def test_other_models_are_not_found() -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/v1/completions", json={"prompt": "a", "model": "gpt"})
        listed = (await http.get("/v1/models")).json()
        one = await http.get("/v1/models/tiny")
        by_path = await http.get("/v1/models//models/tiny.gguf")
        missing = await http.get("/v1/models/gpt")
    error = error_of(response)
    assert response.status_code == missing.status_code == 404
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert [card["id"] for card in listed["data"]] == ["tiny"]
    assert one.json()["max_model_len"] == 2048
    assert by_path.status_code == 200


COMPLETION_ERRORS = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, [2]]}, "prompt"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    ({"prompt": "a", "n": 2}, "n"),
    ({"prompt": "a", "n": True}, "n"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "echo": True}, "echo"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "logprobs": 0}, "logprobs"),
    ({"prompt": "a", "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias"),
    ({"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty"),
    ({"prompt": "a", "repetition_penalty": 1.1}, "repetition_penalty"),
    ({"prompt": "a", "messages": []}, "messages"),
    ({"prompt": "a", "stream_options": {"x": 1}}, "stream_options.x"),
    ({"prompt": ["a", "b"], "top_p": 7}, "top_p"),
]


@pytest.mark.parametrize(("body", "param"), COMPLETION_ERRORS)
async def test_completion_errors_name_the_field(body: dict[str, Any], param: str) -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


CHAT_ERRORS = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "a", "name": "Bo"}]}, "messages[0].name"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    (CHAT_BODY | {"logprobs": True}, "logprobs"),
    (CHAT_BODY | {"top_logprobs": 3}, "top_logprobs"),
    (CHAT_BODY | {"reasoning_effort": "high"}, "reasoning_effort"),
    (CHAT_BODY | {"prompt": "a"}, "prompt"),
    (CHAT_BODY | {"max_tokens": 1, "min_tokens": 2}, "min_tokens"),
]


@pytest.mark.parametrize(("body", "param"), CHAT_ERRORS)
async def test_chat_errors_name_the_field(body: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert client.generations == []


@pytest.mark.parametrize(
    ("struct", "kind"),
    [
        (NativeRequest, NATIVE),
        (NativeSampling, NATIVE_SAMPLING),
        (CompletionRequest, COMPLETION),
        (ChatRequest, CHAT),
    ],
)
def test_a_field_has_one_class_and_is_documented(struct: Any, kind: Kind) -> None:
    rows = list(describe(struct, kind))
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert set(names) == set(struct.__struct_fields__) | set(kind.fields)
    assert all(row.note for row in rows)
