"""A conversation is the same request of the ring by way of Responses as by way of chats."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.running.profiles import seeds
from tests.srt.gateway.anthropic.test_same_prompts import CHAT_ROUTE, THINKS, bodies
from tests.srt.gateway.media.setup import RULES, SeeingClient
from tests.srt.gateway.setup import in_process

ROUTE = "/v1/responses"


def parts_of(content: Any) -> Any:
    """A text, or a chat's parts as Responses names them."""
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"]}
        for part in content
    ]


def items_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A chat's message as items."""
    if message["role"] == "tool":
        output = parts_of(message["content"])
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": output}]
    items: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"type": "reasoning", "summary": [], "content": content})
    items.append({"role": message["role"], "content": parts_of(message["content"])})
    calls = message.get("tool_calls", ())
    items += [{"type": "function_call", "call_id": c["id"], **c["function"]} for c in calls]
    return items


def response_body(chat: dict[str, Any]) -> dict[str, Any]:
    """A chat's body in the form of Responses."""
    same = ("rid", "tool_choice", "parallel_tool_calls", "thinking")
    body = {name: chat[name] for name in same if name in chat}
    body["max_output_tokens"] = chat["max_tokens"]
    body["input"] = [item for message in chat["messages"] for item in items_of(message)]
    if "tools" in chat:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in chat["tools"]]
    if "reasoning_effort" in chat:
        body["reasoning"] = {"effort": chat["reasoning_effort"]}
    return body


@pytest.mark.parametrize("seed", seeds(3))
async def test_the_same_conversation_is_the_same_request(seed: int) -> None:
    rng, client = random.Random(seed), SeeingClient()
    async with in_process(client, media=replace(RULES, limit=64), **THINKS) as http:
        for _ in range(40):
            _, chat = bodies(rng)
            if "continue_final_message" in chat:
                continue
            client.requests.clear()
            body = response_body(chat)
            for route, given in ((CHAT_ROUTE, chat), (ROUTE, body)):
                response = await http.post(route, json=given)
                assert response.status_code == 200, (body, response.text)
            one, other = client.requests
            assert one.messages == other.messages and one.tools == other.tools, body
