"""Pictures in /v1/responses: inputs, tools' results, stored responses, errors."""

import asyncio
from typing import Any

import httpx2
import openai
import pytest

from srt.client.media import MediaFile
from srt.gateway.media import load
from srt.gateway.stored_responses import StoredResponses
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall
from tests.srt.gateway.media.setup import CAT, DOG, RULES, SeeingClient, data_url
from tests.srt.gateway.setup import error_of, in_process, served

ROUTE = "/v1/responses"


def image(url: str | None = None, **options: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url or data_url(CAT), **options}


def said(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


async def post(body: Any, client: SeeingClient, **info: Any) -> Any:
    async with in_process(client, media=RULES, **info) as http:
        return await http.post(ROUTE, json=body)


async def test_messages_and_results_of_tools() -> None:
    client = SeeingClient()
    items = [
        user(said("a"), image(detail="low"), said("b")),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [image(data_url(DOG), file_id=None, detail=None), said("d")],
        },
    ]
    response = await post({"input": items, "instructions": "look"}, client)
    assert response.status_code == 200, response.text
    (request,) = client.requests
    assert request.messages == [
        ChatMessage("system", "look"),
        ChatMessage("user", "", parts=["a", 0, "b"]),
        ChatMessage("assistant", "", tool_calls=[ToolCall("c", "f", "{}")]),
        ChatMessage("tool", "", tool_call_id="c", name="f", parts=[1, "d"]),
    ]
    assert request.media == (MediaFile("image", (CAT,), "low"), MediaFile("image", (DOG,)))
    details = response.json()["usage"]["input_tokens_details"]
    assert details == {"cached_tokens": 3, "image_tokens": 14}


async def test_the_openai_client() -> None:
    client = SeeingClient()
    async with (
        served(client, media=RULES) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as api,
    ):
        answer = await api.responses.create(
            model="tiny",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is this?"},
                        {"type": "input_image", "image_url": data_url(CAT), "detail": "auto"},
                    ],
                }
            ],
        )
    assert answer.output_text == "Hello, wörld"
    assert client.requests[0].media == (MediaFile("image", (CAT,)),)


@pytest.mark.parametrize(
    ("items", "param", "reason"),
    [
        ([user(image("http://evil.test/"))], "input[0].content[0].image_url", "--media-domain"),
        ([user(said("a"), image("data:;base64,AA"))], "input[0].content[1].image_url", "base64"),
        (
            [user(said("a")), user(image(), image(), image(), image())],
            "input[1].content[3].image_url",
            "--limit-media",
        ),
        (
            [user({"type": "input_image", "file_id": "file-1"})],
            "input[0].content[0].file_id",
            "is not supported",
        ),
        ([user({"type": "input_image"})], "input[0].content[0].image_url", "missing field"),
        ([user({"type": "input_file"})], "input[0].content[0].type", "is not supported"),
        ([user({"type": "video_url"})], "input[0].content[0].type", "is not supported"),
        (
            [{"role": "system", "content": [image()]}],
            "input[0].content[0].image_url",
            "show no pictures here",
        ),
        (
            [{"role": "assistant", "content": [image()]}],
            "input[0].content[0].type",
            "is not supported",
        ),
        (
            [
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [image("x")]},
            ],
            "input[1].output[0].image_url",
            "must be a data: URL",
        ),
    ],
)
async def test_errors_name_the_field(items: Any, param: str, reason: str) -> None:
    client = SeeingClient()
    error = error_of(await post({"input": items}, client))
    assert (error["param"], client.requests) == (param, [])
    assert reason in error["message"] and len(error["message"]) < 300


async def test_what_the_ring_says() -> None:
    client = SeeingClient()
    client.refusals[0] = RequestError(": no picture", at="media[1]")
    error = error_of(await post({"input": [user(image(), said("a"), image())]}, client))
    assert error["message"] == "input[0].content[2].image_url: no picture"


