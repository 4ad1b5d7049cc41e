"""The fields for constraints, on every route and in every client's spelling."""

import json
from typing import Any

import pytest

from srt.gateway.constraint.wire import StructuredOutputs
from srt.gateway.wire.chat import Message
from srt.gateway.wire.fields import CHAT, Kind
from srt.wire.errors import RequestError
from srt.wire.sampling import SamplingParams
from tests.docs.fields import describe
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process, sse_payloads

SCHEMA = {"type": "object", "properties": {"a": {"enum": [None, 1]}}}
COMPACT_SCHEMA = '{"type":"object","properties":{"a":{"enum":[null,1]}}}'
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
COMPACT_TAG = '{"type":"structural_tag","format":{"type":"any_text"}}'
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
OLD_TAG_TEXT = json.dumps(OLD_TAG, separators=(",", ":"))


async def sampling_of(route: str, body: dict[str, Any], **info: Any) -> SamplingParams:
    """What the ring gets for a body that is accepted."""
    client = FakeClient()
    async with in_process(client, **info) as http:
        response = await http.post(route, json=body)
    assert response.status_code == 200, response.text
    return client.requests[0].sampling


async def refused(route: str, body: dict[str, Any], client: FakeClient | None = None) -> Any:
    async with in_process(client or FakeClient()) as http:
        response = await http.post(route, json=body)
    assert response.status_code == 400, response.text
    return error_of(response)


COMMON: list[tuple[dict[str, Any], str, Any]] = [
    ({"regex": "a+"}, "regex", "a+"),
    ({"json_schema": SCHEMA}, "json_schema", COMPACT_SCHEMA),
    ({"json_schema": ' {"type": "null"}'}, "json_schema", ' {"type": "null"}'),
    ({"json_schema": "$$ANY$$"}, "json_schema", "{}"),
    ({"json_schema": {}}, "json_schema", "{}"),
    ({"ebnf": 'root ::= "a"'}, "ebnf", 'root ::= "a"'),
    ({"structural_tag": TAG}, "structural_tag", COMPACT_TAG),
    ({"structural_tag": json.dumps(TAG)}, "structural_tag", json.dumps(TAG)),
    ({"structural_tag": "{"}, "structural_tag", "{"),
    ({"choices": ["a", "b"]}, "choices", ["a", "b"]),
]


@pytest.mark.parametrize(("fields", "kind", "value"), COMMON)
async def test_own_names_on_all_routes(fields: dict[str, Any], kind: str, value: Any) -> None:
    how: dict[str, Any] = {"json_whitespace": "free", "constraint_after": "X"}
    how |= {"jump_forward": "off", "token_healing": True}
    expected = SamplingParams(**{kind: value, **how})
    extra = {**how, **fields}
    for route, body in (
        ("/generate", {"text": "a", "sampling_params": extra}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 128, **extra}),
        ("/v1/chat/completions", {**CHAT_BODY, "max_tokens": 128, **extra}),
    ):
        assert await sampling_of(route, body) == expected


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "x",
                        "description": None,
                        "schema": SCHEMA,
                        "strict": None,
                    },
                }
            },
            "json_schema",
            COMPACT_SCHEMA,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "null"}, "strict": True},
                }
            },
            "json_schema",
            '{"x-closed":true,"type":"null"}',
        ),
        ({"response_format": TAG}, "structural_tag", COMPACT_TAG),
        ({"response_format": OLD_TAG}, "structural_tag", OLD_TAG_TEXT),
        ({"structured_outputs": {}}, None, None),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", COMPACT_SCHEMA),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a"),
        ({"structured_outputs": {"choice": ["a"]}}, "choices", ["a"]),
        ({"structured_outputs": {"grammar": "g"}}, "ebnf", "g"),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"json_object": False, "regex": "a"}}, "regex", "a"),
        ({"structured_outputs": {"structural_tag": TAG}}, "structural_tag", COMPACT_TAG),
        (
            {"structured_outputs": {"regex": "a", "disable_fallback": True, "json": None}},
            "regex",
            "a",
        ),
        ({"guided_json": SCHEMA}, "json_schema", COMPACT_SCHEMA),
        ({"guided_regex": "a", "guided_decoding_backend": "xgrammar"}, "regex", "a"),
        ({"guided_choice": ["a", "b"]}, "choices", ["a", "b"]),
        ({"guided_grammar": "g"}, "ebnf", "g"),
    ],
)
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_openai_and_vllm_names(
    route: str, fields: dict[str, Any], kind: str | None, value: Any
) -> None:
    prompt = CHAT_BODY if "chat" in route else {"prompt": "a"}
    params = await sampling_of(route, {**prompt, **fields})
    constraint = SamplingParams(**({kind: value} if kind else {})).constraint
    assert params.constraint == constraint


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "compact"),
        ({"json_whitespace": "free"}, "free"),
        ({"guided_whitespace_pattern": ""}, "compact"),
        ({"guided_whitespace_pattern": "[\\n\\t ]*"}, "free"),
        ({"structured_outputs": {"whitespace_pattern": "[\n\t ]*"}}, "free"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "compact"),
    ],
)
async def test_whitespace(fields: dict[str, Any], expected: str) -> None:
    body = {"prompt": "a", "json_schema": SCHEMA, **fields}
    assert (await sampling_of("/v1/completions", body)).json_whitespace == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": False}}, False),
        ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": None}}, None),
        ({"guided_json": SCHEMA, "disable_additional_properties": True}, True),
        (
            {"guided_json": SCHEMA, "structured_outputs": {"disable_additional_properties": True}},
            True,
        ),
    ],
)
async def test_what_says_that_objects_are_closed(
    fields: dict[str, Any], expected: bool | None
) -> None:
    params = await sampling_of("/v1/completions", {"prompt": "a", **fields})
    assert params.disable_additional_properties is expected


