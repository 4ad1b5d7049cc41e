"""Priorities and service tiers over HTTP: on all routes that make a request, with each peer's
meaning, and in what answers say of them."""

import json
from typing import Any

import pytest

from srt.client.generation import Request
from srt.client.http.client import HttpClient
from srt.client.request_fields import checked_request
from srt.client.ring.generation import RingSamples
from srt.wire.errors import RequestError
from srt.wire.hints import MAX_PRIORITY, MIN_PRIORITY, check_priority, class_of
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served

OPENAI: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
}
ROUTES = {"/generate": {"text": "a"}, **OPENAI}


@pytest.mark.parametrize("route", ROUTES)
async def test_they_reach_the_ring(route: str) -> None:
    """Greater is first on /generate as on the ring, smaller on the others."""
    client, sign = FakeClient(), 1 if route == "/generate" else -1
    async with in_process(client) as http:
        for fields in (
            {},
            {"priority": None, "service_tier": None},
            {"priority": 3, "service_tier": "flex"},
            {"priority": -7},
            {"priority": MIN_PRIORITY},
            {"priority": MAX_PRIORITY, "service_tier": "auto"},
        ):
            response = await http.post(route, json=ROUTES[route] | fields)
            assert response.status_code == 200, response.text
            assert "x-ignored-fields" not in response.headers
    seen = [(request.priority, request.service_tier) for request in client.requests]
    lowest = MIN_PRIORITY if sign == 1 else MAX_PRIORITY
    assert seen == [
        (0, ""),
        (0, ""),
        (sign * 3, "flex"),
        (sign * -7, ""),
        (lowest, ""),
        (sign * MAX_PRIORITY, "auto"),
    ]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("priority", value) for value in (1.5, "high", True, 2**31, -(2**31) - 1)),
        *(("service_tier", value) for value in ("fastest", "", 3)),
    ],
)
async def test_what_is_neither_is_refused(route: str, field: str, value: Any) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post(route, json=ROUTES[route] | {field: value})
    assert (response.status_code, error_of(response)["param"]) == (400, field)
    assert not client.requests


@pytest.mark.parametrize("route", OPENAI)
async def test_the_answer_says_which_tier_was_used(route: str) -> None:
    async with in_process(FakeClient()) as http:
        for fields, used in (
            ({"priority": 5}, None),
            ({"service_tier": "flex"}, "flex"),
            ({"service_tier": "priority", "priority": 5}, "priority"),
            ({"service_tier": "default"}, "default"),
            ({"service_tier": "auto"}, "default"),
            ({"service_tier": "fast"}, "priority"),
            ({"service_tier": "scale", "priority": 5}, "default"),
            ({"service_tier": "auto", "priority": 5}, "flex"),
        ):
            body = ROUTES[route] | fields
            answer = (await http.post(route, json=body)).json()
            assert answer.get("service_tier") == used
            stream = (await http.post(route, json=body | {"stream": True})).text
            lines = [line.removeprefix("data: ") for line in stream.splitlines()]
            sent = [json.loads(line) for line in lines if line.startswith("{")]
            if route == "/v1/responses":
                sent = [event["response"] for event in sent if "response" in event]
            assert sent and {event.get("service_tier") for event in sent} == {used}


async def test_both_clients_send_them() -> None:
    fake = FakeClient()
    given = {"text": "a", "priority": -2, "service_tier": "priority"}
    async with served(fake) as server, HttpClient(server.url) as client:
        request = checked_request(given)
        await (await client.submit(request)).result()
        await (await client.submit(Request(text="a"))).result()
    seen = [(request.priority, request.service_tier) for request in fake.requests]
    assert seen == [(-2, "priority"), (0, "")]
    samples = RingSamples("r", "7", request, lambda _: None, None)  # type: ignore[arg-type]
    message = samples.message(3)
    assert (message.priority, message.service_tier) == (-2, "priority")
    for field, value in (("priority", 1.5), ("service_tier", "scale")):
        with pytest.raises(RequestError, match=field):
            checked_request({"text": "a", field: value})


def test_the_front_checks_what_the_ring_can_carry() -> None:
    check_priority("auto", MIN_PRIORITY)
    check_priority("", MAX_PRIORITY)
    with pytest.raises(RequestError, match=r"service_tier must be one of auto, .* is scale"):
        check_priority("scale", 0)
    with pytest.raises(RequestError, match=r"priority must be between .* is 2147483648"):
        check_priority("", 2**31)


def test_a_priority_alone_chooses_the_class() -> None:
    assert [class_of("", n) for n in (-9, 0, 1)] == ["flex", "default", "priority"]
    assert [class_of("auto", n) for n in (-9, 0, 1)] == ["flex", "default", "priority"]
    assert [class_of("default", n) for n in (-9, 0, 1)] == ["default"] * 3
    assert class_of("flex", 9) == "flex"
