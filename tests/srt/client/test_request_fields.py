"""Constraints, tools and calls as programs give them to `AsyncClient`."""

import json
from typing import Any

import pytest
from msgspec import field

from srt.client.generation import TokenizeRequest
from srt.client.request_fields import checked_request, checked_tokenize
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ChatOptions, ToolCall, ToolSpec
from srt.wire.sampling import SamplingParams, Scoring

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


class Greedy(SamplingParams, frozen=True, kw_only=True):
    """With a default of its own."""

    temperature: float = 0.0
    stop: list[str] = field(default_factory=lambda: ["."])


def test_structs_are_checked_like_dicts() -> None:
    assert checked_request({"text": "a", "sampling": Greedy(top_k=3)}).sampling == SamplingParams(
        temperature=0.0, stop=["."], top_k=3
    )
    wrong: list[Any] = [
        ("n", "2"),
        ("n", True),
        ("top_k", -1.5),
        ("ignore_eos", 0),
        ("stop", "a"),
        ("temperature", float("nan")),
        ("min_p", float("inf")),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("regex", "\ud800"),
    ]
    for name, value in wrong:
        for given in ({name: value}, SamplingParams(**{name: value})):
            with pytest.raises(RequestError) as caught:
                checked_request({"text": "a", "sampling": given})
            assert caught.value.info.param == name
    given = SamplingParams(temperature=1, seed=2**63, logit_bias={}, regex="é")
    sampling = checked_request({"text": "a", "sampling": given}).sampling
    assert sampling == given and type(sampling.temperature) is float


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


def test_how_a_chat_is_written() -> None:
    for given in ({"template_args": {"é": [1]}}, ChatOptions('{"é":[1]}')):
        chat = checked_request({"messages": [MESSAGE], "chat": given}).chat
        assert chat == ChatOptions('{"é":[1]}')
    assert checked_request({"messages": [MESSAGE], "chat": {"continue_final": True}}).chat == (
        ChatOptions(continue_final=True)
    )


def test_tokens_may_be_named_as_json_does() -> None:
    checked = checked_request(
        {
            "text": "a",
            "sampling": {"logit_bias": {"5": 1, 6: 2.5}},
            "return_logprob": True,
            "logprob_token_ids": (7,),
        }
    )
    assert checked.sampling.logit_bias == {5: 1.0, 6: 2.5} and checked.scoring == Scoring(ids=[7])


def test_log_probabilities_are_asked_for_in_four_arguments() -> None:
    assert checked_request({"text": "a", "logprob_start_len": 99}).scoring is None
    assert checked_request({"text": "a", "return_logprob": True}).scoring == Scoring()
    asked = {"logprob_start_len": 2, "top_logprobs": 3}
    checked = checked_request({"text": "a", "return_logprob": True, **asked})
    assert checked.scoring == Scoring(2, 3)


def test_what_is_to_be_tokenized() -> None:
    assert checked_tokenize({"text": "a", "add_special_tokens": False}) == TokenizeRequest(
        text="a", add_special_tokens=False
    )
    chat = {"messages": [MESSAGE], "tools": [{"name": "f"}], "chat": {"continue_final": True}}
    assert checked_tokenize(chat) == TokenizeRequest(
        messages=[ChatMessage("user", "hi")],
        tools=[ToolSpec("f")],
        chat=ChatOptions(continue_final=True),
    )
    for fields in ({"text": 5}, {"add_special_tokens": 1}, {"colour": 1}, {"chat": {"colour": 1}}):
        with pytest.raises(RequestError):
            checked_tokenize(fields)


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"sampling": {"json_schema": {1: float("nan")}}}, "json_schema"),
        ({"sampling": {"json_schema": 5}}, "json_schema"),
        ({"sampling": {"choices": "abc"}}, "choices"),
        ({"sampling": {"json_whitespace": "some"}}, "json_whitespace"),
        ({"sampling": {"logit_bias": {"a": 1}}}, "logit_bias"),
        ({"sampling": {"logit_bias": {5: float("nan")}}}, "logit_bias"),
        ({"sampling": {"n": "2"}}, "n"),
        ({"sampling": {"stop_regex": "a"}}, "stop_regex"),
        ({"top_logprobs": "2"}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"return_logprob": "yes"}, "return_logprob"),
        ({"scoring": {"top": 1}}, "scoring"),
        ({"logprob_token_ids": "ab"}, "logprob_token_ids"),
        ({"chat": 5}, "chat"),
        ({"chat": {"continue_final": 1}}, "chat.continue_final"),
        ({"chat": {"template_args": 5}}, "chat.template_args"),
        ({"chat": {"template_args": {"a": {1}}}}, "chat.template_args"),
        ({"chat": {"colour": 1}}, "chat.colour"),
        ({"tools": {"name": "f"}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"description": "x"}]}, "tools[0]"),
        ({"tools": [{"name": 5}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "strict": True}]}, "tools[0].strict"),
        ({"messages": [MESSAGE | {"colour": "red"}]}, "messages[0].colour"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": 5}, "messages"),
        ({"return": {}}, "return"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [MESSAGE | {"tool_calls": "c"}]}, "messages[0].tool_calls"),
        ({"messages": [MESSAGE | {"tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_wrong_fields_are_named(request_fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        checked_request(request_fields)
    assert caught.value.info.param == param
