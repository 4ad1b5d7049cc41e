"""Anthropic's routes of a real server through the unmodified `anthropic` package: what a message
has, how a stream adds up, calls, JSON, counts; and that conversations are those of chats."""

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pydantic
import pytest

from tests.e2e.server import Server
from tests.running.profiles import seeds
from tests.srt.gateway.anthropic.package import anthropic
from tests.srt.gateway.anthropic.setup import RESULT, USE, WEATHER
from tests.srt.gateway.anthropic.test_same_prompts import bodies

QUESTION = "Name a city in France."
CITY: dict[str, Any] = {
    **WEATHER,
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
async def api(server: Server) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any") as client:
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    """A greedy request, unless the fields say otherwise."""
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": "x", "max_tokens": 12, "messages": messages, "extra_body": extra, **fields}


async def test_a_message_whole_and_streamed(api: Any) -> None:
    whole = await api.messages.create(**asked())
    assert whole.content[0].type == "text" and whole.content[0].text
    async with api.messages.stream(**asked()) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    assert [block.text for block in message.content] == [block.text for block in whole.content]
    assert message.stop_reason == whole.stop_reason
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    for usage in (whole.usage, message.usage):
        assert usage.input_tokens > 0 and usage.output_tokens == whole.usage.output_tokens
    count = await api.messages.count_tokens(model="x", messages=asked()["messages"])
    sums = [u.input_tokens + u.cache_read_input_tokens for u in (whole.usage, message.usage)]
    assert sums == [count.input_tokens] * 2
    assert message.usage.cache_read_input_tokens > 0  # the whole one's


async def test_stop_sequences_and_a_last_message_that_is_continued(api: Any) -> None:
    text = (await api.messages.create(**asked())).content[0].text
    stop = text[4:8]
    stopped = await api.messages.create(**asked(stop_sequences=[stop]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == text[: text.index(stop)]
    head = {"role": "assistant", "content": text[:4]}
    messages = [*asked()["messages"], head]
    more = await api.messages.create(**asked(messages=messages, max_tokens=4))
    assert more.content[0].text and not more.content[0].text.startswith(text[:4])


async def test_a_tool_from_call_to_answer(api: Any) -> None:
    forced = {"tools": [CITY], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    whole = await api.messages.create(**asked(**forced, max_tokens=60))
    (call,) = whole.content
    assert whole.stop_reason == "tool_use" and call.id.startswith("toolu_")
    assert call.name == "weather" and len(call.input["city"]) <= 12
    async with api.messages.stream(**asked(**forced, max_tokens=60)) as stream:
        streamed = await stream.get_final_message()
    assert streamed.content[0].input == call.input
    messages = [
        *asked()["messages"],
        {"role": "assistant", "content": [block.to_dict() for block in whole.content]},
        {"role": "user", "content": [RESULT | {"tool_use_id": call.id}]},
    ]
    after = await api.messages.create(**asked(messages=messages, tools=[CITY]))
    assert after.content and after.usage.cache_read_input_tokens > 0


async def test_json_that_a_model_parses(api: Any) -> None:
    class Answer(pydantic.BaseModel):
        yes: bool
        why: str = pydantic.Field(max_length=8)

    fields = asked(max_tokens=60)
    message = await api.messages.parse(**fields, output_format=Answer)
    assert isinstance(message.parsed_output, Answer) and message.stop_reason == "end_turn"


async def test_errors_and_what_is_too_long(api: Any, server: Server) -> None:
    messages = [{"role": "user", "content": [USE]}]
    with pytest.raises(anthropic.BadRequestError) as error:
        await api.messages.create(**asked(messages=messages))
    assert "messages[0].content[0].type" in error.value.body["error"]["message"]
    for count, reason in ((9000, r"\d+ tokens > 8192 maximum"), (50_000, ".* 8192 tokens.*")):
        long = [{"role": "user", "content": "word " * count}]
        with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: {reason}"):
            await api.messages.create(**asked(messages=long))
    tools = [CITY | {"input_schema": {"type": "object", "properties": {"a": {"$ref": "#/x"}}}}]
    choice = {"type": "tool", "name": "weather"}
    with pytest.raises(anthropic.BadRequestError) as error:
        await api.messages.create(**asked(tools=tools, tool_choice=choice))
    assert error.value.body["error"]["param"].startswith("tools[0].input_schema")
    full = await api.messages.create(**asked(max_tokens=20_000, stop_sequences=[" "]))
    assert full.stop_reason in ("stop_sequence", "end_turn")


@pytest.mark.parametrize("seed", seeds(2))
async def test_a_conversation_has_the_tokens_of_its_chat(seed: int, server: Server) -> None:
    rng = random.Random(seed)
    compared = False
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as http:
        while not compared:
            ours, theirs = bodies(rng)
            if "image_url" in str(theirs):
                continue  # this model sees nothing
            greedy = {"temperature": 0, "max_tokens": 4}
            one = await http.post("/v1/messages", json=ours | greedy)
            other = await http.post(
                "/v1/chat/completions", json=theirs | greedy | {"return_token_ids": True}
            )
            assert one.status_code == other.status_code, (one.text, other.text)
            if one.status_code == 200:
                compared = True
                usage, chat = one.json()["usage"], other.json()
                total = usage["input_tokens"] + usage["cache_read_input_tokens"]
                assert total == len(chat["prompt_token_ids"])
                # Of the same ids, all but the last token are cached.
                again = (await http.post("/v1/messages", json=ours | greedy)).json()["usage"]
                assert again["input_tokens"] == 1
                texts = [b.get("text", "") for b in one.json()["content"] if "text" in b]
                assert "".join(texts) == (chat["choices"][0]["message"]["content"] or "")
