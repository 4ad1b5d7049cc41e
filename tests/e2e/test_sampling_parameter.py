"""A parameter that all APIs share reaches the sampler from each of them.

With a `top_n_sigma` near 0 only the largest logit is left, however high the temperature is.
"""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

import lang as sgl
from srt import Engine
from srt.client.face import AsyncClient
from tests.e2e.server import Server

PROMPT = "The capital of France is"
GREEDY: dict[str, Any] = {"temperature": 0.0}
DRAWN: dict[str, Any] = {"temperature": 5.0, "top_n_sigma": 1e-6}


def posted(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = httpx2.post(server.url + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def native(server: Server, sampling: dict[str, Any]) -> Any:
    params = {**sampling, "max_new_tokens": 6}
    return posted(server, "/generate", {"text": PROMPT, "sampling_params": params})["text"]


def completion(server: Server, sampling: dict[str, Any]) -> Any:
    body = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 6, **sampling}
    return posted(server, "/v1/completions", body)["choices"][0]["text"]


def chat(server: Server, sampling: dict[str, Any]) -> Any:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": 6, **sampling}
    return posted(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def program(backend: Any, sampling: dict[str, Any]) -> str:
    def body(s: Any) -> None:
        s += PROMPT + sgl.gen("a", max_tokens=6, **sampling)

    with backend:
        text: str = sgl.function(body).run(backend=backend)["a"]
    return text


FACES: dict[str, Callable[[Server, dict[str, Any]], Any]] = {
    "native": native,
    "completions": completion,
    "chat": chat,
    "lang over the ring": lambda s, p: program(sgl.RuntimeEndpoint(s.ring), p),
    "lang over HTTP": lambda s, p: program(sgl.RuntimeEndpoint(s.url), p),
    "lang over OpenAI's routes": lambda s, p: program(
        sgl.OpenAI("smollm2", False, base_url=s.url + "/v1", dialect="sglang"), p
    ),
}


@pytest.mark.parametrize("name", FACES)
def test_routes_and_programs(server: Server, name: str) -> None:
    assert FACES[name](server, DRAWN) == FACES[name](server, GREEDY) != ""


@pytest.mark.parametrize("transport", ["ring", "url"])
async def test_the_client(server: Server, transport: str) -> None:
    async with AsyncClient(getattr(server, transport)) as client:
        drawn, greedy = [
            await client.generate(PROMPT, sampling={**sampling, "max_new_tokens": 6})
            for sampling in (DRAWN, GREEDY)
        ]
    assert drawn.text == greedy.text != ""


def test_the_engine(engine: Engine) -> None:
    drawn, greedy = (engine.generate(PROMPT, {**s, "max_new_tokens": 6}) for s in (DRAWN, GREEDY))
    assert drawn.text == greedy.text != ""
