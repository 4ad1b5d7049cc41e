"""The OpenAI routes."""

from typing import Any

import openai
import pytest

from srt.gateway.wire.fields import (
    CHAT,
    COMPLETION,
    MAX_OBJECTS,
    NATIVE,
    NATIVE_SAMPLING,
    RESPONSES,
    Kind,
)
from srt.gateway.wire.native import NativeRequest, NativeSampling
from srt.gateway.wire.openai import ChatRequest, CompletionRequest
from srt.gateway.wire.responses import ResponsesRequest
from srt.wire.answer_meta import DraftCounts
from srt.wire.errors import CONTEXT_LENGTH, OVERLOADED, UNAVAILABLE, RequestError
from srt.wire.messages import ChatMessage, ChatOptions, Finish
from srt.wire.sampling import Scoring
from tests.docs.fields import describe
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served, sse_payloads

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


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
async def test_names_of_speakers_reach_the_template(role: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        body = {"messages": [{"role": role, "content": "hi", "name": "Bo"}]}
        response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert client.requests[0].messages == [ChatMessage(role, "hi", name="Bo")]


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
        listed = (await http.get("/v1/models")).json()
        one = await http.get("/v1/models/tiny")
        by_path = await http.get("/v1/models//models/tiny.gguf")
        missing = await http.get("/v1/models/gpt")
    error = error_of(missing)
    assert missing.status_code == 404
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert [card["id"] for card in listed["data"]] == ["tiny"]
    assert one.json()["max_model_len"] == 2048
    assert by_path.status_code == 200


async def test_sampling_fields_reach_the_ring() -> None:
    """Each field has the same name on both routes."""
    fields: dict[str, Any] = {
        "frequency_penalty": 0.5,
        "presence_penalty": -0.25,
        "repetition_penalty": 1.25,
        "allowed_token_ids": [4, 5],
        "bad_words": ["no"],
        "stop_regex": ["a+"],
        "seed": 7,
        "n": 2,
        "top_k": 3,
        "min_p": 0.125,
        "stop": ["x"],
        "stop_token_ids": [9],
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    bodies = {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": CHAT_BODY}
    for route, body in bodies.items():
        client = FakeClient()
        more = {"logit_bias": {"5": -100, "6": 2.5}, "include_stop_str_in_output": True}
        async with in_process(client) as http:
            response = await http.post(route, json=body | fields | more)
        assert response.status_code == 200, response.text
        sampling = client.requests[0].sampling
        assert {name: getattr(sampling, name) for name in fields} == fields
        assert sampling.logit_bias == {5: -100.0, 6: 2.5} and sampling.no_stop_trim
    client = FakeClient()
    async with in_process(client) as http:
        await http.post("/v1/completions", json={"prompt": "a", "stop_regex": "b", "stop": "c"})
    assert client.requests[0].sampling.stop_regex == ["b"]
    assert (
        client.requests[0].sampling.stop == ["c"] and not client.requests[0].sampling.no_stop_trim
    )


async def test_samples_are_choices_grouped_by_prompt() -> None:
    client = FakeClient()
    client.sample_pieces = {"z_1/1": ("b", "1")}
    body = {"prompt": ["a b", "c"], "n": 2, "rid": "z"}
    async with in_process(client) as http:
        answer = (await http.post("/v1/completions", json=body)).json()
    whole = "Hello, wörld"
    assert [c["text"] for c in answer["choices"]] == [whole, whole, whole, "b1"]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["id"] == "z"
    # The prompts have 2 tokens and 1; each sample has 3, but the last one has 2.
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 11,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 6},
    }


async def test_guessed_tokens_are_predictions_in_the_usage() -> None:
    """Those of both samples; of one that a stop string has cut, no more than it has tokens."""
    client = FakeClient()
    client.drafts = DraftCounts(verified=2, drafted=9, accepted=5)
    client.sample_pieces = {"r0/0": "abcdef", "r0/1": ("b", "1")}
    async with in_process(client) as http:
        answer = (await http.post("/v1/chat/completions", json=CHAT_BODY | {"n": 2})).json()
    details = {"accepted_prediction_tokens": 7, "rejected_prediction_tokens": 11}
    assert answer["usage"]["completion_tokens_details"] == details


async def test_samples_stream_with_their_index() -> None:
    client = FakeClient()
    client.sample_pieces = {"r0/1": ("b", "1")}
    body = CHAT_BODY | {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
    async with in_process(client) as http:
        response = await http.post("/v1/chat/completions", json=body)
    *chunks, usage = sse_payloads(response.text)
    assert {c["id"] for c in chunks} == {"chatcmpl-r0"}
    for index, text in enumerate(["Hello, wörld", "b1"]):
        choices = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in choices) == text
        assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert usage["usage"]["prompt_tokens"] == 1 and usage["usage"]["completion_tokens"] == 5


async def test_continuous_usage() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": "a b", "stream": True, "stream_options": options}
    async with in_process(FakeClient()) as http:
        response = await http.post("/v1/completions", json=body)
    chunks = sse_payloads(response.text)
    assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 3, 3]
    assert {c["usage"]["prompt_tokens"] for c in chunks} == {2}


