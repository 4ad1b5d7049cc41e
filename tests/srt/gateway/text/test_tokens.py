"""/tokenize and /detokenize, /parse_function_call and /separate_reasoning over a fake client."""

from typing import Any

import pytest

from srt.client.generation import TokenizeRequest
from srt.gateway.wire.parsing import MAX_TEXT_CHARS
from srt.wire.messages import ChatMessage, ChatOptions, ToolSpec
from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process

USER = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "now", "description": "The time."}}


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
async def test_a_text(path: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        plain = await http.post(path, json={"prompt": "ab c", "model": "tiny"})
        body = {"prompt": "ab c", "add_special_tokens": False, "return_token_strs": True}
        bare = await http.post(path, json=body)
    assert plain.json() == {"tokens": [1, 2, 1], "count": 3, "max_model_len": 2048}
    assert bare.json()["tokens"] == [2, 1]
    assert bare.json()["token_strs"] == ["<end>", "t1"]
    assert [t.add_special_tokens for t in client.tokenized] == [True, False]


async def test_several_texts() -> None:
    async with in_process(FakeClient()) as http:
        body = {"prompt": ["ab c", ""], "return_token_strs": True}
        answer = (await http.post("/tokenize", json=body)).json()
    assert (answer["tokens"], answer["count"]) == ([[1, 2, 1], [1]], [3, 1])
    assert answer["token_strs"] == [["t1", "<end>", "t1"], ["t1"]]


async def test_a_chat() -> None:
    client = FakeClient()
    body = {
        "messages": [*USER, {"role": "assistant", "content": "He"}],
        "tools": [TOOL],
        "continue_final_message": True,
        "chat_template_kwargs": {"thinking": False},
        "add_special_tokens": False,
    }
    async with in_process(client) as http:
        answer = (await http.post("/tokenize", json=body)).json()
        await http.post("/tokenize", json={"messages": USER, "add_generation_prompt": False})
    assert answer == {"tokens": [5, 2], "count": 2, "max_model_len": 2048}
    assert client.tokenized == [
        TokenizeRequest(
            messages=[ChatMessage("user", "hello"), ChatMessage("assistant", "He")],
            tools=[ToolSpec("now", "The time.")],
            chat=ChatOptions('{"thinking":false}', True, False),
            tenant="ip:127.0.0.1",
        ),
        TokenizeRequest(
            messages=[ChatMessage("user", "hello")],
            tools=[],
            chat=ChatOptions(add_generation_prompt=False),
            tenant="ip:127.0.0.1",
        ),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": USER}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": "refused"}, "prompt"),
        ({"prompt": ["a", "refused"]}, "prompt[1]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a", "tools": [TOOL]}, "tools"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": []}, "messages"),
        ({"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": USER, "chat_template": "{{ x }}"}, "chat_template"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": USER, "tools": [{"type": "function", "function": {"name": "a b"}}]},
         "tools[0].function.name"),
        ({"prompt": "a", "colour": 1}, "colour"),
    ],
)  # fmt: skip
async def test_bad_bodies_of_tokenize(body: dict[str, Any], param: str) -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/tokenize", json=body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)


async def test_the_model_must_be_the_served_one_where_names_are_strict() -> None:
    async with in_process(FakeClient(), strict_model=True) as http:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            response = await http.post(path, json=body | {"model": "other"})
            assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
async def test_detokenize(path: str) -> None:
    async with in_process(FakeClient()) as http:
        one = (await http.post(path, json={"tokens": [100, 101, 2]})).json()
        shown = await http.post(path, json={"tokens": [100, 2], "skip_special_tokens": False})
        many = (await http.post(path, json={"tokens": [[100], [], [5, 6]]})).json()
        none = (await http.post(path, json={"tokens": []})).json()
    assert one == {"text": "Hello, ", "prompt": "Hello, "}
    assert shown.json()["text"] == "Hello<end>"
    assert many["text"] == ["Hello", "", "t5t6"] and none["text"] == ""


@pytest.mark.parametrize(
    ("tokens", "param"),
    [([1000], "tokens"), ([[1], [1000]], "tokens"), ([1, [2]], "tokens"), ([-1], "tokens[0]")],
)
async def test_bad_bodies_of_detokenize(tokens: list[Any], param: str) -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/detokenize", json={"tokens": tokens})
    assert (response.status_code, error_of(response)["param"]) == (400, param)


# ---- the chats' parsers --------------------------------------------------------------------------

CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "é"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "normal", "calls"),
    [
        (
            f"Well. {CALL}",
            "Well.",
            [{"tool_index": 0, "name": "now", "parameters": '{"zone": "é"}'}],
        ),
        (
            CALL + "\n" + CALL.replace('{"zone": "é"}', "{}"),
            "",
            [
                {"tool_index": 0, "name": "now", "parameters": '{"zone": "é"}'},
                {"tool_index": 1, "name": "now", "parameters": "{}"},
            ],
        ),
        ("no call", "no call", []),
        (CALL.replace("now", "other"), CALL.replace("now", "other"), []),
    ],
)
async def test_parse_function_call(text: str, normal: str, calls: list[Any]) -> None:
    async with in_process(FakeClient()) as http:
        for parser in (None, "hermes", "qwen25"):
            body = {"text": text, "tools": [TOOL], "tool_call_parser": parser}
            answer = await http.post("/parse_function_call", json=body)
            assert answer.json() == {"normal_text": normal, "calls": calls}
        unknown = body | {"tool_call_parser": "pythonic"}
        response = await http.post("/parse_function_call", json=unknown)
        endless = {"text": "x" * (MAX_TEXT_CHARS + 1), "tools": [TOOL]}
        too_long = await http.post("/parse_function_call", json=endless)
    assert error_of(response)["param"] == "tool_call_parser"
    assert (too_long.status_code, error_of(too_long)["param"]) == (400, "text")


@pytest.mark.parametrize(
    ("text", "parser", "reasoning", "answer"),
    [
        ("<think>\nhm\n</think>\n\nyes", None, "hm", "yes"),
        ("<think>hm</think>yes", "qwen3", "hm", "yes"),
        ("hm</think>yes", "deepseek-r1", "hm", "yes"),
        ("hm</think>yes", "think", "", "hm</think>yes"),
        ("plain", None, "", "plain"),
        ("<think>unfinished", None, "unfinished", ""),
    ],
)
async def test_separate_reasoning(
    text: str, parser: str | None, reasoning: str, answer: str
) -> None:
    async with in_process(FakeClient()) as http:
        body = {"text": text, "reasoning_parser": parser}
        response = await http.post("/separate_reasoning", json=body)
    assert response.json() == {"reasoning_text": reasoning, "text": answer}