async def test_a_stored_response_keeps_its_pictures() -> None:
    client = SeeingClient()
    async with in_process(client, media=RULES, response_store_bytes=2**20) as http:
        first = (await http.post(ROUTE, json={"input": [user(image(detail="high"))]})).json()
        second = await http.post(
            ROUTE,
            json={
                "input": [user(said("and"), image(data_url(DOG)))],
                "previous_response_id": first["id"],
                "stream": True,
            },
        )
        third = {"previous_response_id": "resp_r1", "input": "well?"}
        assert (await http.post(ROUTE, json=third)).status_code == 200
        stored = await http.get(f"{ROUTE}/resp_r1")
        client.refusals[3] = RequestError(": no picture", at="media[0]")
        error = error_of(await http.post(ROUTE, json=third))
    assert second.status_code == 200 and first["store"] is True
    pictures = (MediaFile("image", (CAT,), "high"), MediaFile("image", (DOG,)))
    assert [request.media for request in client.requests] == [
        pictures[:1],
        pictures,
        pictures,
        pictures,
    ]
    assert client.requests[2].messages == [
        ChatMessage("user", "", parts=[0]),
        ChatMessage("assistant", "Hello, wörld"),
        ChatMessage("user", "", parts=["and", 1]),
        ChatMessage("assistant", "Hello, wörld"),
        ChatMessage("user", "well?"),
    ]
    assert b"base64" not in stored.content
    assert error["message"] == "previous_response_id: no picture"


async def test_pictures_that_do_not_fit_are_not_kept() -> None:
    """The answer says so."""
    client = SeeingClient()
    large = image(data_url(b"a" * 6000))
    async with in_process(client, media=RULES, response_store_bytes=10_000) as http:
        answer = (await http.post(ROUTE, json={"input": [user(large)]})).json()
        assert answer["store"] is False
        body = {"input": "a", "previous_response_id": answer["id"]}
        assert error_of(await http.post(ROUTE, json=body))["param"] == "previous_response_id"
        answer = (await http.post(ROUTE, json={"input": [user(image())]})).json()
        assert answer["store"] is True
        body["previous_response_id"] = answer["id"]
        assert (await http.post(ROUTE, json=body)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_pictures_that_are_kept_take_room_until_then(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are not kept only until the ring has them."""
    monkeypatch.setattr(load, "MAX_CALLER_BYTES", 20_000)
    client = SeeingClient()
    client.hold.clear()
    large = {"input": [user(image(data_url(b"a" * 6000)))], "stream": stream}
    async with (
        served(client, media=RULES, response_store_bytes=20_000) as server,
        httpx2.AsyncClient(base_url=server.url) as http,
    ):
        waiting = []
        for count, body in enumerate([{**large, "store": False}, large], 1):
            waiting.append(asyncio.ensure_future(http.post(ROUTE, json=body)))
            await client.wait_submitted(count)
        refused = await http.post(ROUTE, json=large)
        assert refused.status_code == 429, refused.text
        client.hold.set()
        assert [(await each).status_code for each in waiting] == [200, 200]
        assert (await http.post(ROUTE, json=large)).status_code == 200


async def test_pictures_count_in_the_store() -> None:
    """What was used least recently makes room for them."""
    client = SeeingClient()
    async with in_process(client, media=RULES, response_store_bytes=100_000) as http:
        names = []
        for byte in (b"a", b"b", b"c"):
            body = {"input": [user(image(data_url(byte * 40_000)))]}
            names.append((await http.post(ROUTE, json=body)).json()["id"])
        found = [(await http.get(f"{ROUTE}/{name}")).status_code for name in names]
    assert found == [404, 200, 200]


def test_half_of_the_store_is_for_pictures() -> None:
    store = StoredResponses(100_000)
    assert store.takes([(b"a" * 25_000, b"b" * 25_000)])
    assert not store.takes([(b"a" * 25_000,), (b"b" * 25_001,)])
    assert not StoredResponses(0).takes([])