async def test_the_best_samples_win() -> None:
    """The best by the mean log-probability of a token, not the sum; in the samples' order."""
    client = FakeClient()
    client.sample_pieces = {"r0/0": ("worst",), "r0/1": ("good", "!"), "r0/2": ("best",) * 9}
    client.logprobs = {"r0/0": -1.0, "r0/1": -0.75, "r0/2": -0.25}
    async with in_process(client) as http:
        answer = (
            await http.post("/v1/completions", json={"prompt": "a", "n": 2, "best_of": 3})
        ).json()
        one = (await http.post("/v1/completions", json={"prompt": "a", "best_of": 1})).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "good!"), (1, "best" * 9)]
    assert all(c["logprobs"] is None for c in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 12
    assert client.requests[0].sampling.n == 3 and client.requests[0].scoring == Scoring()
    assert len(one["choices"]) == 1 and client.requests[1].scoring is None


async def test_how_the_template_is_asked() -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"continue_final_message": True},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
        {"verbosity": "low"},
    ]
    client = FakeClient()
    template = "{{ reasoning_effort }}{{ verbosity }}{{ enable_thinking }}"
    async with in_process(client, template=template) as http:
        for body in bodies:
            answer = await http.post("/v1/chat/completions", json=CHAT_BODY | body)
            assert answer.status_code == 200, answer.text
    assert [request.chat for request in client.requests] == [
        ChatOptions(),
        ChatOptions(continue_final=True, add_generation_prompt=False),
        ChatOptions(add_generation_prompt=False),
        ChatOptions('{"enable_thinking":false,"reasoning_effort":"low"}'),
        ChatOptions('{"reasoning_effort":"none","enable_thinking":false}'),
        ChatOptions('{"enable_thinking":true,"reasoning_effort":"none"}'),
        ChatOptions('{"verbosity":"low"}'),
    ]


async def test_hints_that_the_template_does_not_know_change_nothing() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        for hints in ({"reasoning_effort": "high"}, {"verbosity": "low"}):
            answer = await http.post("/v1/chat/completions", json=CHAT_BODY | hints)
            assert answer.status_code == 200, answer.text
    assert [request.chat for request in client.requests] == [ChatOptions()] * 2


COMPLETION_ERRORS = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, [2]]}, "prompt"),
    ({"prompt": "a", "max_tokens": -2}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 2, "min_tokens": 3}, "min_tokens"),
    ({"prompt": "a", "n": True}, "n"),
    ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "n": 129}, "n"),
    ({"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
    ({"prompt": "a", "best_of": 129}, "best_of"),
    ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    ({"prompt": "a", "echo": 1}, "echo"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "logprobs": 1, "token_healing": True}, "token_healing"),
    ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt": "a", "speculative": "tree"}, "speculative"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"5": "1"}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"1000": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"5": 20000}}, "logit_bias"),
    ({"prompt": "a", "frequency_penalty": 2.5}, "frequency_penalty"),
    ({"prompt": "a", "presence_penalty": -3}, "presence_penalty"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    ({"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids"),
    ({"prompt": "a", "allowed_token_ids": [5] * 1001}, "allowed_token_ids"),
    ({"prompt": "a", "bad_words": [""]}, "bad_words"),
    ({"prompt": "a", "stop_regex": ["x" * 257]}, "stop_regex"),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (
        {"prompt": "a", "stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ({"prompt": "a", "priority": 1.5}, "priority"),
    ({"prompt": "a", "priority": 2**31}, "priority"),
    ({"prompt": "a", "service_tier": "fastest"}, "service_tier"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "messages": []}, "messages"),
    ({"prompt": "a", "stream_options": {"max": 1}}, "stream_options.max"),
    ({"prompt": ["a", "b"], "top_p": 7}, "top_p"),
]


@pytest.mark.parametrize(("body", "param"), COMPLETION_ERRORS)
async def test_completion_errors_name_the_field(body: dict[str, Any], param: str) -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/v1/completions", json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/v1/completions", {"prompt": ["a"] * 9}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 3, "n": 3}, "prompt"),
        ("/v1/completions", {"prompt": [[1], [2], [3]], "best_of": 3}, "prompt"),
        ("/generate", {"text": ["a"] * 9}, "text"),
        ("/generate", {"input_ids": [[1]] * 3, "sampling_params": {"n": 3}}, "input_ids"),
    ],
)
async def test_more_than_can_ever_be_in_flight(
    route: str, body: dict[str, Any], param: str
) -> None:
    """Trying again later would not help, so this is not an overload."""
    client = FakeClient()
    async with in_process(client, max_requests=8) as http:
        response = await http.post(route, json=body)
    error = error_of(response)
    assert (response.status_code, error["param"], error["retryable"]) == (400, param, False)
    assert client.requests == []


