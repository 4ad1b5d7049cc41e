"""Constrained answers of the real model end within their limits, on every API."""

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest

import lang as sgl
from examples import essay_judge, json_extraction
from srt import AsyncClient
from srt.wire.errors import RequestError
from tests.e2e.server import Server

LETTER: dict[str, Any] = {
    "type": "object",
    "properties": {"subject": {"type": "string"}, "body": {"type": "string"}},
    "required": ["subject", "body"],
    "additionalProperties": False,
}
OPEN: dict[str, Any] = {"type": "object", "properties": {"notes": {"type": "array"}}}
PROMPT = "A letter to a friend: "
CHAT = [{"role": "user", "content": "Tell a long story as JSON."}]
PATTERNS = (r'"[^"]*": [0-9]{4}', r"a|b[0-9]{20}", r"(one|two|three)( (and|or) (one|two|three))+\.")


@pytest.mark.parametrize(
    ("jumps", "temperature"),
    [
        ("canonical", 0.0),
        ("off", 1.0),
        pytest.param("canonical", 1.0, marks=pytest.mark.full),
        pytest.param("off", 0.0, marks=pytest.mark.full),
    ],
)
async def test_every_answer_is_whole(server: Server, temperature: float, jumps: str) -> None:
    async with AsyncClient(server.ring) as client:

        async def check(limit: int, fields: dict[str, Any], seed: int) -> None:
            sampling = {
                **{"max_new_tokens": limit, "temperature": temperature, "seed": seed},
                **{"close": True, "jump_forward": jumps, **fields},
            }
            output = await client.generate(PROMPT, sampling=sampling)
            assert output.finish is not None and output.finish.type == "stop", (sampling, output)
            assert output.completion_tokens <= limit
            if "regex" in fields:
                assert re.fullmatch(fields["regex"], output.text, re.ASCII)
            else:
                assert isinstance(json.loads(output.text), dict)

        wishes: list[dict[str, Any]] = [{"regex": pattern} for pattern in PATTERNS]
        wishes += [{"json_schema": json.dumps(schema)} for schema in (LETTER, OPEN)]
        limits = (16, 17, 20, 24, 40)
        await asyncio.gather(
            *[check(limit, wish, seed) for limit in limits for seed in (1, 2) for wish in wishes]
        )


@pytest.mark.full
@pytest.mark.parametrize("over_http", [False, pytest.param(True, marks=pytest.mark.full)])
async def test_it_is_told_and_can_be_turned_off(server: Server, over_http: bool) -> None:
    schema = json.dumps(LETTER)
    sampling = {"max_new_tokens": 24, "temperature": 0, "json_schema": schema, "close": True}
    async with AsyncClient(server.url if over_http else server.ring) as client:
        closed = await client.generate(PROMPT, sampling=sampling)
        cut = await client.generate(PROMPT, sampling=sampling | {"close": False})
        whole = await client.generate(PROMPT, sampling={**sampling, "max_new_tokens": 2000})
        assert closed.finish is not None and closed.finish.closed and closed.finish.steered > 0
        assert cut.finish is not None and (cut.finish.type, cut.finish.steered) == ("length", 0)
        same = 0
        while closed.output_ids[same] == cut.output_ids[same]:
            same += 1
        assert same >= 8
        assert whole.finish is not None and whole.finish.type == "stop"
        samples: Any = await client.generate(PROMPT, sampling={**sampling, "n": 4})
        assert all(list(json.loads(sample.text)) == [*LETTER["properties"]] for sample in samples)


async def test_a_limit_below_every_text_is_refused_with_both_numbers(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        for limit in (1, 4):
            sampling = {"regex": "[0-9]{30}", "max_new_tokens": limit, "close": True}
            with pytest.raises(RequestError, match=rf"max_new_tokens \({limit}\) is less than the"):
                await client.generate(PROMPT, sampling=sampling)
        with pytest.raises(RequestError, match="close needs a constraint"):
            await client.generate(PROMPT, sampling={"close": True})


async def test_over_http(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "letter", "schema": LETTER}}
    tool = {
        "type": "function",
        "function": {"name": "send", "parameters": {**LETTER, "required": ["subject"]}},
    }
    body = {"messages": CHAT, "max_tokens": 40, "temperature": 0}
    async with httpx2.AsyncClient(timeout=120, base_url=server.url) as http:
        asked = {**body, "response_format": form, "max_tokens": 16}
        answer = (await http.post("/v1/chat/completions", json=asked)).json()
        choice = answer["choices"][0]
        assert list(json.loads(choice["message"]["content"])) == [*LETTER["properties"]]
        assert choice["finish_reason"] == "stop" and choice["closed"] and choice["steered"] > 0
        some = {**body, "response_format": {"type": "json_object"}, "max_tokens": 8}
        choice = (await http.post("/v1/chat/completions", json=some)).json()["choices"][0]
        assert isinstance(json.loads(choice["message"]["content"]), dict)
        cut = {**asked, "close": False}
        choice = (await http.post("/v1/chat/completions", json=cut)).json()["choices"][0]
        assert choice["finish_reason"] == "length" and "closed" not in choice
        called = {**body, "tools": [tool], "tool_choice": "required"}
        choice = (await http.post("/v1/chat/completions", json=called)).json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls", choice
        (call,) = choice["message"]["tool_calls"]
        assert "subject" in json.loads(call["function"]["arguments"])
        params = {"regex": "[0-9]{30}", "max_new_tokens": 4, "close": True}
        refused = await http.post("/generate", json={"text": "a", "sampling_params": params})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "sampling_params.max_new_tokens"


def test_a_program_never_gets_half_a_value(server: Server) -> None:
    @sgl.function
    def judge(s: Any, essay: str) -> Any:
        s += f"An essay: {essay}\nIts review: "
        s += sgl.gen("review", schema=LETTER, max_tokens=24, temperature=1)

    backend = sgl.RuntimeEndpoint(server.url)
    states = judge.run_batch([{"essay": "a" * i} for i in range(1, 9)], backend=backend)
    assert all(list(state["review"]) == [*LETTER["properties"]] for state in states)
    backend.close()


def shortened(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "max_tokens": min(40, fields["max_tokens"])}


@pytest.mark.full
def test_the_examples_hold_with_40_tokens(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gen = sgl.gen
    monkeypatch.setattr(sgl, "gen", lambda *given, **fields: gen(*given, **shortened(fields)))
    backend = sgl.RuntimeEndpoint(server.url)
    for seed in range(6):
        options: dict[str, Any] = {"seed": seed, "temperature": float(seed % 2)}
        people = json_extraction.extract.run(json_extraction.TEXT, backend=backend, **options)
        assert isinstance(people["person"], json_extraction.Person)
        essays = essay_judge.judge.run(essay_judge.ESSAY, backend=backend, **options)
        assert re.fullmatch(essay_judge.VERDICT, essays["verdict"])
    backend.close()
