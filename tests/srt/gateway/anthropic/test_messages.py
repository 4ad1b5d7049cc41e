"""The route /v1/messages: what a conversation becomes, and what it refuses."""

import base64
from typing import Any

import httpx2
import pytest

from srt.client.media import MediaFile
from srt.gateway.http.server import MAX_HEADERS
from srt.wire.errors import (
    CONTEXT_LENGTH,
    OVERLOADED,
    RATE_LIMITED,
    RESTARTING,
    UNAVAILABLE,
    RequestError,
)
from srt.wire.messages import ChatMessage, ChatOptions, ToolCall
from tests.fakes import FakeClient
from tests.srt.gateway.anthropic.setup import (
    BODY,
    HI,
    RESULT,
    ROUTE,
    USE,
    WEATHER,
    answer,
    error_of,
    ignored,
    send,
)
from tests.srt.gateway.media.setup import CAT, DOG, RULES, SeeingClient, data_url
from tests.srt.gateway.setup import in_process, served

TOOLS = {"tools": [WEATHER]}
THINKS: dict[str, Any] = {"reasoning": True, "template": "<think> enable_thinking reasoning_effort"}


def image(data: bytes = CAT) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    return {"type": "image", "source": source}


async def test_fields_reach_the_ring() -> None:
    client = FakeClient()
    schema = {"type": "object", "properties": {}}
    fields = {
        "system": "Be brief.",
        "stop_sequences": ["x", "y"],
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 0,
        "seed": 4,
        "rid": "mine",
        "cache_salt": "s",
        "metadata": {"user_id": "u"},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "xhigh", "format": {"type": "json_schema", "schema": schema}},
    }
    message = await answer(fields, client, **THINKS)
    (request,) = client.requests
    sampling = request.sampling
    assert request.messages == [ChatMessage("system", "Be brief."), ChatMessage("user", "hi")]
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p) == (9, 0.0, 0.5)
    assert (sampling.top_k, sampling.seed, sampling.stop) == (-1, 4, ["x", "y"])
    assert sampling.json_schema == '{"type":"object","properties":{}}'
    assert (request.cache_salt, message["id"]) == ("s", "mine")
    assert request.chat == ChatOptions('{"reasoning_effort":"high","enable_thinking":false}')


async def test_a_conversation_becomes_a_chat() -> None:
    """Results are messages of their own, and all that the assistant has said is one."""
    client = FakeClient()
    messages = [
        HI,
        {"role": "system", "content": [{"type": "text", "text": "Now"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "any"},
                {"type": "redacted_thinking", "data": "zzz"},
                {"type": "text", "text": "wait"},
                USE,
                USE | {"id": "toolu_2", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                RESULT,
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True},
                {"type": "text", "text": "a"},
                {"type": "text", "text": "b"},
            ],
        },
    ]
    system = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await answer({"messages": messages, "system": system, **TOOLS}, client)
    arguments = '{"city":"Rome"}'
    calls = [ToolCall("toolu_1", "weather", arguments), ToolCall("toolu_2", "weather", "{}")]
    assert client.requests[0].messages == [
        ChatMessage("system", "one\ntwo"),
        ChatMessage("user", "hi"),
        ChatMessage("system", "Now"),
        ChatMessage("assistant", "wait", tool_calls=calls, reasoning="hm"),
        ChatMessage("tool", "18 degrees", tool_call_id="toolu_1", name="weather"),
        ChatMessage("tool", "Error: ", tool_call_id="toolu_2", name="weather"),
        ChatMessage("user", "ab"),
    ]


async def test_fields_of_blocks_of_other_types_are_named() -> None:
    """And shown to nobody."""
    client = FakeClient()
    said = [
        {"type": "redacted_thinking", "data": "x", "text": "secret"},
        {"type": "thinking", "thinking": "hm", "text": "secret"},
        USE | {"data": ""},
    ]
    results = [{"type": "text", "text": "ok", "source": {"type": "url"}}]
    messages = [
        HI,
        {"role": "assistant", "content": said},
        {"role": "user", "content": [RESULT | {"content": results, "thinking": "secret"}]},
    ]
    response = await send({"messages": messages}, client)
    assert set(ignored(response)) == {
        "messages[].content[].text",
        "messages[].content[].thinking",
        "messages[].content[].content[].source",
    }
    _, assistant, result = client.requests[0].messages or []
    assert (assistant.content, assistant.reasoning, result.content) == ("", "hm", "ok")