CHAT_ERRORS = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["user"] * (MAX_OBJECTS + 1)}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].image_url.url",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "txt": "hi"}]}]},
        "messages[0].content[0].text",
    ),
    (CHAT_BODY | {"top_logprobs": 3}, "top_logprobs"),
    (CHAT_BODY | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT_BODY | {"logprobs": 1}, "logprobs"),
    (
        CHAT_BODY | {"add_generation_prompt": True, "continue_final_message": True},
        "add_generation_prompt",
    ),
    (CHAT_BODY | {"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    (CHAT_BODY | {"chat_template": "{{ x }}"}, "chat_template"),
    (CHAT_BODY | {"n": 2, "logit_bias": {"-1": 3}}, "logit_bias"),
    (CHAT_BODY | {"reasoning_effort": 3}, "reasoning_effort"),
    (CHAT_BODY | {"verbosity": "shouting"}, "verbosity"),
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
    ("error", "kind"),
    [
        (RequestError("busy", code=OVERLOADED, retryable=True), openai.RateLimitError),
        (RequestError("too long", code=CONTEXT_LENGTH, param="text"), openai.BadRequestError),
        (RequestError("draining", code=UNAVAILABLE), openai.InternalServerError),
        (ValueError("a defect"), openai.InternalServerError),
    ],
)
async def test_the_openai_package_knows_our_errors(
    error: Exception, kind: type[openai.APIStatusError]
) -> None:
    client = FakeClient()
    client.refusals = {0: error}
    async with (
        served(client, api_keys=("sesame",)) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="sesame", max_retries=0) as package,
    ):
        with pytest.raises(kind) as caught:
            await package.completions.create(model="tiny", prompt="a")
        stranger = package.with_options(api_key="other")
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.completions.create(model="tiny", prompt="a")
    if isinstance(error, RequestError):
        assert caught.value.code == error.info.code and error.info.message in caught.value.message
        assert caught.value.param == ("prompt" if error.info.param else None)
    else:
        assert caught.value.code == "internal" and "a defect" not in caught.value.message
    assert refused.value.code == "unauthorized"


@pytest.mark.parametrize(
    ("struct", "kind"),
    [
        (NativeRequest, NATIVE),
        (NativeSampling, NATIVE_SAMPLING),
        (CompletionRequest, COMPLETION),
        (ChatRequest, CHAT),
        (ResponsesRequest, RESPONSES),
    ],
)
def test_a_field_has_one_class_and_is_documented(struct: Any, kind: Kind) -> None:
    rows = list(describe(struct, kind))
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert set(names) == set(struct.__struct_fields__) | set(kind.fields)
    assert all(row.note for row in rows)


LONG = "x" * 5000


@pytest.mark.parametrize(
    "fields",
    [
        {f"max_{LONG}": 1},
        {"messages": [{"role": LONG, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": LONG, "text": "hi"}]}]},
        {"messages": [{"role": "tool", "content": "hi", "tool_call_id": LONG}]},
        {"response_format": {"type": LONG}},
        {"tool_choice": {"type": "function", "function": {"name": LONG}}},
    ],
)
async def test_errors_quote_the_beginning_of_what_is_long(fields: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "clock"}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]} | fields
    async with in_process(FakeClient()) as http:
        error = error_of(await http.post("/v1/chat/completions", json=body))
    assert 60 <= error["message"].count("x") <= 85 and "x ..." in error["message"].replace("'", "")
    assert len(error["param"] or "") < 120