async def test_closed_objects_may_be_asked_for_beside_free_calls() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    messages = [{"role": "user", "content": "a"}]
    body = {"messages": messages, "tools": [tool], "disable_additional_properties": True}
    params = await sampling_of("/v1/chat/completions", body)
    assert params.constraint is None and params.disable_additional_properties is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"regex": "a", "ebnf": "b"}, "ebnf", "regex"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format", "regex"),
        (
            {"guided_choice": ["a"], "structured_outputs": {"json": SCHEMA}},
            "guided_choice",
            "structured_outputs.json",
        ),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": "a"}},
            "structured_outputs.regex",
            "structured_outputs.json",
        ),
        (
            {
                "structured_outputs": {"regex": "a", "disable_any_whitespace": True},
                "json_whitespace": "free",
            },
            "structured_outputs.disable_any_whitespace",
            "json_whitespace",
        ),
        ({"guided_whitespace_pattern": "a"}, "guided_whitespace_pattern", "blanks"),
        (
            {"disable_additional_properties": True, "response_format": {"type": "text"}},
            "disable_additional_properties",
            "needs a constraint",
        ),
        (
            {
                "structured_outputs": {"json": SCHEMA, "disable_additional_properties": True},
                "disable_additional_properties": False,
            },
            "structured_outputs.disable_additional_properties",
            "contradicts",
        ),
        (
            {"structured_outputs": {"disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
            "needs a constraint",
        ),
        ({"structured_outputs": {"lark": "x"}}, "structured_outputs.lark", "unknown"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
            "object",
        ),
        ({"guided_choice": []}, "guided_choice", "empty"),
        ({"constraint_after": "x"}, "constraint_after", "needs a constraint"),
        ({"constraint_opener": "x", "regex": "a"}, "constraint_opener", "constraint_after"),
        ({"json_whitespace": "free"}, "json_whitespace", "needs a constraint"),
        (
            {"structured_outputs": {"whitespace_pattern": "\\s*"}},
            "structured_outputs.whitespace_pattern",
            "needs a constraint",
        ),
        ({"json_schema": 5}, "json_schema", "int"),
        ({"guided_regex": "a" * 600_000}, "guided_regex", "characters"),
    ],
)
async def test_refusals_name_the_fields(fields: dict[str, Any], param: str, words: str) -> None:
    error = await refused("/v1/completions", {"prompt": "a", **fields})
    assert error["param"] == param and words in error["message"]


