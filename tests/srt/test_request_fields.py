"""Constraints, tools and calls as programs hand them to `AsyncClient`."""

import json
from typing import Any

import pytest

from srt.errors import RequestError
from srt.messages import ChatMessage, ToolCall, ToolSpec
from srt.request_fields import checked_request
from srt.sampling_params import SamplingParams

SCHEMA = {"type": "object", "properties": {"é": {"type": "null"}}}
MESSAGE = {"role": "user", "content": "hi"}


def test_schemas_may_be_objects() -> None:
    for given in ({"json_schema": SCHEMA}, SamplingParams(json_schema=SCHEMA)):  # type: ignore[arg-type]
        sampling = checked_request({"text": "a", "sampling": given}).sampling
        assert json.loads(sampling.json_schema or "") == SCHEMA
        assert sampling.constraint is not None and sampling.constraint.kind == "json_schema"
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    sampling = checked_request({"text": "a", "sampling": {"structural_tag": tag}}).sampling
    assert json.loads(sampling.structural_tag or "") == tag
    text = checked_request({"text": "a", "sampling": {"json_schema": "{ }"}}).sampling
    assert text.json_schema == "{ }"


def test_tools_in_all_shapes() -> None:
    function = {"name": "f", "description": "x", "parameters": SCHEMA}
    text = json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":"))
    spec = ToolSpec("f", "x", text)
    tools = [{"type": "function", "function": function}, function, spec]
    assert checked_request({"messages": [MESSAGE], "tools": tools}).tools == [spec] * 3


def test_messages_with_calls() -> None:
    call = {"id": "c", "name": "f", "arguments": "{}"}
    messages: list[Any] = [
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "Hm."},
        {"role": "tool", "content": "1", "tool_call_id": "c", "name": "f"},
    ]
    expected = [
        ChatMessage("assistant", "", [ToolCall("c", "f", "{}")], reasoning="Hm."),
        ChatMessage("tool", "1", tool_call_id="c", name="f"),
    ]
    assert checked_request({"messages": messages}).messages == expected
    assert checked_request({"messages": expected}).messages == expected


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"sampling": {"json_schema": {1: float("nan")}}}, "json_schema"),
        ({"sampling": {"json_schema": 5}}, "json_schema"),
        ({"sampling": {"choices": "abc"}}, "choices"),
        ({"sampling": {"json_whitespace": "some"}}, "json_whitespace"),
        ({"tools": {"name": "f"}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"description": "x"}]}, "tools[0]"),
        ({"tools": [{"name": 5}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "strict": True}]}, "tools[0].strict"),
        ({"messages": [MESSAGE | {"colour": "red"}]}, "messages[0].colour"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [MESSAGE | {"tool_calls": "c"}]}, "messages[0].tool_calls"),
        ({"messages": [MESSAGE | {"tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_wrong_fields_are_named(request_fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        checked_request(request_fields)
    assert caught.value.info.param == param
