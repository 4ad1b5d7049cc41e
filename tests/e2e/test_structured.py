"""Constrained answers of the real model, on every API. They must match."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import httpx2
import openai
import pytest
from pydantic import BaseModel

import lang as sgl
from srt import AsyncClient
from srt.wire.errors import RequestError
from tests.e2e.server import Server

PATTERN = r"(\d{1,3}\.){3}\d{1,3}"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHAT: list[Any] = [{"role": "user", "content": "Describe a person as JSON."}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.fixture
async def oai(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
        yield client


def check_person(text: str | None) -> None:
    person = json.loads(text or "")
    assert list(person) == ["name", "age", "tags"]
    assert len(person["name"]) <= 12 and 0 <= person["age"] <= 150
    assert len(person["tags"]) <= 2 and set(person["tags"]) <= {"a", "b"}
    compact = json.dumps(person, ensure_ascii=False, separators=(",", ":"))
    assert text == compact or "\\" in person["name"] + compact


# ---- /generate -----------------------------------------------------------------------------------


async def generate(server: Server, **sampling: Any) -> Any:
    body = {"text": "The answer is: ", "sampling_params": {"max_new_tokens": 64, **sampling}}
    async with httpx2.AsyncClient(timeout=60) as http:
        return (await http.post(server.url + "/generate", json=body)).json()


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_regex(server: Server, temperature: float) -> None:
    answers = await asyncio.gather(
        *[generate(server, regex=PATTERN, temperature=temperature) for _ in range(4)]
    )
    for answer in answers:
        assert re.fullmatch(PATTERN, answer["text"], re.ASCII), answer
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"


async def test_each_kind(server: Server) -> None:
    choice = await generate(server, choices=["yes indeed", "no"])
    assert choice["text"] in ("yes indeed", "no")
    person = await generate(server, json_schema=SCHEMA, max_new_tokens=120)
    check_person(person["text"])
    assert (await generate(server, json_schema='{"const": 5}'))["text"] == "5"
    grammar = await generate(server, ebnf='root ::= ("ab" | "cd")+ "!"', max_new_tokens=100)
    assert re.fullmatch(r"((ab|cd)+!)|(ab|cd)*[ac]?", grammar["text"])
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<n>",
            "content": {"type": "regex", "pattern": "[0-9]{2}"},
            "end": "</n>",
        },
    }
    tagged = await generate(server, structural_tag=tag)
    assert re.fullmatch(r"<n>[0-9]{2}</n>", tagged["text"])


async def test_a_length_leaves_a_beginning(server: Server) -> None:
    answer = await generate(server, json_schema=SCHEMA, max_new_tokens=3, close=False)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert '{"name":"'.startswith(answer["text"][:9]) or answer["text"].startswith('{"name":"')


async def test_free_up_to_a_text(server: Server) -> None:
    answer = await generate(server, regex=" *[0-9]", constraint_after="e", temperature=0.7)
    _, found, after = answer["text"].partition("e")
    if found:
        assert re.fullmatch(" *[0-9]?", after)
    else:
        assert answer["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"regex": "a("}, "sampling_params.regex"),
        ({"json_schema": "{"}, "sampling_params.json_schema"),
        ({"json_schema": {"type": "colour"}}, "sampling_params.json_schema"),
        ({"ebnf": "root ::= missing"}, "sampling_params.ebnf"),
        ({"structural_tag": "{}"}, "sampling_params.structural_tag.structures"),
        ({"regex": "a", "ebnf": "b"}, "sampling_params.ebnf"),
    ],
)
async def test_bad_constraints_are_named(
    server: Server, sampling: dict[str, Any], param: str
) -> None:
    error = (await generate(server, **sampling))["error"]
    assert (error["code"], error["param"]) == ("bad_request", param)


async def test_objects_have_only_their_names(server: Server, oai: openai.AsyncOpenAI) -> None:
    """Unless somebody says otherwise: a schema that asks for one name more is unsatisfiable."""
    pet = {"type": "object", "properties": {"name": {"type": "string"}, "age": {}}}
    asked = {"json_schema": pet, "temperature": 1.5, "max_new_tokens": 40}
    for answer in await asyncio.gather(*[generate(server, **asked) for _ in range(4)]):
        assert json.loads(answer["text"]).keys() <= {"name", "age"}
    more = {"type": "object", "properties": {}, "minProperties": 1}
    error = (await generate(server, json_schema=more))["error"]
    assert error["param"] == "sampling_params.json_schema" and "x-closed" in error["message"]
    for fields in (
        {"json_schema": {"x-closed": False, **more}},
        {"json_schema": more, "disable_additional_properties": False},
    ):
        assert json.loads((await generate(server, **fields))["text"])
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": more}}
    form["json_schema"]["strict"] = False
    with pytest.raises(openai.BadRequestError) as caught:
        await oai.chat.completions.create(model="smollm2", messages=CHAT, response_format=form)
    assert caught.value.param == "response_format.json_schema.schema"
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": more}}
    with pytest.raises(openai.BadRequestError) as caught:
        await oai.chat.completions.create(
            model="smollm2", messages=CHAT, tools=[tool], tool_choice="required"
        )
    assert caught.value.param == "tools[0].function.parameters"


# ---- the Python client ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ring", "http"])
async def test_python_client(server: Server, way: str) -> None:
    async with AsyncClient(server.ring if way == "ring" else server.url) as client:
        sampling: dict[str, Any] = {"json_schema": SCHEMA, "max_new_tokens": 120}
        check_person((await client.generate("A person: ", sampling=sampling)).text)
        chat = await client.generate(messages=CHAT, sampling={"choices": ["left", "right"]})
        assert chat.text in ("left", "right")
        with pytest.raises(RequestError, match="regex"):
            await client.generate("a", sampling={"regex": "*"})


# ---- the openai package --------------------------------------------------------------------------


async def test_response_format(oai: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": CHAT,
        "response_format": FORMAT,
        "max_tokens": 120,
        "temperature": 0,
    }
    answer = await oai.chat.completions.create(**asked)
    check_person(answer.choices[0].message.content)
    asked["extra_body"] = {"speculative": "off"}  # else in fewer pieces
    stream = await oai.chat.completions.create(**asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == answer.choices[0].message.content and len(pieces) > 2


class Person(BaseModel):
    name: Literal["Ada", "Bob"]
    age: int


async def test_parse_with_a_pydantic_model(oai: openai.AsyncOpenAI) -> None:
    answer = await oai.chat.completions.parse(
        model="smollm2", messages=CHAT, response_format=Person, max_tokens=200, temperature=0
    )
    person = answer.choices[0].message.parsed
    assert person is not None and person.name in ("Ada", "Bob")


async def test_json_object(oai: openai.AsyncOpenAI) -> None:
    answer = await oai.chat.completions.create(
        model="smollm2",
        messages=CHAT,
        response_format={"type": "json_object"},
        max_tokens=40,
        temperature=0,
    )
    text = answer.choices[0].message.content or ""
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


async def test_vllm_fields(oai: openai.AsyncOpenAI) -> None:
    for extra in (
        {"guided_choice": ["positive", "negative"]},
        {"structured_outputs": {"choice": ["positive", "negative"]}},
        {"guided_regex": "positive|negative"},
    ):
        answer = await oai.chat.completions.create(
            model="smollm2", messages=CHAT, extra_body=extra, temperature=0
        )
        assert answer.choices[0].message.content in ("positive", "negative")
        completion = await oai.completions.create(model="smollm2", prompt="It is", extra_body=extra)
        assert completion.choices[0].text in ("positive", "negative")
    with pytest.raises(openai.BadRequestError) as caught:
        await oai.completions.create(
            model="smollm2", prompt="a", extra_body={"structured_outputs": {"json": {"not": {}}}}
        )
    assert caught.value.param == "structured_outputs.json"


# ---- captures ------------------------------------------------------------------------------------

NAMED = r"(?P<capital>Paris|Rome|Ö{1,9}) is the capital of (?P<country>France|Italy)\."
LARK = 'start: (item ", ")* item "."\nitem[capture]: /[a-zé]{1,6}/'


def check_named(text: str, captures: Any) -> None:
    match = re.fullmatch(NAMED, text)
    assert match is not None
    places = [(c["name"], c["start"], c["end"], c["text"]) for c in captures]
    assert places == [(n, *match.span(n), match[n]) for n in ("capital", "country")]


async def test_captures_on_every_route(server: Server, oai: openai.AsyncOpenAI) -> None:
    check = await generate(server, regex=NAMED)
    check_named(check["text"], check["meta_info"]["captures"])
    assert "captures" not in (await generate(server, regex=PATTERN))["meta_info"]
    extra = {"regex": NAMED}
    completion = await oai.completions.create(
        model="smollm2", prompt="A fact: ", temperature=0, max_tokens=100, extra_body=extra
    )
    (choice,) = completion.choices
    check_named(choice.text, choice.model_extra["captures"])  # type: ignore[index]
    text, last = "", None
    async for chunk in await oai.chat.completions.create(
        model="smollm2", messages=CHAT, stream=True, temperature=0, extra_body=extra
    ):
        text += chunk.choices[0].delta.content or ""
        last = chunk.choices[0]
    assert last is not None and last.finish_reason == "stop"
    check_named(text, last.model_extra["captures"])  # type: ignore[index]
    sampling = {"regex": NAMED, "constraint_after": "e", "max_new_tokens": 100}
    for url in (server.url, server.ring):
        async with AsyncClient(url) as client:
            output = await client.generate("The ", sampling=sampling)
            begin = output.text.find("e") + 1
            if output.finish is not None and output.finish.type == "stop":
                found = [(c.start - begin, c.end - begin) for c in output.captures or []]
                match = re.fullmatch(NAMED, output.text[begin:])
                assert match is not None and found == [match.span(1), match.span(2)]


@pytest.mark.parametrize("jump_forward", ["off", "canonical"])
async def test_captures_of_a_lark_grammar(server: Server, jump_forward: str) -> None:
    """An answer that is cut short has those that have ended."""
    answers = await asyncio.gather(
        *[
            generate(
                server,
                ebnf=LARK,
                jump_forward=jump_forward,
                temperature=1.0,
                sampling_seed=seed,
                max_new_tokens=4 + seed,
            )
            for seed in range(12)
        ]
    )
    for answer in answers:
        text = answer["text"]
        ended = re.findall(r"([a-zé]+)(?=[,.])", text)
        captures = answer["meta_info"]["captures"]
        assert [c["text"] for c in captures] == ended, text
        assert all(text[c["start"] : c["end"]] == c["text"] for c in captures)


async def test_captures_in_a_program(server: Server) -> None:
    @sgl.function
    def colours(s: Any) -> None:
        s += "Colours: " + sgl.gen("list", ebnf=LARK, max_tokens=20)

    for backend in (
        sgl.RuntimeEndpoint(server.url),
        sgl.OpenAI(
            "smollm2",
            base_url=server.url + "/v1",
            dialect="sglang",
            api_key="none",
            is_chat_model=False,
        ),
    ):
        with backend:
            state = await asyncio.to_thread(colours.run, backend=backend)
            captures = state.get_meta_info("list")["captures"]
            ended = re.findall(r"([a-zé]+)(?=[,.])", state["list"])
        assert [capture["text"] for capture in captures] == ended