async def test_refusals_of_generate() -> None:
    sampling: list[dict[str, Any]] = [{}, {"regex": "a", "choices": ["a"]}]
    body = {"text": ["a", "b"], "sampling_params": sampling}
    error = await refused("/generate", body)
    assert error["param"] == "sampling_params[1].choices"
    assert error["message"].startswith("sampling_params[1].choices cannot be combined with regex")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json_schema": {}}, "json_schema"),
        ({"guided_json": {}}, "guided_json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_what_the_compiler_refuses_is_named_as_the_client_wrote_it(
    fields: dict[str, Any], param: str
) -> None:
    client = FakeClient()
    client.refusals[0] = RequestError(": no `not`", at="json_schema")
    error = await refused("/v1/completions", {"prompt": "a", **fields}, client)
    assert (error["param"], error["message"]) == (param, f"{param}: no `not`")


@pytest.mark.parametrize(
    ("struct", "kind"),
    [
        (Message, CHAT.nested["messages"]),
        (StructuredOutputs, CHAT.nested["structured_outputs"]),
    ],
)
def test_nested_fields_have_one_class(struct: Any, kind: Kind) -> None:
    names = [row.name for row in describe(struct, kind)]
    assert sorted(names) == sorted({*struct.__struct_fields__, *kind.fields})


# ---- reasoning -----------------------------------------------------------------------------------


async def test_a_constraint_waits_for_the_reasoning() -> None:
    route, regex = "/v1/chat/completions", {**CHAT_BODY, "regex": "a"}
    assert (await sampling_of(route, regex)).constraint_after == ""
    waiting = await sampling_of(route, regex, reasoning=True)
    assert (waiting.constraint_after, waiting.constraint_opener) == ("</think>", "<think>")
    switches: list[dict[str, Any]] = [
        {"chat_template_kwargs": {"enable_thinking": off}} for off in (False, 0, None)
    ]
    for off in ({"reasoning_effort": "none"}, *switches):
        assert (await sampling_of(route, regex | off, reasoning=True)).constraint_after == ""
    assert (await sampling_of(route, CHAT_BODY, reasoning=True)).constraint_after == ""
    async with in_process(FakeClient(), reasoning=True) as http:
        response = await http.post(route, json=regex | {"constraint_opener": "<x>"})
    assert error_of(response)["param"] == "constraint_opener"
    own = regex | {"constraint_after": ""}
    assert (await sampling_of(route, own, reasoning=True)).constraint_after == ""
    for begun, after in (("So", ""), ("<think>a</think>", ""), ("<think>a", "</think>")):
        last = {"role": "assistant", "content": begun}
        body = {**regex, "messages": [*CHAT_BODY["messages"], last], "continue_final_message": True}
        for switch in ({}, switches[0]):
            params = await sampling_of(route, body | switch, reasoning=True)
            assert params.constraint_after == after
        explicit = await sampling_of(route, body | {"constraint_after": "</think>"}, reasoning=True)
        assert (explicit.constraint_after, explicit.constraint_opener) == ("</think>", "")
    completion = {"prompt": "a", "regex": "a"}
    params = await sampling_of("/v1/completions", completion, reasoning=True)
    assert params.constraint_after == ""


async def chat_with(client: FakeClient, **fields: Any) -> Any:
    async with in_process(client, reasoning=True) as http:
        body = {**CHAT_BODY, **fields}
        response = await http.post("/v1/chat/completions", json=body)
        return response if fields.get("stream") else response.json()["choices"][0]["message"]


async def test_reasoning_is_kept_apart() -> None:
    pieces = ("<th", "ink>\nWell", ".\n</thi", "nk>\n\nY", "es.")
    message = await chat_with(FakeClient(pieces))
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Well."}
    streamed = (await chat_with(FakeClient(pieces), stream=True)).text
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for line in streamed.splitlines()
        if line.startswith("data: {")
    ]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Well"},
        {"reasoning_content": "."},
        {"content": "Y"},
        {"content": "es."},
        {},
    ]
    raw = await chat_with(FakeClient(pieces), separate_reasoning=False)
    assert raw == {"role": "assistant", "content": "".join(pieces)}


ROUTE = "/v1/chat/completions"