async def test_the_assistants_last_message_is_continued() -> None:
    client = FakeClient()
    await answer({"messages": [HI, {"role": "assistant", "content": "The"}]}, client)
    assert client.requests[0].chat == ChatOptions(continue_final=True, add_generation_prompt=False)


async def test_images_of_users_and_of_results() -> None:
    client = SeeingClient()
    address = {"type": "image", "source": {"type": "url", "url": data_url(DOG)}}
    text = {"type": "text", "text": "look"}
    messages = [
        {"role": "user", "content": [text, image()]},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [RESULT | {"content": [text, address], "is_error": True}]},
    ]
    message = await answer({"messages": messages, **TOOLS}, client, media=RULES)
    (request,) = client.requests
    assert request.messages is not None
    assert request.messages[0] == ChatMessage("user", "", parts=["look", 0])
    assert request.messages[2].parts == ["Error: look", 1]
    assert request.media == (MediaFile("image", (CAT,)), MediaFile("image", (DOG,)))
    assert message["type"] == "message"


async def test_images_are_counted() -> None:
    """By the ring, which computes nothing of them."""
    client = SeeingClient()
    async with in_process(client, media=RULES) as http:
        body = {"messages": [{"role": "user", "content": [image()]}]}
        response = await http.post(f"{ROUTE}/count_tokens", json=body)
    assert response.json() == {"input_tokens": client.generations[0].prompt_tokens}
    assert client.aborted == [client.generations[0].rid]


async def test_refusals_of_counts_are_those_of_messages() -> None:
    client = SeeingClient()
    client.refuse = lambda _: RequestError("full", code=OVERLOADED)
    body = {"messages": [{"role": "user", "content": [image()]}]}
    async with in_process(client, media=RULES) as http:
        refused = await http.post(f"{ROUTE}/count_tokens", json=body)
        assert (refused.status_code, error_of(refused)["type"]) == (529, "overloaded_error")
        client.refuse = lambda _: too_long("your messages resulted in 3000", "messages")
        refused = await http.post(f"{ROUTE}/count_tokens", json=body)
    assert error_of(refused)["message"] == "prompt is too long: 3000 tokens > 2048 maximum"


async def test_counts_are_those_of_the_prompt() -> None:
    client = FakeClient()
    body = {"messages": [HI], "system": "x", "max_tokens": 4, "stream": True, **TOOLS}
    async with in_process(client) as http:
        response = await http.post(f"{ROUTE}/count_tokens", json=body)
        assert response.json() == {"input_tokens": 2}
        await http.post(ROUTE, json=BODY | body)
    (asked,), (request,) = client.tokenized, client.requests
    assert (asked.messages, asked.tools, asked.chat) == (
        request.messages,
        request.tools,
        request.chat,
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "weather"},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ),
    ],
)
async def test_tools_are_those_of_a_chat(choice: Any, expected: dict[str, Any]) -> None:
    client = FakeClient()
    await answer({**TOOLS, "tool_choice": choice}, client)
    function = {
        "name": "weather",
        "description": "Tell it.",
        "parameters": WEATHER["input_schema"],
    }
    if "disable_parallel_tool_use" in choice:
        expected = expected | {"parallel_tool_calls": False}
    chat = {
        "messages": [HI],
        "max_tokens": 9,
        "tools": [{"type": "function", "function": function}],
    }
    async with in_process(client) as http:
        await http.post("/v1/chat/completions", json=chat | expected)
    ours, theirs = client.requests
    assert (ours.tools, ours.sampling) == (theirs.tools, theirs.sampling)
    assert bool(ours.tools) == (choice["type"] != "none")


