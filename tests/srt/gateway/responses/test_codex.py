"""The route /v1/responses as coding agents speak it: custom tools, namespaces, what is hosted."""

import asyncio
import random
from typing import Any

import msgspec
import openai
import pytest

from srt.answers.custom_tools import call_text
from srt.gateway.responses.input import sealed
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, InputFormat, ToolCall, ToolSpec
from tests.fakes import FakeClient, FakeGeneration
from tests.running.profiles import seeds
from tests.srt.gateway.setup import error_of, in_process, served
from tests.waiting import SOON_S

ROUTE = "/v1/responses"
KEPT: dict[str, Any] = {"response_store_bytes": 100_000}
PATCH = "*** Begin Patch\n*** Delete File: a\n*** End Patch"
BLOCK = call_text(ToolCall("", "apply_patch", PATCH))
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"\r\n'}
EDIT = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": LARK}
SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [SHELL, EDIT]}


async def post(body: dict[str, Any], client: FakeClient, **info: Any) -> Any:
    async with in_process(client, **info) as http:
        response = await http.post(ROUTE, json={"input": "hi"} | body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_custom_tool_is_enforced_and_its_call_an_item() -> None:
    client = FakeClient(("So:\n", BLOCK[:30], BLOCK[30:], "\n"))
    answer = await post({"tools": [SHELL, EDIT]}, client)
    (request,) = client.requests
    given = InputFormat("lark", 'start: "a"\n')
    assert request.tools[1] == ToolSpec("apply_patch", "Edits.", input=given)
    tag = msgspec.json.decode(request.sampling.structural_tag or "")["format"]
    assert tag["tags"][1]["content"] == {"type": "grammar", "grammar": 'start: "a"\n'}
    assert answer["tools"][1]["format"] == LARK
    message, call = answer["output"]
    assert message["content"][0]["text"] == "So:"
    assert call["id"].startswith("ctc_") and call["call_id"].startswith("call_")
    assert {k: v for k, v in call.items() if not k.endswith("id")} == {
        "type": "custom_tool_call",
        "name": "apply_patch",
        "input": PATCH,
        "status": "completed",
    }


async def test_the_openai_package_reads_its_events() -> None:
    pieces = (
        "Hm",
        *BLOCK,
        "<tool_call>",
        '\n{"name": "shell", "arguments": {"a": 1}}\n</tool_call>',
    )
    client = FakeClient(pieces)
    async with (
        served(client) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x") as oai,
    ):
        tools: Any = [SHELL, EDIT]
        stream = await oai.responses.create(model="tiny", input="a", tools=tools, stream=True)
        deltas, events = "", []
        async for event in stream:
            events.append(event.type)
            if event.type == "response.custom_tool_call_input.delta":
                deltas += event.delta
            elif event.type == "response.custom_tool_call_input.done":
                assert event.input == deltas == PATCH
            elif event.type == "response.completed":
                response = event.response
    assert [item.type for item in response.output] == [
        "message",
        "custom_tool_call",
        "function_call",
    ]
    call = response.output[1]
    assert call.type == "custom_tool_call" and call.input == PATCH
    done = events.index("response.custom_tool_call_input.done")
    assert events[done + 1] == "response.output_item.done"
    assert events.count("response.output_item.added") == 3


@pytest.mark.parametrize("seed", seeds(4))
async def test_events_add_up_however_the_text_is_cut(seed: int) -> None:
    """What a client assembles of a stream is the whole answer."""
    call = '<tool_call>\n{"name": "shell", "arguments": {"a": "<custom_call"}}\n</tool_call>'
    text = f"<think>Hm <b></think>Well:\n{BLOCK}\n{call}\n{BLOCK} so"
    rng = random.Random(seed)
    for _ in range(50):
        places = sorted(rng.randrange(len(text)) for _ in range(rng.randrange(1, 40)))
        pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        body = {"input": "hi", "tools": [SHELL, EDIT], "stream": True}
        async with in_process(FakeClient(pieces), reasoning=True) as http:
            lines = (await http.post(ROUTE, json=body)).text.splitlines()
        events = [msgspec.json.decode(x[6:]) for x in lines if x.startswith("data: ")]
        deltas: dict[str, str] = {}
        for event in events:
            if event["type"].endswith(".delta"):
                at = event["item_id"]
                deltas[at] = deltas.get(at, "") + event["delta"]
        output = events[-1]["response"]["output"]
        told = [item.get("input") or item.get("arguments") or text_of(item) for item in output]
        assert [deltas[item["id"]] for item in output] == told
        assert told == ["Hm <b>", "Well:", PATCH, '{"a": "<custom_call"}', PATCH, "\n\n\n so"]


def text_of(item: Any) -> str:
    return "".join(part["text"] for part in item["content"])


async def test_a_history_of_custom_calls() -> None:
    client = FakeClient()
    items = [
        {"role": "user", "content": "a"},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": PATCH},
        {"type": "function_call", "call_id": "d", "name": "shell", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
        {
            "type": "function_call_output",
            "call_id": "d",
            "output": [{"type": "input_text", "text": "fine"}],
        },
    ]
    await post({"input": items}, client)
    calls = [ToolCall("c", "apply_patch", PATCH, is_raw=True), ToolCall("d", "shell", "{}")]
    assert client.requests[0].messages == [
        ChatMessage("user", "a"),
        ChatMessage("assistant", "", tool_calls=calls),
        ChatMessage("tool", "ok", tool_call_id="c", name="apply_patch"),
        ChatMessage("tool", "fine", tool_call_id="d", name="shell"),
    ]


@pytest.mark.parametrize("seed", seeds(5))
async def test_the_chat_route_makes_the_same_prompt(seed: int) -> None:
    """Of the same conversation: of texts, calls, results, reasoning."""
    rng = random.Random(seed)
    items: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for turn in range(rng.randrange(1, 6)):
        text = f"question {turn}"
        items.append({"role": "user", "content": text})
        messages.append({"role": "user", "content": text})
        answer: dict[str, Any] = {"role": "assistant", "content": f"answer {turn}"}
        if rng.random() < 0.5:
            answer["reasoning_content"] = f"thought {turn}"
            part = {"type": "reasoning_text", "text": f"thought {turn}"}
            items.append({"type": "reasoning", "content": [part]})
        items.append({"role": "assistant", "content": answer["content"]})
        calls = [f"c{turn}{i}" for i in range(rng.randrange(3))]
        call = {"name": "shell", "arguments": '{"a":1}'}
        items += [{"type": "function_call", "call_id": name, **call} for name in calls]
        if calls:
            answer["tool_calls"] = [
                {"id": name, "type": "function", "function": call} for name in calls
            ]
        messages.append(answer)
        for name in calls:
            items.append({"type": "function_call_output", "call_id": name, "output": "ok"})
            messages.append({"role": "tool", "tool_call_id": name, "content": "ok"})
    last = {"role": "user", "content": "So?"}
    client = FakeClient()
    function = {name: value for name, value in SHELL.items() if name != "type"}
    tools = [{"type": "function", "function": function}]
    chat = {"messages": [*messages, last], "tools": tools}
    async with in_process(client) as http:
        await http.post(ROUTE, json={"input": [*items, last], "tools": [SHELL]})
        await http.post("/v1/chat/completions", json=chat)
    first, second = client.requests
    assert (first.messages, first.tools) == (second.messages, second.tools)
    assert first.chat == second.chat


async def test_tools_of_a_namespace_have_one_name_inside() -> None:
    name = "mcp__files__apply_patch"
    client = FakeClient((call_text(ToolCall("", name, PATCH)),))
    earlier = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{}"}
    items = [
        {"role": "user", "content": "a"},
        earlier | {"namespace": "mcp__files"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    answer = await post({"input": items, "tools": [SPACE]}, client)
    (request,) = client.requests
    assert [tool.name for tool in request.tools] == ["mcp__files__shell", name]
    assert [tool.description for tool in request.tools] == ["mcp__files: Files.", "Edits."]
    assert (request.messages or [])[1].tool_calls[0].name == "mcp__files__shell"
    (call,) = answer["output"]
    assert (call["name"], call["namespace"]) == ("apply_patch", "mcp__files")
    assert answer["tools"] == [SPACE | {"tools": answer["tools"][0]["tools"]}]


async def test_what_is_hosted_is_named() -> None:
    client = FakeClient()
    hosted = ["web_search", "web_search_preview_2025_03_11", "mcp", "local_shell", "tool_search"]
    items = [
        {"type": "tool_search_call", "call_id": "c", "arguments": {"q": "x"}},
        {"type": "tool_search_output", "call_id": "c", "tools": []},
        {"role": "user", "content": "a"},
    ]
    tools = [*({"type": kind, "server_label": "x"} for kind in hosted), SHELL]
    body = {"input": items, "tools": tools, "include": ["file_search_call.results"]}
    async with in_process(client) as http:
        response = await http.post(ROUTE, json=body | {"client_metadata": {"a": "b"}})
        assert response.status_code == 200
        names = response.headers["x-ignored-fields"].split(", ")
    assert names == [
        *(f"tools[].{kind}" for kind in hosted),
        "input[].tool_search_call",
        "input[].tool_search_output",
        "include[].file_search_call.results",
    ]
    (request,) = client.requests
    assert request.messages == [ChatMessage("user", "a")]
    assert [tool.name for tool in request.tools] == ["shell"]
    async with in_process(client, unknown_fields="refuse") as http:
        assert error_of(await http.post(ROUTE, json=body))["param"] == "tools[0]"


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("format", 1, "tools[1].format: expected object"),
        ("format", {"type": "grammar", "syntax": "lark"}, "missing field 'tools[1].format.defin"),
        ("name", "a b", "tools[1].name must have"),
    ],
)
async def test_errors_count_what_is_left_out(field: str, value: Any, sentence: str) -> None:
    tools = [{"type": "web_search"}, EDIT | {field: value}]
    async with in_process(FakeClient()) as http:
        error = error_of(await http.post(ROUTE, json={"input": "hi", "tools": tools}))
    assert error["message"].startswith(sentence)
    assert error["param"] in error["message"]


async def test_a_grammar_that_does_not_compile_is_named() -> None:
    """By its place among tools that are left out, or in a namespace, and by its own name."""
    client = FakeClient()
    where = "structural_tag.format.tags[2].content"  # custom tools are behind functions
    client.refuse = lambda _: RequestError(": no", at=where)
    tools = [{"type": "web_search"}, SPACE, SHELL]
    async with in_process(client) as http:
        error = error_of(await http.post(ROUTE, json={"input": "hi", "tools": tools}))
    place = "tools[1].tools[1].format"
    assert error["param"] == place
    assert error["message"] == f"{place} (the tool 'mcp__files__apply_patch'): no"


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_allowed_tools(mode: str) -> None:
    """All are shown, which keeps the prefix; those named may be called."""
    client = FakeClient()
    tools = [{"type": "custom", "name": "apply_patch"}, {"type": "image_generation"}]
    choice = {"type": "allowed_tools", "mode": mode, "tools": tools}
    answer = await post({"tools": [SHELL, EDIT], "tool_choice": choice}, client)
    (request,) = client.requests
    assert [tool.name for tool in request.tools] == ["shell", "apply_patch"]
    assert '"shell' not in (request.sampling.structural_tag or "")
    assert "apply_patch" in (request.sampling.structural_tag or "")
    assert (request.sampling.close is True) == (mode == "required")
    assert answer["tool_choice"]["mode"] == mode


async def test_reasoning_comes_back_as_it_was_given() -> None:
    """As content, as what stands for it, or as a summary."""
    client = FakeClient(("<think>", "hm", "</think>", "so"))
    body = {"include": ["reasoning.encrypted_content"]}
    first = (await post(body, client, reasoning=True))["output"][0]
    assert first["encrypted_content"] == sealed("hm")
    for item in (
        {"encrypted_content": sealed("hm")},
        {"summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAA"},
        {"content": [{"type": "reasoning_text", "text": "hm"}]},
    ):
        items = [{"type": "reasoning", "id": "r", **item}, {"role": "assistant", "content": "so"}]
        client = FakeClient()
        await post({"input": [*items, {"role": "user", "content": "a"}]}, client)
        assert (client.requests[0].messages or [])[0] == ChatMessage(
            "assistant", "so", reasoning="hm"
        )


async def test_input_tokens() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        answer = await http.post(ROUTE + "/input_tokens", json={"input": "hi", "tools": [EDIT]})
        assert answer.json() == {
            "object": "response.input_tokens",
            "input_tokens": len(await client.tokenize(client.tokenized[-1])),
        }
        assert client.tokenized[-1].tools[0].name == "apply_patch" and not client.requests
        refused = await http.post(ROUTE + "/compact", json={"input": "hi"})
    assert refused.status_code == 501 and error_of(refused)["code"] == "not_implemented"


async def test_an_empty_probe() -> None:
    client = FakeClient()
    await post({"input": [], "instructions": "x"}, client)
    assert client.requests[0].messages == [ChatMessage("system", "x")]


# ---- in the background ---------------------------------------------------------------------------


async def ended(http: Any, at: str) -> Any:
    """The response at this path, when it has ended."""
    async with asyncio.timeout(SOON_S):
        while (answer := (await http.get(at)).json())["status"] == "in_progress":
            await asyncio.sleep(0)
    return answer


async def test_a_response_in_the_background() -> None:
    client = FakeClient()
    client.hold.clear()
    async with in_process(client, **KEPT) as http:
        first = (await http.post(ROUTE, json={"input": "hi", "background": True})).json()
        assert (first["status"], first["background"]) == ("in_progress", True)
        at = f"{ROUTE}/{first['id']}"
        assert (await http.get(at)).json()["status"] == "in_progress"
        client.hold.set()
        answer = await ended(http, at)
        assert answer["status"] == "completed"
        assert answer["output"][0]["content"][0]["text"] == "Hello, wörld"
        assert (await http.post(at + "/cancel")).json() == answer
        again = {"input": "go on", "previous_response_id": first["id"]}
        assert (await http.post(ROUTE, json=again)).status_code == 200


async def test_one_is_cancelled() -> None:
    client = FakeClient()
    client.hold.clear()
    async with in_process(client, **KEPT) as http:
        first = (await http.post(ROUTE, json={"input": "hi", "background": True})).json()
        at = f"{ROUTE}/{first['id']}"
        answer = (await http.post(at + "/cancel")).json()
        assert answer["status"] == "cancelled" and client.generations[0].closed
        assert (await http.get(at)).json() == answer
        second = (await http.post(ROUTE, json={"input": "hi", "background": True})).json()
        assert (await http.delete(f"{ROUTE}/{second['id']}")).json()["deleted"]
        assert client.generations[1].closed
        client.hold.set()
        plain = (await http.post(ROUTE, json={"input": "hi"})).json()
        for path, status in ((f"{plain['id']}/cancel", 400), ("x/cancel", 404), ("x", 404)):
            assert (await http.post(f"{ROUTE}/{path}")).status_code == status


async def test_a_second_cancel_does_not_end_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request must leave the server, which takes a moment."""
    at_once, begun, may_end = FakeGeneration.aclose, asyncio.Event(), asyncio.Event()

    async def slowly(generation: FakeGeneration) -> None:
        begun.set()
        await may_end.wait()
        await at_once(generation)

    monkeypatch.setattr(FakeGeneration, "aclose", slowly)
    client = FakeClient()
    client.hold.clear()
    async with in_process(client, **KEPT) as http:
        first = (await http.post(ROUTE, json={"input": "hi", "background": True})).json()
        at = f"{ROUTE}/{first['id']}/cancel"
        cancels = [asyncio.create_task(http.post(at))]
        await asyncio.wait_for(begun.wait(), SOON_S)
        cancels.append(asyncio.create_task(http.post(at)))
        for _ in range(50):  # the second one is on its way
            await asyncio.sleep(0)
        may_end.set()
        assert [(await task).json()["status"] for task in cancels] == ["cancelled"] * 2
        assert client.generations[0].closed


async def test_one_that_fails_says_so() -> None:
    client = FakeClient()
    client.error = RuntimeError("bug")
    async with in_process(client, **KEPT) as http:
        first = (await http.post(ROUTE, json={"input": "hi", "background": True})).json()
        answer = await ended(http, f"{ROUTE}/{first['id']}")
    assert answer["status"] == "failed" and answer["error"]["code"] == "server_error"
    assert [item["status"] for item in answer["output"]] == ["incomplete"]


async def test_one_that_is_too_large_to_be_kept_says_so() -> None:
    async with in_process(FakeClient(("x" * 60_000, "y" * 60_000)), **KEPT) as http:
        first = (await http.post(ROUTE, json={"input": "hi", "background": True})).json()
        answer = await ended(http, f"{ROUTE}/{first['id']}")
    assert (answer["status"], answer["output"]) == ("failed", [])
    assert "too large" in answer["error"]["message"]


@pytest.mark.parametrize("fields", [{"store": False}, {"stream": True}])
async def test_the_background_needs_the_store(fields: dict[str, Any]) -> None:
    client = FakeClient()
    async with in_process(client, **KEPT) as http:
        body = {"input": "hi", "background": True} | fields
        assert error_of(await http.post(ROUTE, json=body))["param"] == "background"
    async with in_process(client) as http:
        body = {"input": "hi", "background": True}
        assert error_of(await http.post(ROUTE, json=body))["param"] == "background"
