"""The route /v1/responses: inputs, answers, events, and what it refuses."""

from typing import Any

import msgspec
import openai
import pytest

from srt.files.sampling_defaults import ModelSampling
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ChatOptions, Finish, ToolCall, ToolSpec
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served

ROUTE = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "description": "Tell it.", "strict": None}
CALL = ('<tool_call>\n{"name": "weather", ', '"arguments": {"a"', ": 1}}\n</tool_call>")


async def post(body: dict[str, Any], client: FakeClient, **info: Any) -> Any:
    async with in_process(client, **info) as http:
        response = await http.post(ROUTE, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_text() -> None:
    client = FakeClient()
    body = {"model": "tiny", "input": "hi", "instructions": "Be brief.", "metadata": {"k": "v"}}
    answer = await post(body, client)
    assert client.requests[0].messages == [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "hi"),
    ]
    assert client.requests[0].sampling.max_new_tokens is None
    (item,) = answer.pop("output")
    assert item.pop("id").startswith("msg_") and answer.pop("created_at") > 0
    part = {"type": "output_text", "text": "Hello, wörld", "annotations": [], "logprobs": []}
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    assert answer == {
        "id": "resp_r0",
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "max_output_tokens": None,
        "metadata": {"k": "v"},
        "model": "tiny",
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 2,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
    }


async def test_the_models_defaults_are_echoed() -> None:
    client, own = FakeClient(), ModelSampling("f", {"temperature": 0.6, "top_p": 0.9})
    answer = await post({"input": "hi", "top_p": 1, "temperature": None}, client, sampling=own)
    assert (answer["temperature"], answer["top_p"]) == (0.6, 1.0)
    sampling = client.requests[0].sampling
    assert (sampling.temperature, sampling.top_p) == (None, 1.0)


async def test_fields_reach_the_ring() -> None:
    client = FakeClient()
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    body = {
        "input": "hi",
        "max_output_tokens": 3,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 4,
        "text": {"format": form, "verbosity": "high"},
        "reasoning": {"effort": "low", "summary": None},
        "store": True,
        "user": "u",
        "truncation": "disabled",
        "cache_salt": "s",
        "rid": "mine",
    }
    answer = await post(body, client, template="reasoning_effort")
    (request,) = client.requests
    sampling = request.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p) == (3, 0.0, 0.5)
    assert (sampling.seed, sampling.json_schema) == (4, '{"x-closed":true,"type":"object"}')
    assert (request.cache_salt, request.rid, answer["id"]) == ("s", "mine", "mine")
    assert request.chat == ChatOptions('{"reasoning_effort":"low"}')
    assert answer["text"] == {"format": form, "verbosity": "high"} and answer["store"] is False


async def test_items_of_a_history() -> None:
    """Calls join the message before them, and reasoning the one after it."""
    client = FakeClient()
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'}
    items = [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "wait", "annotations": [], "logprobs": []}],
        },
        call | {"id": "fc_1", "status": "completed"},
        call | {"call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "18 degrees"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "cold"}],
        },
    ]
    await post({"input": items, "tools": [TOOL]}, client)
    calls = [ToolCall(i, "weather", '{"a":1}') for i in ("c1", "c2")]
    assert client.requests[0].messages == [
        ChatMessage("system", "x"),
        ChatMessage("user", "a"),
        ChatMessage("assistant", "wait", tool_calls=calls, reasoning="hm"),
        ChatMessage("tool", "18 degrees", tool_call_id="c1", name="weather"),
        ChatMessage("tool", "cold", tool_call_id="c2", name="weather"),
    ]
    assert client.requests[0].tools == [ToolSpec("weather", "Tell it.")]


async def test_what_an_answer_may_be_is_taken_back() -> None:
    """Cut in its arguments or its reasoning; and a tool that returned nothing."""
    client = FakeClient()
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "user", "content": "b"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": "b'},
        {"type": "function_call_output", "call_id": "c1", "output": None},
    ]
    await post({"input": items}, client)
    assert client.requests[0].messages == [
        ChatMessage("user", "a"),
        ChatMessage("assistant", "", reasoning="hm"),
        ChatMessage("user", "b"),
        ChatMessage("assistant", "", tool_calls=[ToolCall("c1", "f", '{"a": "b')]),
        ChatMessage("tool", "", tool_call_id="c1", name="f"),
    ]