async def test_names_of_tools_are_long() -> None:
    name = "n" * 128
    client = FakeClient([f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'])
    message = await answer({"tools": [WEATHER | {"name": name}]}, client)
    assert message["content"][0]["name"] == name


async def test_tools_of_others_are_left_out() -> None:
    client = FakeClient()
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    tools = {"tools": [search, WEATHER]}
    response = await send(tools, client)
    assert [tool.name for tool in client.requests[0].tools] == ["weather"]
    assert ignored(response) == ["tools[].max_uses", "tools[].web_search_20250305"]
    asked = {"tool_choice": {"type": "tool", "name": "web_search"}}
    strict: dict[str, Any] = {"unknown_fields": "refuse"}
    for fields, info in ((asked, {}), ({}, strict)):
        refused = await send({"tools": [{**search, "max_uses": None}], **fields}, **info)
        assert refused.status_code == 400
        assert error_of(refused)["param"] == "tools[0].type"


async def test_what_has_no_effect_is_named() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    fields = {
        "model": "claude-opus-5-5",
        "system": [{"type": "text", "text": "s", **cached}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "q", **cached}]}],
        "tools": [WEATHER | cached],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 1025,
        "output_config": {"effort": "low"},
        "context_management": {"edits": []},
        "service_tier": "auto",
    }
    beta = {"anthropic-beta": "x-2026"}
    response = await send(fields, headers=beta)
    strict = await send(fields, headers=beta, unknown_fields="refuse")
    assert strict.json()["model"] == response.json()["model"] == "tiny"
    assert ignored(strict) == ignored(response)
    assert set(ignored(response)) == {
        "model",
        "anthropic-beta",
        "system[].cache_control",
        "messages[].content[].cache_control",
        "tools[].cache_control",
        "thinking",
        "thinking.budget_tokens",
        "output_config.effort",
        "context_management",
        "service_tier",
    }
    for other in ("min_keep", "my_field"):  # another server's, and nobody's
        refused = await send({other: 1}, unknown_fields="refuse")
        assert (refused.status_code, error_of(refused)["param"]) == (400, other)
    known = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    assert "x-ignored-fields" not in (await send(known, **THINKS)).headers


@pytest.mark.parametrize(
    ("kind", "variables"),
    [
        ("enabled", '{"enable_thinking":true,"thinking":true}'),
        ("disabled", '{"enable_thinking":false}'),
        ("adaptive", ""),
        ("between_tools", ""),
    ],
)
async def test_thinking_is_switched(kind: str, variables: str) -> None:
    client = FakeClient()
    budget = {"budget_tokens": 1024} if kind == "enabled" else {}
    await answer({"thinking": {"type": kind, **budget}, "max_tokens": 2000}, client, **THINKS)
    assert client.requests[0].chat.template_args == variables


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [*blocks]}]}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [], "system": "s"}, "messages"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    (said({"type": "document"}), "messages[0].content[0].type"),
    (said({"type": "text"}), "messages[0].content[0].text"),
    (said(USE), "messages[0].content[0].type"),
    (said(RESULT, role="assistant"), "messages[0].content[0].type"),
    (said(USE | {"input": None}, role="assistant"), "messages[0].content[0].input"),
    (said(RESULT), "messages[0].content[0].tool_use_id"),
    (said({"type": "tool_result"}), "messages[0].content[0].tool_use_id"),
    (said(image()), "messages[0].content[0].source"),
    (said(RESULT | {"content": [{"type": "x"}]}), "messages[0].content[0].content[0].type"),
    (said({"type": "image", "source": {"type": "file"}}), "messages[0].content[0].source.type"),
    (said({"type": "image", "source": {"type": "url"}}), "messages[0].content[0].source.url"),
    ({"messages": [HI, {"role": "assistant", "content": [USE]}]}, "messages[1]"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
    ({"tools": [WEATHER | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "auto", "name": "x"}}, "tool_choice.name"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 99}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"stop": ["x"]}, "stop"),
    ({"container": "c"}, "container"),
    ({"n": 2}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[param for _, param in BAD])
async def test_errors_name_the_field(fields: dict[str, Any], param: str) -> None:
    client = FakeClient()
    media = RULES if "file" in str(fields) or "'url'" in str(fields) else None
    response = await send(fields, client, **({} if media is None else {"media": media}))
    error = error_of(response)
    assert (response.status_code, error["type"]) == (400, "invalid_request_error"), error
    assert error["param"] is not None and error["param"].startswith(param), error
    assert param.rpartition(".")[2] in error["message"] and not client.generations


async def test_names_in_errors_of_the_ring() -> None:
    client = FakeClient()
    client.refuse = lambda _: RequestError(" is bad", at="messages[1].tool_calls[0].function.name")
    fields = {"system": "s", "messages": [{"role": "assistant", "content": [USE]}, HI]}
    error = error_of(await send(fields, client))
    assert error["param"] == "messages[0].content[0].name"


