"""The status of a stream comes with its first event."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from srt.client.generation import GenerateOutput
from srt.gateway.responses.answers import response_events
from srt.wire.errors import OVERLOADED, RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.setup import in_process

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": "a"}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
]
NAMED_ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": "a"}),
    ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}]}),
]


def status_of(path: str) -> int:
    """That of a server at its limit."""
    return 529 if path == "/v1/messages" else 429


GAVE_WAY = RequestError("others", code=OVERLOADED, retryable=True, retry_after_s=7.2)


@pytest.mark.parametrize(("path", "body"), [*ROUTES, *NAMED_ROUTES])
async def test_who_gives_way_before_its_first_event_gets_a_429(
    path: str, body: dict[str, Any]
) -> None:
    client = FakeClient(("whole",))
    client.error = GAVE_WAY
    async with in_process(client) as http:
        answer = await http.post(path, json={**body, "stream": True})
    assert (answer.status_code, answer.headers["retry-after"]) == (status_of(path), "8")
    assert answer.json()["error"]["message"] == "others"
    assert all(generation.closed for generation in client.generations)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_later_it_is_an_error_event(path: str, body: dict[str, Any]) -> None:
    client = FakeClient()
    client.error = GAVE_WAY
    async with in_process(client) as http:
        answer = await http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert '"code":"overloaded"' in answer.text and answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("path", "body"), NAMED_ROUTES)
async def test_later_it_is_the_last_of_named_events(path: str, body: dict[str, Any]) -> None:
    client = FakeClient()
    client.error = GAVE_WAY
    async with in_process(client) as http:
        answer = await http.post(path, json={**body, "stream": True})
    first, *_, last = answer.text.strip().split("\n\n")
    assert answer.status_code == 200
    assert first.startswith(("event: response.created", "event: message_start"))
    assert last.startswith(("event: response.failed", "event: error")) and "others" in last


async def test_a_response_begins_without_a_token_if_that_takes_long() -> None:
    class Silent:
        async def snapshots(self) -> AsyncGenerator[tuple[int, GenerateOutput], None]:
            await asyncio.sleep(0.01)
            raise GAVE_WAY
            yield

    class Writer:
        def begin(self) -> list[str]:
            return ["begun"]

        def failed(self, error: Exception) -> str:
            return str(error)

    def events(begin_s: float) -> AsyncGenerator[Any, None]:
        batch, writer = cast(Any, Silent()), cast(Any, Writer())
        return response_events(batch, writer, lambda _: None, begin_s)

    assert [event async for event in events(0.001)] == ["begun", "others"]
    with pytest.raises(RequestError, match="others"):
        await anext(events(60.0))


@pytest.mark.parametrize(("path", "body"), [*ROUTES, *NAMED_ROUTES])
async def test_who_was_refused_for_load_just_now_is_refused_unread(
    path: str, body: dict[str, Any]
) -> None:
    client = FakeClient()
    client.refusals[0] = GAVE_WAY
    async with in_process(client) as http:
        first = await http.post(path, json=body)
        unread = await http.post(path, content=b"{" * 1000)
    assert first.status_code == unread.status_code == status_of(path)
    assert first.headers["retry-after"] == unread.headers["retry-after"] == "8"
    assert first.json()["error"]["message"] == unread.json()["error"]["message"] == "others"
    assert len(client.requests) == 1


async def test_nothing_is_sent_before_the_first_event() -> None:
    client = FakeClient(("whole",))
    client.hold.clear()
    async with in_process(client) as http:
        body = {"text": "a", "stream": True}
        post = asyncio.ensure_future(http.post("/generate", json=body))
        await client.wait_submitted(1)
        await asyncio.sleep(0)
        assert not post.done()
        client.hold.set()
        assert (await post).status_code == 200
