"""Tools on the chat route: definitions, choices, histories, and answers with calls."""

import json
from typing import Any

import openai
import pytest

from srt.answers import tool_calls as calls
from srt.answers.tool_events import ToolEvent
from srt.answers.tool_parser import ToolCallParser
from srt.gateway.http.turns import SLICE_CHARS
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, Finish, ToolCall, ToolSpec
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, served, sse_payloads

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Tell it.", "parameters": PARAMETERS},
}
CLOCK = {"type": "function", "function": {"name": "clock", "strict": None}}
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BODY: dict[str, Any] = {**CHAT_BODY, "tools": [WEATHER, CLOCK]}
ROUTE = "/v1/chat/completions"
CALLS = (
    "Well. ",
    '<tool_call>\n{"name": "wea',
    'ther", "arguments": {"ci',
    'ty": "Rome"}}\n</tool_call>\n<tool_',
    'call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
)
MISTRAL_CALLS = ('Well.[TOOL_CALLS] [{"name": "weather", "arg', 'uments": {"city": "Rome"}}]')
NAMED = {"type": "function", "function": {"name": "weather"}}


async def post(body: dict[str, Any], client: FakeClient, **info: Any) -> Any:
    async with in_process(client, **info) as http:
        response = await http.post(ROUTE, json=body)
    assert response.status_code == 200, response.text
    return response


async def tag_of(body: dict[str, Any], **info: Any) -> Any:
    """The format of the structural tag that the ring gets."""
    client = FakeClient()
    await post(body, client, **info)
    text = client.requests[0].sampling.structural_tag
    return None if text is None else json.loads(text)["format"]


def call_tag(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": "{name}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "}\n</tool_call>",
    }


NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
CLOSED = {"x-closed": True, **PARAMETERS}
WEATHER_TAG, CLOCK_TAG = call_tag("weather", PARAMETERS), call_tag("clock", NO_ARGUMENTS)
STRICT_WEATHER = call_tag("weather", CLOSED)
ANY_WEATHER = call_tag("weather", {"type": "object"})
ANY_CLOCK = call_tag("clock", {"type": "object"})


async def test_tools_reach_the_prompt() -> None:
    client = FakeClient()
    await post(BODY, client)
    compact = json.dumps(PARAMETERS, separators=(",", ":"))
    assert client.requests[0].tools == [ToolSpec("weather", "Tell it.", compact), ToolSpec("clock")]
    client = FakeClient()
    await post(BODY | {"tool_choice": "none"}, client)
    assert client.requests[0].tools == []


def calls_of(tags: list[dict[str, Any]]) -> dict[str, Any]:
    """Calls one after another, perhaps a line end, perhaps the first word of other text."""
    end = {"type": "optional", "content": {"type": "const_string", "value": "\n"}}
    each = {"type": "sequence", "elements": [{"type": "or", "elements": tags}, end]}
    word = {"type": "optional", "content": {"type": "regex", "pattern": "[^\\s<\\\n]\\S{0,7}"}}
    return {"type": "sequence", "elements": [{"type": "plus", "content": each}, word]}


async def test_the_constraint_of_each_choice() -> None:
    assert await tag_of(BODY) is None
    assert await tag_of(BODY | {"tool_choice": "auto"}) is None
    assert await tag_of(BODY | {"tool_choice": "none"}) is None
    tags = [WEATHER_TAG, CLOCK_TAG]
    assert await tag_of(BODY | {"tool_choice": "required"}) == calls_of(tags)
    one = BODY | {"tool_choice": "required", "parallel_tool_calls": False}
    assert await tag_of(one) == {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "\n",
        "at_least_one": True,
        "stop_after_first": True,
    }
    assert await tag_of(BODY | {"tool_choice": NAMED}) == WEATHER_TAG


async def test_calls_that_must_be_made_are_whole() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    for fields, close in (
        ({}, None),
        ({"tools": [strict]}, None),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": NAMED}, True),
        ({"tool_choice": "required", "close": False}, False),
        ({"response_format": form}, True),
    ):
        client = FakeClient()
        await post(BODY | fields, client)
        assert client.requests[0].sampling.close is close, fields


