"""The status of a stream comes with its first event."""

import asyncio
from typing import Any

import pytest

from srt.wire.errors import OVERLOADED, RequestError
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": "a"}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
]
GAVE_WAY = RequestError("others", code=OVERLOADED, retryable=True, retry_after_s=7.2)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_who_gives_way_before_its_first_event_gets_a_429(
    path: str, body: dict[str, Any]
) -> None:
    client = FakeClient(("whole",))
    client.error = GAVE_WAY
    async with in_process(client) as http:
        answer = await http.post(path, json={**body, "stream": True})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "8")
    assert error_of(answer)["code"] == OVERLOADED
    assert all(generation.closed for generation in client.generations)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_later_it_is_an_error_event(path: str, body: dict[str, Any]) -> None:
    client = FakeClient()
    client.error = GAVE_WAY
    async with in_process(client) as http:
        answer = await http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200
    assert '"code":"overloaded"' in answer.text and answer.text.endswith("data: [DONE]\n\n")


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
