"""Tool calls of the real model through the unmodified `openai` package."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from srt import AsyncClient
from tests.e2e.server import Server

CHAT: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "now", "description": "The time."}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
async def oai(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
        yield client


async def ask(oai: openai.AsyncOpenAI, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "smollm2", "messages": CHAT, "tools": [WEATHER, CLOCK]}
    asked |= {"temperature": 0, "max_tokens": 150, "parallel_tool_calls": False, **fields}
    return await oai.chat.completions.create(**asked)


def check_call(call: Any) -> None:
    """A valid call of one of the tools."""
    arguments = json.loads(call.function.arguments)
    assert call.type == "function" and call.id.startswith("call_")
    if call.function.name == "now":
        assert arguments == {}
        return
    assert call.function.name == "get_weather"
    assert list(arguments) == ["city", "unit"] and len(arguments["city"]) <= 12
    assert arguments["unit"] in ("celsius", "fahrenheit")


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_one_call_whole_and_streamed(oai: openai.AsyncOpenAI, choice: Any) -> None:
    answer = (await ask(oai, tool_choice=choice)).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    (call,) = answer.message.tool_calls
    check_call(call)
    if choice is NAMED:
        assert call.function.name == "get_weather"
    alone = {"speculative": "off"}  # else in fewer pieces
    stream = await ask(oai, tool_choice=choice, stream=True, extra_body=alone)
    chunks = [chunk.choices[0] async for chunk in stream]
    pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or []]
    assert pieces[0].function.name == call.function.name and pieces[0].id.startswith("call_")
    assert "".join(p.function.arguments for p in pieces) == call.function.arguments
    assert len(pieces) > 2 and {p.index for p in pieces} == {0}
    assert chunks[-1].finish_reason == "tool_calls"
    assert not any(chunk.delta.content for chunk in chunks)


async def test_parallel_calls(oai: openai.AsyncOpenAI) -> None:
    """Any number of calls, up to the length; each complete one is valid."""
    answer = await ask(
        oai, tool_choice="required", parallel_tool_calls=True, temperature=1, seed=3, max_tokens=200
    )
    calls = answer.choices[0].message.tool_calls
    complete = calls if answer.choices[0].finish_reason == "tool_calls" else calls[:-1]
    assert calls
    for call in complete:
        check_call(call)
    assert len({call.id for call in calls}) == len(calls)


async def test_each_sample_calls_for_itself(oai: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"tool_choice": "required", "n": 3, "temperature": 1, "seed": 5}
    answer = await ask(oai, **asked)
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        check_call(call)
    ids = [choice.message.tool_calls[0].id for choice in answer.choices]
    assert len(set(ids)) == 3
    arguments = ["", "", ""]
    async for chunk in await ask(oai, **asked, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            arguments[chunk.choices[0].index] += piece.function.arguments
    assert arguments == [c.message.tool_calls[0].function.arguments for c in answer.choices]


async def test_the_stream_helper(oai: openai.AsyncOpenAI) -> None:
    """The package itself joins the pieces."""
    strict: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    async with oai.chat.completions.stream(
        model="smollm2",
        messages=CHAT,
        tools=[strict],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=150,
        temperature=0,
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    (call,) = final.choices[0].message.tool_calls or []
    assert set(json.loads(call.function.arguments)) == {"city", "unit"}


async def test_several_turns(oai: openai.AsyncOpenAI) -> None:
    """The calls are sent back, with results, as the package gave them."""
    first = (await ask(oai, tool_choice=NAMED)).choices[0].message
    messages = [
        *CHAT,
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "18 degrees, sunny"},
    ]
    second = (await ask(oai, messages=messages, tool_choice="none", max_tokens=16)).choices[0]
    assert second.message.tool_calls is None and second.message.content
    again = (await ask(oai, messages=messages, tool_choice="required")).choices[0].message
    check_call(again.tool_calls[0])


async def test_both_ways_of_the_python_client_give_the_same_text(server: Server) -> None:
    """Also with calls in the history; nothing is taken out of the text."""
    call = {"id": "c1", "name": "get_weather", "arguments": '{"city":"Paris","unit":"celsius"}'}
    messages = [
        *CHAT,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "18 degrees", "tool_call_id": "c1"},
    ]
    begin = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    sampling = {"choices": [begin], "max_new_tokens": 60}
    outputs = []
    for url in (server.ring, server.url):
        async with AsyncClient(url) as client:
            asked: dict[str, Any] = {"messages": messages, "tools": [WEATHER, CLOCK]}
            outputs.append(await client.generate(**asked, sampling=sampling))
    assert outputs[0].text == outputs[1].text == begin
    assert outputs[0].prompt_tokens == outputs[1].prompt_tokens


async def test_auto(oai: openai.AsyncOpenAI) -> None:
    """By default, a call or text. With strict functions, each call that is begun is valid."""
    free = (await ask(oai, max_tokens=48)).choices[0]
    assert free.message.content or free.message.tool_calls
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    answer = (await ask(oai, tools=[strict], max_tokens=100)).choices[0]
    for call in answer.message.tool_calls or []:
        if answer.finish_reason == "tool_calls":
            check_call(call)
    either: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["ok"]}}}
    one = (await ask(oai, tools=[strict], response_format=either)).choices[0].message
    if one.tool_calls:
        check_call(one.tool_calls[0])
    else:
        assert one.content == '"ok"'


async def test_schemas_that_cannot_be_enforced_are_named(oai: openai.AsyncOpenAI) -> None:
    elsewhere = {"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}
    function = {"name": "f", "parameters": elsewhere}
    tool = {"type": "function", "function": function}
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(oai, tools=[tool], tool_choice="required")
    assert caught.value.param == "tools[0].function.parameters"
    either: Any = {"tools": [CLOCK], "extra_body": {"regex": "a("}}
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(oai, **either)
    assert caught.value.param == "regex" and "position 1" in caught.value.message
    answer = await ask(oai, tools=[tool], tool_choice="auto", parallel_tool_calls=True)
    assert answer.choices[0].message is not None