async def test_the_constraint_of_auto() -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    triggered = {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": [STRICT_WEATHER, ANY_CLOCK],
        "stop_after_first": False,
    }
    assert await tag_of({**CHAT_BODY, "tools": [strict, CLOCK]}) == triggered
    single = {"tags": [ANY_WEATHER, ANY_CLOCK], "stop_after_first": True}
    assert await tag_of(BODY | {"parallel_tool_calls": False}) == triggered | single


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        (
            {"response_format": {"type": "json_object"}},
            {"type": "json_schema", "json_schema": {"type": "object"}},
        ),
        ({"regex": "a+"}, {"type": "regex", "pattern": "a+"}),
        ({"ebnf": "g"}, {"type": "grammar", "grammar": "g"}),
        (
            {"guided_choice": ["a", "b"]},
            {
                "type": "or",
                "elements": [
                    {"type": "const_string", "value": "a"},
                    {"type": "const_string", "value": "b"},
                ],
            },
        ),
        (
            {"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}},
            {"type": "any_text"},
        ),
    ],
)
async def test_auto_with_a_constraint_is_one_or_the_other(
    fields: dict[str, Any], form: dict[str, Any]
) -> None:
    calls = calls_of([ANY_WEATHER, ANY_CLOCK])
    assert await tag_of(BODY | fields) == {"type": "or", "elements": [calls, form]}


NESTED = '{"tool": {"name": "clock", "parameters": {}}}'


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_matches_the_response_format_is_no_call(stream: bool) -> None:
    """Whatever the JSON contains: an answer is either all calls, or has none."""
    body = BODY | {"response_format": {"type": "json_object"}, "stream": stream}
    for text in (NESTED, '{"name": "sub", "parameters": {}}'):
        response = await post(body, FakeClient([text[:9], text[9:]]), call_format="llama3")
        if stream:
            chunks = sse_payloads(response.text)
            deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
            assert "".join(delta.get("content") or "" for delta in deltas) == text
            assert not any("tool_calls" in delta for delta in deltas)
        else:
            message = response.json()["choices"][0]["message"]
            assert message["content"] == text and "tool_calls" not in message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [ROUTE, "/v1/responses"])
