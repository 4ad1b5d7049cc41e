"""Captures on every route: at the end of an answer, in characters of the text that it shows."""

from typing import Any

import pytest

from lang.backends.openai_answer import Answer
from srt.client.generation import Request
from srt.client.http.client import HttpClient
from srt.wire.constraint import Capture
from srt.wire.messages import ChatMessage
from srt.wire.sampling import SamplingParams
from tests.fakes import FakeClient
from tests.srt.gateway.setup import in_process, served, sse_payloads

FOUND = [Capture("greeting", 0, 5, "Hello"), Capture("who", 7, 12, "wörld")]
PATTERN = "(?P<greeting>Hello), (?P<who>w.rld)"
SHOWN = [
    {"name": "greeting", "start": 0, "end": 5, "text": "Hello"},
    {"name": "who", "start": 7, "end": 12, "text": "wörld"},
]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": "a b", "sampling_params": {"regex": PATTERN}}),
    ("/v1/completions", {"prompt": "a b", "regex": PATTERN}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "regex": PATTERN}),
]


def fake(captures: list[Capture] | None = FOUND, **fields: Any) -> FakeClient:
    client = FakeClient(**fields)
    client.captures = captures
    return client


def place(answer: Any) -> Any:
    """The part of an answer that has the captures."""
    return answer["meta_info"] if "meta_info" in answer else answer["choices"][0]


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_they_are_at_the_end(route: str, body: dict[str, Any], stream: bool) -> None:
    async with in_process(fake()) as http:
        response = await http.post(route, json=body | {"stream": stream})
    answers = sse_payloads(response.text) if stream else [response.json()]
    *others, last = [place(answer) for answer in answers]
    assert last["captures"] == SHOWN
    assert last["finish_reason"]
    assert not any("captures" in other for other in others)


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("captures", [None, []])
async def test_none_and_an_empty_list(
    route: str, body: dict[str, Any], captures: list[Capture] | None
) -> None:
    """Absent if the constraint has no names; empty if no named part has ended."""
    async with in_process(fake(captures)) as http:
        answer = place((await http.post(route, json=body)).json())
    assert answer.get("captures") == captures


@pytest.mark.parametrize("stream", [False, True])
async def test_behind_an_echo(stream: bool) -> None:
    body = {"prompt": "a b", "echo": True, "regex": PATTERN, "stream": stream}
    async with in_process(fake()) as http:
        response = await http.post("/v1/completions", json=body)
    answers = sse_payloads(response.text) if stream else [response.json()]
    text = "".join(answer["choices"][0]["text"] for answer in answers)
    captures = place(answers[-1])["captures"]
    assert [text[c["start"] : c["end"]] for c in captures] == ["Hello", "wörld"]


@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_content_behind_reasoning(stream: bool) -> None:
    pieces = ("<think>Hm.</th", "ink>\n\nHello, ", "wörld")
    text = "".join(pieces)
    captures = [
        Capture("all", text.index("\n"), len(text), text[text.index("\n") :]),
        Capture("who", text.index("w"), len(text), "wörld"),
        Capture("thought", 7, 10, "Hm."),
        Capture("reasoning", 0, text.index("\n"), text[: text.index("\n")]),
    ]
    _, body = ROUTES[-1]
    async with in_process(fake(captures, pieces=pieces), reasoning=True) as http:
        response = await http.post("/v1/chat/completions", json=body | {"stream": stream})
    answers = sse_payloads(response.text) if stream else [response.json()]
    choices = [answer["choices"][0] for answer in answers]
    said = [
        choice.get("delta") or choice["message"] for choice in choices if "captures" not in choice
    ]
    said += [choices[-1]["delta"] if stream else choices[-1]["message"]]
    content = "".join(part.get("content") or "" for part in said)
    found = choices[-1]["captures"]
    assert [c["name"] for c in found] == ["all", "who"]
    assert [content[c["start"] : c["end"]] for c in found] == [c["text"] for c in found]
    assert found[0]["text"] == content and found[1]["text"] == "wörld"


@pytest.mark.parametrize("prompt", [{"text": "a"}, {"messages": [ChatMessage("user", "a")]}])
@pytest.mark.parametrize("stream", [False, True])
async def test_our_client_reads_them(prompt: dict[str, Any], stream: bool) -> None:
    asked = Request(sampling=SamplingParams(regex=PATTERN), stream=stream, **prompt)
    async with served(fake()) as server, HttpClient(server.url) as http:
        output = await (await http.submit(asked)).result()
    assert output.captures == FOUND


async def test_the_language_reads_them_from_openais_routes() -> None:
    _, body = ROUTES[1]
    async with in_process(fake()) as http:
        payload = (await http.post("/v1/completions", json=body)).json()
    answer = Answer(has_logprobs=False)
    answer.take(payload)
    assert answer.completion(0.0).meta["captures"] == SHOWN