@pytest.mark.parametrize("finish", ["length", "abort"])
async def test_how_an_answer_ends(finish: str) -> None:
    client = FakeClient(("a",))
    client.finish = Finish(finish)
    answer = await post({"input": "hi"}, client)
    assert answer["status"] == {"length": "incomplete", "abort": "cancelled"}[finish]
    reason = {"reason": "max_output_tokens"} if finish == "length" else None
    assert answer["incomplete_details"] == reason
    assert answer["output"][0]["status"] == "incomplete"


async def test_an_empty_answer_is_an_empty_message() -> None:
    answer = await post({"input": "hi"}, FakeClient(("",)))
    assert answer["output"][0]["content"][0]["text"] == ""


async def test_reasoning_and_calls() -> None:
    client = FakeClient(("<think>", "hm", "</think>", "so", *CALL))
    answer = await post({"input": "hi", "tools": [TOOL]}, client, reasoning=True)
    reasoning, message, call = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "so"
    assert call["call_id"].startswith("call_") and call["id"].startswith("fc_")
    assert (call["name"], call["arguments"]) == ("weather", '{"a": 1}')
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


async def test_the_openai_package_adds_a_stream_up() -> None:
    """The package itself checks the order of events; their names are the documented ones."""
    pieces = ("<think>", "hm", "</think>", "so ", "it ", "is", *CALL)
    asked: dict[str, Any] = {"model": "tiny", "input": "hi", "tools": [TOOL]}
    async with (
        served(FakeClient(pieces), reasoning=True) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x") as client,
    ):
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        async with client.responses.stream(**asked) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        whole = await client.responses.create(**asked)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done"]
    expected = ["created", "in_progress"]
    for inside in (
        [name.format("reasoning_text") for name in part],
        [name.format("output_text") for name in part],
        call,
    ):
        expected += ["output_item.added", *inside, "output_item.done"]
    names = [event.type.removeprefix("response.") for event in events]
    assert [a for a, b in zip(names, [*names[1:], ""], strict=True) if a != b] == [
        *expected,
        "completed",
    ]
    assert names.count("output_text.delta") == 3
    for response in (final, whole):
        assert response.output_text == "so it is" and response.status == "completed"
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert response.output[2].arguments == '{"a": 1}'  # type: ignore[union-attr]


async def test_a_failure_is_the_last_event() -> None:
    client = FakeClient()
    client.error = RequestError("lost", code="unavailable")
    body = {"input": "hi", "stream": True}
    async with in_process(client) as http:
        text = (await http.post(ROUTE, json=body)).text
    last = text.rstrip("\n").split("\n\n")[-1]
    assert last.startswith("event: response.failed\ndata: {")
    assert '"error":{"code":"unavailable","message":"lost"}' in last and "[DONE]" not in text


REGEX = {"type": "grammar", "syntax": "regex", "definition": "a+"}
FORMAT = "tools[0].format"


def custom(name: str = "patch", form: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "custom", "name": name, "format": form}


def space(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "namespace", "name": "s", "description": "Things.", "tools": tools}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": [*tools, {"type": "mcp", "x": 1}]}


