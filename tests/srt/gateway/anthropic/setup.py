"""What the tests of Anthropic's routes share: bodies, and ways to send them."""

from typing import Any

import httpx2

from tests.fakes import FakeClient
from tests.srt.gateway.setup import in_process

ROUTE = "/v1/messages"
HI = {"role": "user", "content": "hi"}
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "messages": [HI]}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tell it.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLED = ('<tool_call>\n{"name": "weather", ', '"arguments": {"city"', ': "Rome"}}\n</tool_call>')
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "18 degrees"}


async def send(fields: dict[str, Any], client: FakeClient | None = None, **info: Any) -> Any:
    """The HTTP response to a body with these fields."""
    headers = info.pop("headers", {})
    async with in_process(client or FakeClient(), **info) as http:
        return await http.post(ROUTE, json=BODY | fields, headers=headers)


async def answer(fields: dict[str, Any], client: FakeClient | None = None, **info: Any) -> Any:
    """The message that answers."""
    response = await send(fields, client, **info)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error of a response, after checking its shape."""
    body = response.json()
    assert body["type"] == "error" and {"type", "message"} <= set(body["error"])
    error: dict[str, Any] = body["error"]
    return error


def ignored(response: httpx2.Response) -> list[str]:
    """The names of the fields that were ignored."""
    names = response.headers.get("x-ignored-fields", "")
    return names.split(", ") if names else []
