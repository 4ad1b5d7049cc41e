"""Hints of requests over HTTP: taken on all routes that make one, bounded, and the same with every
client."""

from typing import Any

import pytest

from srt.client.generation import Request
from srt.client.http.client import HttpClient
from srt.client.request_fields import checked_request
from srt.client.ring.generation import RingSamples
from srt.wire.errors import RequestError
from srt.wire.hints import SERVER_SET, Hints
from srt.wire.messages import decoder, encode
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served

GIVEN: dict[str, Any] = {
    "app": "a1",
    "perf": "throughput",
    "group": "maps",
    "group_size": 4,
    "depth": 1,
    "deadline_ms": 5000,
}
ROUTES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "a"},
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}


@pytest.mark.parametrize("route", ROUTES)
async def test_hints_reach_the_ring(route: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        for given in (GIVEN, {}, None):
            response = await http.post(route, json=ROUTES[route] | {"hints": given})
            assert response.status_code == 200
            assert "x-ignored-fields" not in response.headers
    assert [request.hints for request in client.requests] == [Hints(**GIVEN), Hints(), None]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("perf", "fast"),
        ("perf", "ttft"),
        ("deadline_ms", -1),
        ("group_size", -1),
        ("depth", 2**20),
        ("tpot_ms", -1),
        ("tpot_ms", 60_001),
        ("app", "a" * 257),
        *((name, 1) for name in SERVER_SET),
    ],
)
async def test_bad_hints_are_refused(route: str, field: str, value: Any) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post(route, json=ROUTES[route] | {"hints": {field: value}})
    assert response.status_code == 400, response.text
    assert "hints" in error_of(response)["message"]
    assert not client.requests


async def test_the_http_client_sends_them_and_none_that_the_server_sets() -> None:
    fake = FakeClient()
    async with served(fake) as server, HttpClient(server.url) as client:
        await (await client.submit(Request(text="a", hints=Hints(**GIVEN)))).result()
        with pytest.raises(RequestError, match=r"hints\.arrival_s must be unset over HTTP"):
            await client.submit(Request(text="a", hints=Hints(arrival_s=1.0)))
    assert [request.hints for request in fake.requests] == [Hints(**GIVEN)]


def test_the_ring_client_sends_them() -> None:
    request = checked_request({"text": "a", "hints": GIVEN})
    samples = RingSamples("r", "7", request, lambda _: None, None)  # type: ignore[arg-type]
    assert samples.message(3).hints == Hints(**GIVEN)
    with pytest.raises(RequestError, match=r"hints\.perf"):
        checked_request({"text": "a", "hints": {"perf": "fast"}})


def test_they_cost_nothing_where_there_are_none() -> None:
    plain = checked_request({"text": "a"})
    samples = RingSamples("r", "7", plain, lambda _: None, None)  # type: ignore[arg-type]
    message = samples.message(3)
    assert message.hints is None
    assert decoder(type(message)).decode(encode(message)) == message