ERRORS = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": "a", "output": "b"}]}, "input[0].output"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "a"}]},
        "input[0].call_id",
    ),
    ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
    ({"input": "a", "background": True}, "background"),
    ({"input": "a", "include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"input": "a", "include": ["x"]}, "include[0]"),
    ({"input": "a", "top_logprobs": 2}, "top_logprobs"),
    ({"input": "a", "max_output_tokens": -2}, "max_output_tokens"),
    ({"input": "a", "top_p": 2}, "top_p"),
    ({"input": "a", "reasoning": {"effort": 1}}, "reasoning.effort"),
    ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"input": "a", "text": {"format": {"type": "text", "schema": {}}}}, "text.format"),
    ({"input": "a", "tools": [{"type": "telepathy"}]}, "tools[0].type"),
    ({"input": "a", "tools": [{"type": "mcp"}, TOOL | {"name": "a b"}]}, "tools[1].name"),
    ({"input": [{"type": "mcp_call"}, {"role": "x", "content": "a"}]}, "input[1].role"),
    ({"input": "a", "tools": [custom(form={"type": "text", "syntax": "lark"})]}, FORMAT),
    ({"input": "a", "tools": [custom(form={"type": "grammar"})]}, f"{FORMAT}.syntax"),
    ({"input": "a", "tools": [custom(form=REGEX | {"definition": ""})]}, f"{FORMAT}.definition"),
    ({"input": "a", "tools": [custom(form=REGEX | {"syntax": "bnf"})]}, f"{FORMAT}.syntax"),
    ({"input": "a", "tools": [custom(), custom()]}, "tools[1].name"),
    ({"input": "a", "tools": [custom(name="a b")]}, "tools[0].name"),
    ({"input": "a", "tools": [space(TOOL | {"name": "a b"})]}, "tools[0].tools[0].name"),
    ({"input": "a", "tools": [space(TOOL), TOOL | {"name": "s__weather"}]}, "tools[1].name"),
    ({"input": "a", "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
    ({"input": "a", "tools": [custom()], "tool_choice": {"type": "custom"}}, "tool_choice.name"),
    ({"input": "a", "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode"),
    (
        {"input": "a", "tools": [TOOL], "tool_choice": allowed("auto", "clock")},
        "tool_choice.tools[0].name",
    ),
    ({"input": "a", "tools": [TOOL], "tool_choice": allowed("required")}, "tool_choice.mode"),
    (
        {"input": [{"type": "custom_tool_call_output", "call_id": "x", "output": "a"}]},
        "input[0].call_id",
    ),
    ({"input": [{"type": "custom_tool_call", "call_id": "x", "input": "a"}]}, "input[0].name"),
    ({"input": "a", "tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
    ({"input": "a", "tool_choice": "required"}, "tool_choice"),
    ({"input": "a", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
    ({"input": "a", "messages": []}, "messages"),
]


@pytest.mark.parametrize(("body", "param"), ERRORS)
async def test_errors_name_the_field(body: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post(ROUTE, json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert client.generations == []


# ---- stored responses ----------------------------------------------------------------------------

KEPT: dict[str, Any] = {"response_store_bytes": 20_000}
TWO_KEYS = {"api_keys": ("one", "two")}


async def said(http: Any, **fields: Any) -> Any:
    response = await http.post(ROUTE, json={"input": "hi"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_response_goes_on_from_a_stored_one() -> None:
    """It takes over the stored items, but not the instructions."""
    client = FakeClient(CALL)
    async with in_process(client, **KEPT) as http:
        first = await said(http, instructions="Be brief.", tools=[TOOL])
        assert first["store"] and (await http.get(f"{ROUTE}/{first['id']}")).json() == first
        call_id = first["output"][0]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": "sun"}
        second = await said(http, input=[result], previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        third = await said(http, input="bye", previous_response_id=second["id"], tools=[TOOL])
        assert third["output"][0]["type"] == "function_call"
    call = ToolCall(call_id, "weather", '{"a": 1}')
    history = [
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "", tool_calls=[call]),
        ChatMessage("tool", "sun", tool_call_id=call_id, name="weather"),
    ]
    assert client.requests[1].messages == history
    assert client.requests[2].messages == [
        *history,
        ChatMessage("assistant", "".join(CALL)),
        ChatMessage("user", "bye"),
    ]


async def test_a_stream_is_stored_when_it_has_ended() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client, **KEPT) as server:
        oai = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any")
        async with oai, oai.responses.stream(model="tiny", input="hi") as stream:
            async for event in stream:
                if event.type == "response.completed":
                    again = await oai.responses.retrieve(event.response.id)
                    assert again.output_text == event.response.output_text == "Hello, wörld"
                    await oai.responses.delete(again.id)
                    with pytest.raises(openai.NotFoundError):
                        await oai.responses.retrieve(again.id)
                elif event.type == "response.created":
                    with pytest.raises(openai.NotFoundError):
                        await oai.responses.retrieve(event.response.id)
                    client.hold.set()


async def test_what_is_not_stored() -> None:
    client = FakeClient()
    async with in_process(client, **KEPT) as http:
        unwanted = await said(http, store=False)
        large = await said(http, input="x" * 20_000)
        client.finish = Finish("abort")
        cancelled = await said(http)
        for answer in (unwanted, large, cancelled):
            assert (await http.get(f"{ROUTE}/{answer['id']}")).status_code == 404
            body = {"input": "hi", "previous_response_id": answer["id"]}
            refused = await http.post(ROUTE, json=body)
            assert refused.status_code == 400
            assert error_of(refused)["param"] == "previous_response_id"
        assert (await http.delete(f"{ROUTE}/none")).status_code == 404


async def test_those_that_were_not_used_for_longest_are_forgotten() -> None:
    async with in_process(FakeClient(), **KEPT) as http:
        ids = [(await said(http))["id"]]
        for _ in range(20):
            assert (await http.get(f"{ROUTE}/{ids[0]}")).status_code == 200
            ids.append((await said(http))["id"])
        found = [(await http.get(f"{ROUTE}/{name}")).status_code == 200 for name in ids]
    assert found[0] and found[-1] and not found[1]
    kept = found[2:]
    assert kept == sorted(kept) and 2 < sum(found) < 20


async def test_who_stores_much_makes_only_its_own_be_forgotten() -> None:
    """If the others have no more than an equal share of the store."""
    async with in_process(FakeClient(), **KEPT, **TWO_KEYS) as http:

        async def kept(key: str, ids: list[str]) -> list[bool]:
            http.headers["authorization"] = f"Bearer {key}"
            return [(await http.get(f"{ROUTE}/{name}")).status_code == 200 for name in ids]

        ids: dict[str, list[str]] = {"one": [], "two": []}
        for key, count in (("two", 12), ("one", 2), ("two", 20)):
            http.headers["authorization"] = f"Bearer {key}"
            ids[key] += [(await said(http))["id"] for _ in range(count)]
        assert await kept("one", ids["one"]) == [True, True]
        found = await kept("two", ids["two"])
        assert found == sorted(found) and found[-1] and not found[12]
        large = (await said(http, input="x" * 15_000))["id"]  # more than an equal share
        assert not any(await kept("two", [*ids["two"], large]))
        assert await kept("one", ids["one"]) == [True, True]


async def test_what_is_too_large_to_be_stored_is_not_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[Any] = []
    encode = msgspec.json.encode

    def recorded(value: Any) -> bytes:
        encoded.append(value)
        return encode(value)

    monkeypatch.setattr(msgspec.json, "encode", recorded)
    async with in_process(FakeClient(), **KEPT) as http:
        parts = [{"type": "input_text", "text": "x" * 7_000}] * 3
        for given in ("x" * 20_000, [{"role": "user", "content": parts}]):
            await said(http, input=given)
        assert not any(isinstance(value, list) for value in encoded)
        await said(http, input="x")
    assert any(isinstance(value, list) for value in encoded)


async def test_callers_do_not_see_each_others_responses() -> None:
    async with in_process(FakeClient(), **KEPT, **TWO_KEYS) as http:
        http.headers["authorization"] = "Bearer one"
        name = (await said(http))["id"]
        assert (await http.get(f"{ROUTE}/{name}")).status_code == 200
        http.headers["authorization"] = "Bearer two"
        unknown = await http.get(f"{ROUTE}/unknown")
        for answer in (await http.get(f"{ROUTE}/{name}"), await http.delete(f"{ROUTE}/{name}")):
            assert answer.status_code == 404
            assert answer.text.replace(name, "unknown") == unknown.text
        body = {"input": "hi", "previous_response_id": name}
        assert (await http.post(ROUTE, json=body)).status_code == 400
        http.headers["authorization"] = "Bearer one"
        assert (await http.delete(f"{ROUTE}/{name}")).json()["deleted"]


async def test_schemas_of_tools_are_named() -> None:
    client = FakeClient()
    at = "structural_tag.format.elements[0].content.elements[0].elements[0].content"
    client.refusals[0] = RequestError(": bad", at=at)
    async with in_process(client) as http:
        body = {"input": "a", "tools": [TOOL], "tool_choice": "required"}
        error = error_of(await http.post(ROUTE, json=body))
    assert (error["param"], error["message"]) == (
        "tools[0].parameters",
        "tools[0].parameters (the tool 'weather'): bad",
    )
