"""Every field that OpenAI's client knows has a class here: the list comes from the client's own
types, and each field does what our tables say.
"""

from typing import Any, NamedTuple, get_type_hints

import msgspec
import openai
import pytest
from openai.types import completion_create_params as completion
from openai.types.chat import (
    chat_completion_assistant_message_param,
    chat_completion_stream_options_param,
    chat_completion_tool_message_param,
    chat_completion_user_message_param,
)
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as response

from srt.gateway.wire.chat import Message
from srt.gateway.wire.fields import CHAT, COMPLETION, RESPONSES, Hint, Ignored, Kind, OnlyNeutral
from srt.gateway.wire.openai import ChatRequest, CompletionRequest, StreamOptions
from srt.gateway.wire.responses import ReasoningIn, ResponsesRequest, TextIn
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTION = {"name": "f", "parameters": SCHEMA}
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


class Route(NamedTuple):
    """A route: the client's types, our struct and table, and a value for every honoured field."""

    theirs: Any
    struct: type[msgspec.Struct]
    kind: Kind
    body: dict[str, Any]
    values: dict[str, Any]


COMMON = {
    "temperature": 0.5,
    "top_p": 0.5,
    "model": "tiny",
}
SAMPLED = {
    **COMMON,
    "n": 2,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {"5": 1},
    "seed": 3,
    "stop": ["x"],
    "max_tokens": 5,
}
ROUTES = {
    "completions": Route(
        completion.CompletionCreateParamsBase,
        CompletionRequest,
        COMPLETION,
        {"prompt": "a"},
        {**SAMPLED, "prompt": "b", "best_of": 2, "echo": True, "logprobs": 1},
    ),
    "chat": Route(
        chat.CompletionCreateParamsBase,
        ChatRequest,
        CHAT,
        {"messages": MESSAGES},
        {
            **SAMPLED,
            "messages": MESSAGES,
            "logprobs": True,
            "top_logprobs": 0,
            "max_completion_tokens": 5,
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
            "verbosity": "low",
            "prediction": {"type": "content", "content": "x"},
            "response_format": JSON,
            "service_tier": "flex",
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": "none",
        },
    ),
    "responses": Route(
        response.ResponseCreateParamsBase,
        ResponsesRequest,
        RESPONSES,
        {"input": "a"},
        {
            **COMMON,
            "input": MESSAGES,
            "include": ["reasoning.encrypted_content"],
            "instructions": "x",
            "max_output_tokens": 5,
            "metadata": {"a": "b"},
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low", "summary": "auto"},
            "service_tier": "priority",
            "store": False,
            "text": {"verbosity": "low"},
            "tools": [{"type": "function", "strict": False, **FUNCTION}],
            "tool_choice": "auto",
        },
    ),
}
# Honoured, but only with others.
WITH_OTHERS = {"stream_options": {"stream": True}, "previous_response_id": {}, "background": {}}
# For each field that is refused, a value that would have an effect.
ASKING = {
    "access_programs": [{}],
    "audio": {"voice": "x", "format": "wav"},
    "background_options": {"x": 1},
    "context_management": [{"type": "compaction"}],
    "conversation": "c",
    "function_call": {"name": "f"},
    "functions": [FUNCTION],
    "image": {"x": 1},
    "max_tool_calls": 2,
    "modalities": ["text", "audio"],
    "moderation": {"x": 1},
    "prompt": {"id": "p"},
    "suffix": "x",
    "top_logprobs": 3,
    "truncation": "auto",
    "web_search_options": {},
}


def fields() -> list[Any]:
    return [
        pytest.param(name, field, id=f"{name}-{field}")
        for name, route in ROUTES.items()
        for field in sorted(get_type_hints(route.theirs))
    ]


def has_field(struct: type[msgspec.Struct], name: str) -> bool:
    return name in {field.encode_name for field in msgspec.structs.fields(struct)}


async def send(name: str, body: dict[str, Any]) -> FakeClient:
    """Send `body` with the client, which raises the server's error."""
    fake = FakeClient()
    async with served(fake) as server:
        client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
        async with client:
            create: Any = {
                "completions": client.completions.create,
                "chat": client.chat.completions.create,
                "responses": client.responses.create,
            }[name]
            await create(**{"model": "tiny", **ROUTES[name].body, **body})
    return fake


@pytest.mark.parametrize(("name", "field"), fields())
async def test_a_field_does_what_its_class_says(name: str, field: str) -> None:
    route = ROUTES[name]
    listed = route.kind.fields.get(field)
    assert has_field(route.struct, field) != (listed is not None), "in one of the tables"
    if listed is None:
        if field not in WITH_OTHERS:
            assert (await send(name, {field: route.values[field]})).requests
    elif isinstance(listed, Ignored):
        plain = (await send(name, {})).requests[0]
        for value in ("x", {"x": "y"}):
            given = (await send(name, {field: value})).requests[0]
            assert msgspec.structs.replace(given, tenant=plain.tenant) == plain
    elif isinstance(listed, Hint):
        assert (await send(name, {field: ASKING[field]})).requests
    else:
        assert isinstance(listed, OnlyNeutral)
        for value in (None, *listed.neutral):
            assert (await send(name, {field: value})).requests
        with pytest.raises(openai.BadRequestError) as error:
            await send(name, {field: ASKING[field]})
        assert error.value.param == field


NESTED = [
    (chat_completion_user_message_param.ChatCompletionUserMessageParam, Message, "messages"),
    (
        chat_completion_assistant_message_param.ChatCompletionAssistantMessageParam,
        Message,
        "messages",
    ),
    (chat_completion_tool_message_param.ChatCompletionToolMessageParam, Message, "messages"),
    (
        chat_completion_stream_options_param.ChatCompletionStreamOptionsParam,
        StreamOptions,
        "stream_options",
    ),
]


@pytest.mark.parametrize(("theirs", "struct", "field"), NESTED)
def test_fields_within_fields_of_a_chat(theirs: Any, struct: Any, field: str) -> None:
    for name in get_type_hints(theirs):
        assert has_field(struct, name) != (name in CHAT.nested[field].fields), name


def test_fields_within_fields_of_responses() -> None:
    hints = get_type_hints(response.ResponseCreateParamsBase)
    for field, struct in (("text", TextIn), ("reasoning", ReasoningIn)):
        theirs: Any = next(t for t in _options(hints[field]) if hasattr(t, "__annotations__"))
        for name in get_type_hints(theirs):
            listed = name in RESPONSES.nested[field].fields
            assert has_field(struct, name) != listed, (field, name)


def _options(hint: Any) -> list[Any]:
    found = getattr(hint, "__args__", ())
    return [hint, *(option for arg in found for option in _options(arg))]