async def test_long_answers_are_read_in_slices(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests have turns in between, however many calls there are."""
    sizes: list[int] = []

    class Recorded(ToolCallParser):
        def feed(self, text: str, final: bool = False) -> list[ToolEvent]:
            sizes.append(len(text))
            return super().feed(text, final)

    monkeypatch.setattr(calls, "ToolCallParser", Recorded)
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n'
    clock = CLOCK if path == ROUTE else {"type": "function", "name": "clock"}
    asked = {"messages": CHAT_BODY["messages"]} if path == ROUTE else {"input": "hi"}
    async with in_process(FakeClient([call * 1000])) as http:
        response = await http.post(path, json={**asked, "tools": [clock], "stream": stream})
    assert response.status_code == 200, response.text
    assert response.text.count('"clock"') >= 1000
    assert sum(sizes) == 1000 * len(call) and max(sizes) <= SLICE_CHARS


async def test_raw_text_has_the_constraint_of_the_request_only() -> None:
    raw = BODY | {"parse_tool_calls": False}
    client = FakeClient()
    await post(raw | {"regex": "a"}, client)
    assert client.requests[0].sampling.regex == "a"
    assert await tag_of(raw | {"tool_choice": NAMED}) == WEATHER_TAG


async def test_calls_come_after_the_reasoning() -> None:
    client = FakeClient(("<think>a <tool_call> b</think>", *CALLS[1:]))
    answer = (await post(BODY | {"tool_choice": "required"}, client, reasoning=True)).json()
    message = answer["choices"][0]["message"]
    assert client.requests[0].sampling.constraint_after == "</think>"
    assert message["reasoning_content"] == "a <tool_call> b"
    assert message["content"] is None and len(message["tool_calls"]) == 2


@pytest.mark.parametrize("after", ["now:", "</think>"])
async def test_what_looks_like_a_call_before_the_constraint(after: str) -> None:
    """Text before the constraint may be anything, and hides no call."""
    lead = f'<tool_call>\n{{"name": "weather", "arguments": Rome\n</tool_call> {after}'
    body = BODY | {"tool_choice": "required", "constraint_after": after}
    answer = (await post(body, FakeClient((lead, *CALLS[1:])))).json()["choices"][0]
    assert answer["message"]["content"] == lead
    assert len(answer["message"]["tool_calls"]) == 2


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_whole_answer(choice: str) -> None:
    pieces = CALLS if choice == "auto" else CALLS[1:]
    answer = (await post(BODY | {"tool_choice": choice}, FakeClient(pieces))).json()["choices"][0]
    calls = answer["message"].pop("tool_calls")
    content = "Well." if choice == "auto" else None
    assert answer["message"] == {"role": "assistant", "content": content}
    assert answer["finish_reason"] == "tool_calls"
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": '{"city": "Rome"}'},
        {"name": "clock", "arguments": "{}"},
    ]
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == 2 and all(i.startswith("call_") for i in ids)
    assert all(call["type"] == "function" for call in calls)


async def deltas_of(body: dict[str, Any], client: FakeClient) -> tuple[list[Any], str]:
    chunks = sse_payloads((await post(body | {"stream": True}, client)).text)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    deltas = [choice["delta"] for choice in choices]
    for delta in deltas:
        for call in delta.get("tool_calls", []):
            call["id"] = bool(call.get("id"))
    return deltas, choices[-1]["finish_reason"]


def start(index: int, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": True, "type": "function", "function": function}]}


def more(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": False, "function": {"arguments": arguments}}]}


async def test_streams() -> None:
    first = {"role": "assistant", "content": ""}
    rest = [start(1, "clock"), more(1, "{}"), {}]
    free = [start(0, "weather"), more(0, '{"city": "Rome"}')]
    as_it_comes = [start(0, "weather"), more(0, '{"ci'), more(0, 'ty": "Rome"}')]
    assert await deltas_of(BODY, FakeClient(CALLS)) == (
        [first, {"content": "Well."}, *free, *rest],
        "tool_calls",
    )
    body = BODY | {"tool_choice": "required"}
    assert await deltas_of(body, FakeClient(CALLS[1:])) == (
        [first, *as_it_comes, *rest],
        "tool_calls",
    )


async def test_the_openai_package_adds_a_stream_up() -> None:
    function = {**WEATHER["function"], "strict": True}
    tools: list[Any] = [{"type": "function", "function": function}]
    text = "".join(CALLS[1:3]) + 'ty": "Rome"}}\n</tool_call>'
    asked: dict[str, Any] = {"model": "tiny", "messages": CHAT_BODY["messages"]}
    async with (
        served(FakeClient(tuple(text))) as server,
        openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x") as client,
        client.chat.completions.stream(**asked, tools=tools) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (made,) = final.choices[0].message.tool_calls or []
    assert made.function.parsed_arguments == {"city": "Rome"}
    assert final.choices[0].finish_reason == "tool_calls"


async def test_what_is_no_call_stays_content() -> None:
    broken = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
    answer = (await post(BODY, FakeClient((broken,)))).json()["choices"][0]
    assert answer["message"] == {"role": "assistant", "content": broken}
    assert answer["finish_reason"] == "stop"
    raw = BODY | {"parse_tool_calls": False}
    answer = (await post(raw, FakeClient(CALLS))).json()["choices"][0]
    assert answer["message"] == {"role": "assistant", "content": "".join(CALLS)}
    answer = (await post(CHAT_BODY, FakeClient(CALLS))).json()["choices"][0]
    assert answer["message"]["content"] == "".join(CALLS)


async def test_a_call_that_the_length_cuts() -> None:
    client = FakeClient(CALLS[1:3])
    client.finish = Finish("length")
    body = BODY | {"tool_choice": "required"}
    answer = (await post(body, client)).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"ci'
    client.finish = Finish("stop", matched="X")
    assert (await post(body, client)).json()["choices"][0]["finish_reason"] == "stop"


def call(i: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": i, "type": "function", "function": {"name": "clock", "arguments": arguments}}


async def test_histories() -> None:
    client = FakeClient()
    messages = [
        {"role": "user", "content": "time?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call("c1"), "index": 0}, call("c2", "")],
            "reasoning_content": "Hm.",
            "refusal": None,
            "annotations": [],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        {"role": "tool", "tool_call_id": "c2", "content": "x", "name": "watch"},
    ]
    await post({"messages": messages}, client)
    assert client.requests[0].messages == [
        ChatMessage("user", "time?"),
        ChatMessage(
            "assistant",
            "",
            tool_calls=[ToolCall("c1", "clock", "{}"), ToolCall("c2", "clock", "{}")],
            reasoning="Hm.",
        ),
        ChatMessage("tool", "12:00", tool_call_id="c1", name="clock"),
        ChatMessage("tool", "x", tool_call_id="c2", name="watch"),
    ]


async def test_what_an_answer_may_be_is_taken_back() -> None:
    """Cut in its arguments or its reasoning, or empty; and a tool that returned nothing."""
    cut = ("{", '{"a": "b"', '{"a": NaN}', "null", "[]")
    client = FakeClient()
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call(a, a) for a in cut]},
        {"role": "tool", "tool_call_id": "{", "content": None},
        {"role": "assistant", "content": None, "reasoning_content": "Hm."},
        {"role": "assistant", "content": None, "reasoning": "Well."},
        {"role": "assistant", "content": None},
    ]
    await post({"messages": messages}, client)
    assert client.requests[0].messages == [
        ChatMessage("user", "time?"),
        ChatMessage("assistant", "", tool_calls=[ToolCall(a, "clock", a) for a in cut]),
        ChatMessage("tool", "", tool_call_id="{", name="clock"),
        ChatMessage("assistant", "", reasoning="Hm."),
        ChatMessage("assistant", "", reasoning="Well."),
        ChatMessage("assistant", ""),
    ]


def history(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a"}, *messages]}


def tool(**function: Any) -> dict[str, Any]:
    return {**CHAT_BODY, "tools": [{"type": "function", "function": function}]}


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({**CHAT_BODY, "tools": [{"type": "function"}]}, "tools[0].function"),
    ({**CHAT_BODY, "tools": [{"type": "web", "function": {"name": "a"}}]}, "tools[0].type"),
    (tool(name="a b"), "tools[0].function.name"),
    (tool(name="a" * 129), "tools[0].function.name"),
    (tool(name="a", parameter=1), "tools[0].function.parameter"),
    (tool(name="a", parameters={"type": "array"}), "tools[0].function.parameters"),
    (tool(name="a", parameters=[]), "tools[0].function.parameters"),
    (tool(name="a", description="x" * 300_000), "tools"),
    ({**CHAT_BODY, "tools": [CLOCK, CLOCK]}, "tools[1].function.name"),
    ({**CHAT_BODY, "tools": [CLOCK] * 129}, "tools"),
    (CHAT_BODY | {"tool_choice": "required"}, "tool_choice"),
    (CHAT_BODY | {"tool_choice": NAMED}, "tool_choice.function.name"),
    (BODY | {"tool_choice": "all"}, "tool_choice"),
    (BODY | {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
    (BODY | {"tool_choice": "required", "regex": "a"}, "regex"),
    (BODY | {"functions": [{"name": "f"}]}, "functions"),
    (BODY | {"function_call": {"name": "f"}}, "function_call"),
    (BODY | {"structural_tag": "{"}, "structural_tag"),
    (BODY | {"structural_tag": {"structures": [], "triggers": []}}, "structural_tag"),
    (BODY | {"guided_choice": []}, "guided_choice"),
    (history({"role": "user"}), "messages[1].content"),
    (history({"role": "user", "content": "", "reasoning": "a"}), "messages[1].reasoning"),
    (history({"role": "user", "content": "", "tool_calls": [call("c")]}), "messages[1].tool_calls"),
    (history({"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
    (history({"role": "tool", "content": "x", "tool_call_id": "c"}), "messages[1].tool_call_id"),
    (
        history({"role": "user", "content": "x", "tool_call_id": "c"}),
        "messages[1].tool_call_id",
    ),
    (
        history({"role": "assistant", "tool_calls": [{"type": "function"}]}),
        "messages[1].tool_calls[0].id",
    ),
]


@pytest.mark.parametrize(("body", "param"), ERRORS)
async def test_errors_name_the_field(body: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post(ROUTE, json=body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param
    assert client.generations == []


@pytest.mark.parametrize(
    ("body", "place", "param"),
    [
        (
            {"tool_choice": "required"},
            "elements[0].content.elements[0].elements[1].content",
            "tools[1].function.parameters",
        ),
        ({"tool_choice": NAMED}, "content", "tools[0].function.parameters"),
        (
            {"response_format": {"type": "json_object"}},
            "elements[0].elements[0].content.elements[0].elements[0].content",
            "tools[0].function.parameters",
        ),
        ({"guided_regex": "a("}, "elements[1]", "guided_regex"),
        (
            {"structural_tag": {"format": {"type": "sequence", "elements": [{}]}}},
            "elements[1].elements[0].type",
            "structural_tag.format.elements[0].type",
        ),
        ({"guided_regex": "a"}, "elements[10]", "tools.format.elements[10]"),
    ],
)
async def test_errors_of_the_whole_tag_name_the_field(
    body: dict[str, Any], place: str, param: str
) -> None:
    client = FakeClient()
    error = RequestError(": bad", at=f"structural_tag.format.{place}")
    client.refusals = dict.fromkeys((0, 1), error)
    async with in_process(client) as http:
        errors = [
            error_of(await http.post(ROUTE, json=BODY | body | {"stream": stream}))
            for stream in (False, True)
        ]
    assert [(e["param"], e["message"]) for e in errors] == [(param, f"{param}: bad")] * 2


async def test_raw_reasoning_hides_no_calls() -> None:
    body = BODY | {"separate_reasoning": False}
    async with in_process(FakeClient(), reasoning=True) as http:
        response = await http.post(ROUTE, json=body)
        assert error_of(response)["param"] == "separate_reasoning"
        raw = await http.post(ROUTE, json=body | {"parse_tool_calls": False})
    assert raw.json()["choices"][0]["message"]["content"] == "Hello, wörld"


async def test_the_format_is_that_of_the_model() -> None:
    """Calls are read and enforced in the format that the tokenizer has reported."""
    client = FakeClient(MISTRAL_CALLS)
    answer = (await post(BODY, client, call_format="mistral")).json()["choices"][0]["message"]
    assert answer["content"] == "Well."
    (call,) = answer["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    forced = await tag_of(BODY | {"tool_choice": "required"}, call_format="mistral")
    assert (forced["begin"], forced["end"]) == ("[TOOL_CALLS] [", "]")
    bad = {"function": {**WEATHER["function"], "parameters": {"type": "object", "minimum": "x"}}}
    error = RequestError(": no", at="structural_tag.format.content.tags[1].content")
    refusing = FakeClient()
    refusing.refusals[0] = error
    async with in_process(refusing, call_format="mistral") as http:
        body = {**BODY, "tools": [CLOCK, {**WEATHER, **bad}], "tool_choice": "required"}
        refused = await http.post(ROUTE, json=body)
    assert error_of(refused)["param"] == "tools[1].function.parameters"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("call_format", "text"),
    [("hermes", '<tool_call>\n{"name": "clo'), ("gpt-oss", "<|channel|>commentary to=fun")],
)
async def test_the_beginning_of_a_forced_call_is_no_content(
    call_format: str, text: str, stream: bool
) -> None:
    """Where a limit cuts it before its arguments; if the model chooses, it may be a text."""
    for choice, content in (("required", ""), ("auto", text)):
        body = BODY | {"tool_choice": choice, "stream": stream}
        response = await post(body, FakeClient([text[:3], text[3:]]), call_format=call_format)
        chunks = sse_payloads(response.text) if stream else [response.json()]
        choices = [each for chunk in chunks for each in chunk["choices"]]
        messages = [each["delta" if stream else "message"] for each in choices]
        assert "".join(each.get("content") or "" for each in messages) == content
        assert not any("tool_calls" in each for each in messages)


async def test_text_of_another_format_can_be_parsed() -> None:
    body = {"text": '{"name": "clock", "parameters": {}}', "tools": [CLOCK]}
    async with in_process(FakeClient()) as http:
        own = (await http.post("/parse_function_call", json=body)).json()
        body["tool_call_parser"] = "llama3"
        other = (await http.post("/parse_function_call", json=body)).json()
    assert (own["calls"], own["normal_text"]) == ([], body["text"])
    assert other == {
        "normal_text": "",
        "calls": [{"tool_index": 0, "name": "clock", "parameters": "{}"}],
    }


async def test_errors_in_blocks_name_the_parameters() -> None:
    """What the blocks of one function are made of is its schema, however deep it is in the tag."""
    client = FakeClient()
    at = "elements[0].content.elements[0].elements[1].content.elements[0].content"
    client.refusals[0] = RequestError(": bad", at=f"structural_tag.format.{at}")
    async with in_process(client, call_format="qwen3_coder") as http:
        body = BODY | {"tools": [CLOCK, WEATHER], "tool_choice": "required"}
        error = error_of(await http.post(ROUTE, json=body))
    tag = json.loads(client.requests[0].sampling.structural_tag or "")
    calls = tag["format"]["elements"][0]["content"]["elements"][0]["elements"]
    assert "<parameter=" in calls[1]["content"]["elements"][0]["begin"]
    assert error["message"] == "tools[1].function.parameters: bad"
