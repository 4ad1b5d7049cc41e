"""`timeout_ms` by every way in, on a real server."""

import asyncio

import httpx

from srt.client import AsyncClient
from srt.errors import TIMED_OUT, RequestError
from srt.generation import GenerateOutput
from tests.e2e.server import Server

PROMPT = "Once upon a time"
LONG = {"max_new_tokens": 8000, "temperature": 0.0, "ignore_eos": True}
TIMEOUT_MS = 8000


async def outcome(url: str, timeout_ms: int) -> GenerateOutput | RequestError:
    async with AsyncClient(url) as client:
        try:
            output: GenerateOutput = await client.generate(
                PROMPT, sampling=LONG, timeout_ms=timeout_ms
            )
        except RequestError as error:
            return error
        return output


async def completion(server: Server, timeout_ms: int) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        body = {"prompt": PROMPT, "max_tokens": 8000, "ignore_eos": True, "timeout_ms": timeout_ms}
        return await http.post("/v1/completions", json=body)


async def test_requests_end_with_what_they_have(server: Server) -> None:
    ring, http, answer = await asyncio.gather(
        outcome(server.ring, TIMEOUT_MS),
        outcome(server.url, TIMEOUT_MS),
        completion(server, TIMEOUT_MS),
    )
    for output in (ring, http):
        assert isinstance(output, GenerateOutput), output
        assert output.finish is not None
        assert output.finish.type == "timeout"
        assert 0 < output.completion_tokens < 8000
    # OpenAI's clients know no word for it.
    assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_requests_that_have_nothing_fail(server: Server) -> None:
    for url in (server.ring, server.url):
        error = await outcome(url, 1)
        assert isinstance(error, RequestError)
        assert (error.info.code, error.info.retryable) == (TIMED_OUT, True)
    late = await completion(server, 1)
    assert (late.status_code, late.json()["error"]["code"]) == (504, TIMED_OUT)
    wrong = await completion(server, 10**9)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "timeout_ms")