def too_long(sizes: str, param: str) -> RequestError:
    text = f"This model's maximum context length is 2048 tokens. However, {sizes} tokens. Shorten."
    return RequestError(text, param=param, code=CONTEXT_LENGTH)


async def test_a_prompt_that_is_too_long_has_both_sizes() -> None:
    client = FakeClient()
    client.refuse = lambda _: too_long("your messages resulted in 3000", "messages")
    error = error_of(await send({}, client))
    assert error["message"] == "prompt is too long: 3000 tokens > 2048 maximum"


async def test_an_answer_may_be_as_long_as_there_is_room() -> None:
    """Agents ask for as much as Anthropic's models give."""
    client = FakeClient()
    client.refusals = {0: too_long("you requested 2050", "max_new_tokens")}
    message = await answer({"max_tokens": 2000}, client)
    assert [request.sampling.max_new_tokens for request in client.requests] == [2000, None]
    assert message["stop_reason"] == "end_turn"
    await answer({"max_tokens": 32000}, client)
    assert client.requests[2].sampling.max_new_tokens is None


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after"),
    [
        (RequestError("full", code=OVERLOADED, retry_after_s=2.5), 529, "overloaded_error", "3"),
        (RequestError("60", code=RATE_LIMITED, retry_after_s=2.5), 429, "rate_limit_error", "3"),
        (RequestError("soon", code=RESTARTING), 503, "api_error", "1"),
        (RequestError("gone", code=UNAVAILABLE), 503, "api_error", "1"),
        (ValueError("a defect"), 500, "api_error", None),
    ],
)
async def test_failures_of_the_server(
    error: Exception, status: int, kind: str, retry_after: str | None
) -> None:
    client = FakeClient()
    client.refuse = lambda _: error
    response = await send({}, client)
    assert (response.status_code, error_of(response)["type"]) == (status, kind)
    assert response.headers.get("retry-after") == retry_after
    assert "a defect" not in response.text


async def test_keys_and_routes() -> None:
    keys: dict[str, Any] = {"api_keys": ("sesame",), "strict_model": True}
    async with in_process(FakeClient(), **keys) as http:
        refused = await http.post(ROUTE, json=BODY)
        assert (refused.status_code, error_of(refused)["type"]) == (401, "authentication_error")
        for key in ({"x-api-key": "sesame"}, {"authorization": "Bearer sesame"}):
            assert (await http.post(ROUTE, json=BODY, headers=key)).status_code == 200
            other = await http.post(ROUTE, json=BODY | {"model": "claude"}, headers=key)
            assert (other.status_code, error_of(other)["type"]) == (404, "not_found_error")
            assert (await http.get(ROUTE, headers=key)).json()["type"] == "error"
            for path in ("", "/msgbatch_1", "/msgbatch_1/results"):
                batch = await http.get(f"{ROUTE}/batches{path}", headers=key)
                assert (batch.status_code, error_of(batch)["type"]) == (501, "api_error")
    large = await send({"system": "x" * (17 << 20)})
    assert (large.status_code, error_of(large)["type"]) == (413, "request_too_large")


async def test_errors_before_the_routes() -> None:
    async with served(FakeClient()) as server, httpx2.AsyncClient(base_url=server.url) as http:
        many = {f"x-{i}": "y" for i in range(MAX_HEADERS)}
        for headers, status, kind in (
            (many, 400, "invalid_request_error"),
            ({"content-encoding": "gzip"}, 415, "invalid_request_error"),
            ({"host": "other.example"}, 403, "permission_error"),
        ):
            refused = await http.post(ROUTE, json=BODY, headers=headers)
            assert (refused.status_code, error_of(refused)["type"]) == (status, kind)


async def test_models_in_either_form() -> None:
    version = {"anthropic-version": "2023-06-01"}
    async with in_process(FakeClient(), model_names=("big", "*")) as http:
        page = (await http.get("/v1/models", headers=version)).json()
        assert [model["id"] for model in page["data"]] == ["tiny", "big"]
        assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "big", False)
        one = (await http.get("/v1/models/big", headers=version)).json()
        assert one == page["data"][1] and one["type"] == "model"
        assert (await http.get("/v1/models/big")).json()["object"] == "model"
        assert (await http.get("/v1/models")).json()["object"] == "list"
        unknown = await http.get("/v1/none", headers=version)
        assert (unknown.status_code, error_of(unknown)["type"]) == (404, "not_found_error")
