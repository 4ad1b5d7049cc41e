"""Requests of clients that were written for other servers: each field that the tables know does
what its class says, and what they do not know is named or refused, never ignored in silence."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest

from srt.client.generation import Request
from srt.gateway.http.ignored import IGNORED_HEADER, MAX_LOGGED, MAX_NAME_CHARS, MAX_NAMES
from srt.gateway.wire.fields import (
    CHAT,
    COMPLETION,
    RESPONSES,
    Foreign,
    Hint,
    Kind,
    Members,
    Refused,
    Renamed,
)
from srt.gateway.wire.kinds.near import nearest, rules_answers
from srt.gateway.wire.kinds.reading import MAX_IGNORED
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, sse_payloads

MESSAGES = [{"role": "user", "content": "hi"}]


class Route(NamedTuple):
    path: str
    body: dict[str, Any]
    kind: Kind


ROUTES = {
    "chats": Route("/v1/chat/completions", {"messages": MESSAGES}, CHAT),
    "completions": Route("/v1/completions", {"prompt": "a"}, COMPLETION),
    "responses": Route("/v1/responses", {"input": "a"}, RESPONSES),
}
CHATS = ROUTES["chats"]
# A value for each of our fields that has other names.
VALUES: dict[str, Any] = {
    "max_tokens": 5,
    "max_output_tokens": 5,
    "min_tokens": 1,
    "seed": 3,
    "stop": ["x"],
    "repetition_penalty": 1.5,
    "ebnf": 'root ::= "a"',
    "json_schema": {"type": "object"},
    "enable_thinking": False,
    "include_reasoning": False,
    "reasoning": {"effort": "none"},
}


async def answered(
    fields: dict[str, Any], route: Route = CHATS, **info: Any
) -> tuple[httpx2.Response, Request | None]:
    """The answer to a request with these fields, and what the ring was asked."""
    client = FakeClient()
    async with in_process(client, **info) as http:
        response = await http.post(route.path, json=route.body | fields)
    asked = client.requests[0] if client.requests else None
    return response, asked and msgspec.structs.replace(asked, rid=None, tenant="")


def named(response: httpx2.Response) -> list[str]:
    header = response.headers.get(IGNORED_HEADER, "")
    return header.split(", ") if header else []


def known() -> list[Any]:
    return [
        pytest.param(name, field, id=f"{name}-{field}")
        for name, route in ROUTES.items()
        for field in route.kind.others
    ]


@pytest.mark.parametrize(("name", "field"), known())
async def test_a_field_of_another_server_does_what_its_class_says(name: str, field: str) -> None:
    route = ROUTES[name]
    treatment: Foreign = route.kind.others[field]
    if isinstance(treatment, Renamed):
        _, expected = await answered({treatment.to: VALUES[treatment.to]}, route)
        assert expected is not None
        for mode in ("warn", "refuse"):
            given = {field: VALUES[treatment.to]}
            response, asked = await answered(given, route, unknown_fields=mode)
            assert (asked, named(response)) == (expected, []), response.text
        for theirs, ours in treatment.meant:
            response, asked = await answered({field: theirs}, route)
            own = {treatment.to: -1 if ours is None else ours}  # null is the default
            assert asked == (await answered(own, route))[1], response.text
    elif isinstance(treatment, Refused):
        response, asked = await answered({field: 1}, route)
        error = error_of(response)
        assert (response.status_code, error["param"], asked) == (400, field, None)
        assert treatment.instead in error["message"]
        for value in treatment.neutral:
            response, asked = await answered({field: value}, route)
            assert (asked, named(response)) == ((await answered({}, route))[1], [])
    elif isinstance(treatment, Hint):
        _, plain = await answered({}, route)
        for value, ignored in [("x", [field]), *((value, []) for value in treatment.neutral)]:
            response, asked = await answered({field: value}, route)
            assert (asked, named(response)) == (plain, ignored), response.text
        response, _ = await answered({field: "x"}, route, unknown_fields="refuse")
        assert (response.status_code, error_of(response)["param"]) == (400, field)
    else:
        assert isinstance(treatment, Members)
        response, asked = await answered({field: {"stop_words": "x", "mode": 1}}, route)
        assert (asked, named(response)) == (
            (await answered({"stop": "x"}, route))[1],
            [f"{field}.mode"],
        )


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
def test_a_field_of_another_server_is_none_of_ours(route: Route) -> None:
    ours = {*route.kind.honoured, *route.kind.fields}
    assert not ours & set(route.kind.others)
    renamed = [field for field in route.kind.others.values() if isinstance(field, Renamed)]
    assert {field.to for field in renamed} <= route.kind.honoured


OPTIONS = {"num_ctx": 4096, "num_predict": 7, "top_k": 0, "stop": ["x"], "no_such": 1, "seed": None}
MESSAGE = {
    "role": "assistant",
    "content": "b",
    "id": "m1",
    "metadata": {},
    "reasoning": "c",
    "provider_specific_fields": {},
}


def tool(name: str, x: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "x": x}}


CALL = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
CALLING = {
    "role": "assistant",
    "parsed": None,
    "tool_calls": [{"id": "c", "type": "function", "function": CALL}],
}
PARTS = [{"type": "text", "text": "a", "format": 1, "prefix": False}]
# What clients of others send to chats, by what becomes of it: the names in the header, or a 400.
REQUESTS: list[tuple[dict[str, Any], list[str] | str]] = [
    ({"options": OPTIONS}, ["options.num_ctx", "options.no_such"]),
    ({"options": {"temperture": 1}}, "options.temperture"),
    ({"options": {"repeat_penalty": 9}}, "options.repeat_penalty"),
    ({"options": {"options": {"num_predict": 0.5}}}, "options.options.num_predict"),
    ({"options": {"options": {"best_of": 2}}}, "options.options.best_of"),
    ({"client_args": {"a": [], "n_predict": 5}}, "client_args.n_predict"),
    ({"client_args": {"max_tokens": None, "stop": []}}, ["client_args"]),
    ({"trace": {"tool": "x", "timeout": 5, "temperature": 1}}, ["trace"]),
    ({"custom_token_bans": "", "ban_eos_token": False}, ["custom_token_bans", "ban_eos_token"]),
    ({"custom_token_bans": "x"}, "custom_token_bans"),
    ({"allow_newlines": False}, "allow_newlines"),
    ({"providers": [], "stored": True, "mode": "chat"}, ["providers", "stored", "mode"]),
    ({"responseSchema": {"type": "object"}}, "responseSchema"),
    ({"": 1}, ["%22%22"]),
    ({"options": {"grammar": ""}, "grammar": 'root ::= "a"'}, "grammar"),
    ({"options": []}, "options"),
    ({"reasoning": {"effort": "low"}}, []),
    ({"reasoning": {"max_tokens": 5, "exclude": True}}, ["reasoning.max_tokens"]),
    ({"include_reasoning": False, "enable_thinking": True}, []),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ["thinking.budget_tokens"]),
    ({"thinking": "yes"}, "thinking"),
    ({"provider": {"sort": "price"}, "cache_prompt": True}, ["provider"]),
    ({"repeat_penalty": 1.1, "num_ctx": 5}, ["num_ctx"]),
    ({"repeat_penalty": "x"}, "repeat_penalty"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
    ({"max_tokens": 5, "num_predict": 5}, []),
    ({"service_tier": "flex", "metadata": {"a": "b"}}, []),
    (
        {"messages": [*MESSAGES, MESSAGE, {**MESSAGE, "who": 1}, *MESSAGES]},
        [f"messages[].{name}" for name in ("id", "metadata", "provider_specific_fields", "who")],
    ),
    (
        {"messages": [*MESSAGES, CALLING, {"role": "tool", "tool_call_id": "c", "content": PARTS}]},
        ["messages[].tool_calls[].function.parsed_arguments", "messages[].content[].format"],
    ),
    ({"messages": [{**MESSAGE, "prefix": True}]}, "messages[0].prefix"),
    ({"messages": [{**MESSAGES[0], "more": {"tool_calls": []}}]}, ["messages[].more"]),
    ({"tools": [tool("f", {}), tool("g", {"strict": True})]}, "tools[1].function.x.strict"),
    ({"stream": True, "stream_options": {"usage": True}}, ["stream_options.usage"]),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, ["tools[].function.x"]),
    ({"response_format": {"type": "json_object", "shema": {}}}, "response_format.shema"),
    ({"temprature": 1}, "temprature"),
    ({"maxTokens": 1}, "maxTokens"),
    ({"guided_lark": "x"}, "guided_lark"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ({"max_length": 5}, "max_length"),
    ({"prompt": "x"}, "prompt"),
    ({"top_r": 1, "nothing": None}, ["top_r"]),
    ({"model": "gpt-4o-mini"}, ["model"]),
]


@pytest.mark.parametrize(("fields", "ignored"), REQUESTS)
async def test_a_request_is_answered_or_names_what_is_wrong(
    fields: dict[str, Any], ignored: list[str] | str
) -> None:
    response, _ = await answered(fields)
    if isinstance(ignored, str):
        assert response.status_code == 400, response.text
        assert error_of(response)["param"] == ignored
    else:
        assert (response.status_code, named(response)) == (200, ignored), response.text


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"top_k": 0}, {"top_k": -1}),
        ({"seed": -1}, {}),
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"options": OPTIONS}, {"max_tokens": 7, "top_k": -1, "stop": ["x"]}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "array"}}},
            {"json_schema": {"type": "array"}},
        ),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "auto"}, "reasoning": {"enabled": True}}, {"enable_thinking": True}),
    ],
)
async def test_values_mean_what_they_mean_elsewhere(
    theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    template = "{{ enable_thinking }} {{ reasoning_effort }}"
    _, asked = await answered(dict(theirs), template=template)
    _, expected = await answered(dict(ours), template=template)
    assert asked is not None and expected is not None
    given = asked.chat.template_args.replace('"reasoning_effort":"none",', "")
    assert asked.sampling == expected.sampling
    assert given == expected.chat.template_args.replace('"reasoning_effort":"none",', "")


async def test_completions_have_all_the_room_without_a_limit() -> None:
    _, asked = await answered({"max_tokens": -1}, ROUTES["completions"])
    assert asked is not None and asked.sampling.max_new_tokens is None


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
async def test_each_route_takes_a_prediction(route: Route) -> None:
    parts = [{"type": "text", "text": text, "id": 1} for text in "ab"]
    response, asked = await answered({"prediction": {"type": "content", "content": parts}}, route)
    assert asked is not None and asked.prediction == "ab"
    assert named(response) == ["prediction.content[].id"]


async def test_several_prompts_have_no_prediction() -> None:
    """Or each would have all of a long one."""
    prediction = {"type": "content", "content": "b"}
    for path, fields in (
        ("/generate", {"text": ["a", "a"], "prediction": "b"}),
        ("/v1/completions", {"prompt": ["a", "a"], "prediction": prediction}),
    ):
        response, _ = await answered(fields, Route(path, {}, COMPLETION))
        assert (response.status_code, error_of(response)["param"]) == (400, "prediction")


async def test_a_field_of_another_route_is_refused_with_its_name() -> None:
    for route, name, other in (
        (ROUTES["responses"], "stop", "/v1/chat/completions"),
        (CHATS, "best_of", "/v1/completions"),
        (CHATS, "sampling_params", "/generate"),
    ):
        response, _ = await answered({name: 1}, route)
        assert (response.status_code, error_of(response)["param"]) == (400, name)
        assert error_of(response)["message"].endswith(f"{other} has it")


async def test_any_tool_is_a_required_one() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    named_one = {"type": "function", "function": {"name": "f"}, "mode": None}
    assert (await answered(tools | {"tool_choice": named_one}))[0].status_code == 200
    _, asked = await answered(tools | {"tool_choice": "any"})
    assert asked == (await answered(tools | {"tool_choice": "required"}))[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_left_out_if_it_is_not_wanted(stream: bool) -> None:
    client = FakeClient(("<think>", "because", "</think>", "yes"))
    for fields in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        async with in_process(client, reasoning=True) as http:
            body = CHATS.body | fields | {"stream": stream}
            response = await http.post(CHATS.path, json=body)
        assert "because" not in response.text and "think" not in response.text
        if stream:
            deltas = [chunk["choices"][0]["delta"] for chunk in sse_payloads(response.text)]
            assert "".join(delta.get("content", "") for delta in deltas) == "yes"
        else:
            assert response.json()["choices"][0]["message"]["content"] == "yes"


async def test_native_routes_refuse_what_they_do_not_know() -> None:
    async with in_process(FakeClient()) as http:
        for body, param in (
            ({"text": "a", "num_ctx": 5}, "num_ctx"),
            (
                {"text": "a", "sampling_params": {"repeat_penalty": 1}},
                "sampling_params.repeat_penalty",
            ),
            ({"messages": [{**MESSAGES[0], "id": "m"}]}, "messages[0].id"),
        ):
            response = await http.post("/generate", json=body)
            assert (response.status_code, error_of(response)["param"]) == (400, param)


async def test_refusing_is_as_strict_as_native_routes() -> None:
    for fields, param in (
        ({"nothing_known": 1}, "nothing_known"),
        ({"verbosity": "low", "provider": {}}, "provider"),
        ({"messages": [{**MESSAGES[0], "x": 1}]}, "messages[0].x"),
    ):
        response, _ = await answered(fields, unknown_fields="refuse")
        assert (response.status_code, error_of(response)["param"]) == (400, param)


async def test_names_are_bounded_and_escaped_and_have_no_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ["a\r\nset-cookie: b", "ü", "c, d", "e" * 5000, *(f"q{i}" for i in range(40))]
    with caplog.at_level(logging.WARNING):
        response, _ = await answered(dict.fromkeys(names, "secret"))
    header = response.headers[IGNORED_HEADER]
    assert response.status_code == 200 and "set-cookie" not in response.headers
    shown = header.split(", ")
    assert shown[:4] == ["a%0D%0Aset-cookie%3A%20b", "%C3%BC", "c%2C%20d", "e" * MAX_NAME_CHARS]
    assert len(shown) == MAX_NAMES and "secret" not in header + caplog.text
    told = [record.getMessage().split()[4].removesuffix(",") for record in caplog.records]
    assert told == shown


async def test_there_is_an_end_to_unknown_names(caplog: pytest.LogCaptureFixture) -> None:
    many = {f"q{i}": 1 for i in range(MAX_IGNORED + 1)}
    response, asked = await answered(many)
    assert response.status_code == 400 and asked is None
    messages = [{**MESSAGES[0], f"q{i}": 1} for i in range(MAX_IGNORED + 1)]
    assert (await answered({"messages": messages}))[0].status_code == 400
    client = FakeClient()
    with caplog.at_level(logging.WARNING):
        async with in_process(client) as http:
            for i in range(MAX_LOGGED + 50):
                await http.post(CHATS.path, json=CHATS.body | {f"q{i}": 1, "q": 2})
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == MAX_LOGGED and "nothing is logged" in told[-1]


async def test_one_model_is_meant_whatever_it_is_called() -> None:
    async with in_process(FakeClient()) as http:
        for path, body in (
            *((route.path, route.body) for route in ROUTES.values()),
            ("/tokenize", {"prompt": "a"}),
            ("/detokenize", {"tokens": [5]}),
        ):
            response = await http.post(path, json=body | {"model": "gpt-4o"})
            assert (response.status_code, named(response)) == (200, ["model"]), response.text
            assert response.json().get("model", "tiny") == "tiny"
        assert (await http.get("/v1/models/gpt-4o")).status_code == 404
    async with in_process(FakeClient(), strict_model=True) as http:
        for route in ROUTES.values():
            response = await http.post(route.path, json=route.body | {"model": "gpt-4o"})
            assert (response.status_code, error_of(response)["param"]) == (404, "model")
            response = await http.post(route.path, json=route.body | {"model": "tiny"})
            assert (response.status_code, named(response)) == (200, [])


async def test_either_header_has_the_key() -> None:
    async with in_process(FakeClient(), api_keys=("sesame",)) as http:
        for headers, status in (
            ({"x-api-key": "sesame"}, 200),
            ({"authorization": "Bearer sesame", "x-api-key": "other"}, 200),
            ({"authorization": "Bearer other", "x-api-key": "sesame"}, 401),
            ({"authorization": "Bearer ", "x-api-key": "sesame"}, 200),
            ({"x-api-key": "other"}, 401),
            ({}, 401),
        ):
            response = await http.get("/v1/models", headers=headers)
            assert response.status_code == status, headers
            assert ("www-authenticate" in response.headers) == (status == 401)
            assert response.headers.get("www-authenticate", "Bearer") == "Bearer"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("temprature", "temperature"),
        ("tempreature", "temperature"),
        ("temperatures", "temperature"),
        ("temqerature", "temperature"),
        ("max-tokens", "max_tokens"),
        ("topP", "top_p"),
        ("top_q", None),
        ("seeds", None),
        ("tmprature", None),
        ("", None),
        ("_", None),
        ("temperature" * 10, None),
    ],
)
def test_a_near_miss_differs_in_one_letter(name: str, found: str | None) -> None:
    assert nearest(name, ("temperature", "max_tokens", "top_p", "seed", "n")) == found


def test_names_that_rule_the_answer() -> None:
    rules = "max_words stopTokens JSONSchema guided_lark output_format banned_words my-regex"
    assert all(rules_answers(name) for name in rules.split())
    assert not any(rules_answers(name) for name in ("user_id", "minute", "badge", "stopwatch"))