async def test_the_tags_of_the_template() -> None:
    """Mistral's tags, from its template."""
    template, pieces = "[THINK]{{ messages }}", ("[THI", "NK]Well.[/TH", "INK]Yes.")
    async with in_process(FakeClient(pieces), reasoning=True, template=template) as http:
        whole = (await http.post(ROUTE, json=CHAT_BODY)).json()["choices"][0]["message"]
        response = (await http.post("/v1/responses", json={"input": "hi"})).json()
        asked = {"text": "".join(pieces), "reasoning_parser": "mistral"}
        separate = (await http.post("/separate_reasoning", json=asked)).json()
    assert whole == {"role": "assistant", "content": "Yes.", "reasoning_content": "Well."}
    assert separate == {"reasoning_text": "Well.", "text": "Yes."}
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    regex = CHAT_BODY | {"regex": "a"}
    params = await sampling_of(ROUTE, regex, reasoning=True, template=template)
    assert params.constraint_after == "[/THINK]"


GPT_OSS = "{% if tools %}{% endif %}<|start|>assistant<|channel|>analysis<|message|>"
CHANNELS: dict[str, Any] = {"template": GPT_OSS, "call_format": "gpt-oss"}
FINAL = "<|channel|>final<|message|>"


async def test_the_reasoning_of_channels() -> None:
    """gpt-oss's format. A constraint begins where the next message is the answer."""
    pieces = (
        "<|channel|>ana",
        "lysis<|message|>Well.",
        f"<|end|><|start|>assistant{FINAL}Y",
        "es.",
    )
    async with in_process(FakeClient(pieces), reasoning=True, **CHANNELS) as http:
        whole = (await http.post(ROUTE, json=CHAT_BODY)).json()["choices"][0]["message"]
        streamed = sse_payloads((await http.post(ROUTE, json=CHAT_BODY | {"stream": True})).text)
        response = (await http.post("/v1/responses", json={"input": "hi"})).json()
    assert whole == {"role": "assistant", "content": "Yes.", "reasoning_content": "Well."}
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == ["Well."]
    assert "".join(d.get("content") or "" for d in deltas) == "Yes."
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    asked, facts = CHAT_BODY | {"regex": "a"}, {"reasoning": True, **CHANNELS}
    params = await sampling_of(ROUTE, asked, **facts)
    assert (params.regex, params.constraint_after) == ("a", FINAL)
    tool = {"type": "function", "function": {"name": "now"}}
    params = await sampling_of(ROUTE, asked | {"tools": [tool]}, **facts)
    assert params.constraint_after == "<|end|><|start|>assistant"
    calls, answer = json.loads(params.structural_tag or "")["format"]["elements"]
    assert calls["tags"][0]["begin"].startswith("<|channel|>commentary to=functions.now ")
    assert (answer["begin"], answer["content"]["type"]) == (FINAL, "regex")


async def test_calls_between_channels() -> None:
    call = '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": 1}'
    pieces = ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant", call)
    tool = {"type": "function", "function": {"name": "now"}}
    body = CHAT_BODY | {"tools": [tool]}
    async with in_process(FakeClient(pieces), reasoning=True, **CHANNELS) as http:
        (choice,) = (await http.post(ROUTE, json=body)).json()["choices"]
        text = {"text": "".join(pieces)}
        parsed = await http.post("/parse_function_call", json=text | {"tools": [tool]})
        asked = text | {"reasoning_parser": "gpt-oss"}
        separate = await http.post("/separate_reasoning", json=asked)
    assert separate.json() == {"reasoning_text": "Hm.", "text": f"<|start|>assistant{call}"}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "Hm." and not choice["message"]["content"]
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "now",
        "arguments": '{"a": 1}',
    }
    assert parsed.json() == {
        "normal_text": "",
        "calls": [{"tool_index": 0, "name": "now", "parameters": '{"a": 1}'}],
    }


async def test_reasoning_that_the_prompt_has_opened() -> None:
    client = FakeClient(("Well.", "</think>Yes."))
    client.opens_reasoning = True
    message = await chat_with(client)
    assert (message["reasoning_content"], message["content"]) == ("Well.", "Yes.")
    client = FakeClient(("Well",))
    assert (await chat_with(client))["content"] == "Well"
    assert (await chat_with(client, regex="a"))["content"] == "Well"  # it has begun none
    explicit = {"regex": "a", "constraint_after": "</think>"}
    constrained = await chat_with(client, **explicit)
    assert constrained == {"role": "assistant", "content": None, "reasoning_content": "Well"}
    client.closes_reasoning = True
    assert (await chat_with(client, **explicit)) == {"role": "assistant", "content": "Well"}
