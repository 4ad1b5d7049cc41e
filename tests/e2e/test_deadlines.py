"""`timeout_ms` on the ring and on HTTP, and clients that leave the queue, on a real server."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import httpx2

from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.wire.errors import TIMED_OUT, RequestError
from tests.e2e.server import Server
from tests.waiting import SOON_S

PROMPT = "Once upon a time"
LONG = {"max_new_tokens": 8000, "temperature": 0.0, "ignore_eos": True}
TIMEOUTS_MS = (2000, 10_000, 50_000)  # a busy machine may have nothing after the first
# No machine has computed it within a millisecond.
LONG_PROMPT = "Once upon a time. " * 600


async def outcome(
    url: str, timeout_ms: int, prompt: str = PROMPT, outputs: int = 8000
) -> GenerateOutput | RequestError:
    async with AsyncClient(url) as client:
        try:
            sampling = LONG | {"max_new_tokens": outputs}
            output: GenerateOutput = await client.generate(
                prompt, sampling=sampling, timeout_ms=timeout_ms
            )
        except RequestError as error:
            return error
        return output


async def completion(
    server: Server, timeout_ms: int, prompt: str = PROMPT, outputs: int = 8000
) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=server.url, timeout=2 * SOON_S) as http:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": outputs, "ignore_eos": True}
        body["timeout_ms"] = timeout_ms
        return await http.post("/v1/completions", json=body)


async def test_requests_end_with_what_they_have(server: Server) -> None:
    for timeout_ms in TIMEOUTS_MS:
        ring, http, answer = await asyncio.gather(
            outcome(server.ring, timeout_ms),
            outcome(server.url, timeout_ms),
            completion(server, timeout_ms),
        )
        if not isinstance(ring, RequestError) and not isinstance(http, RequestError):
            if answer.status_code == 200:
                break
    for output in (ring, http):
        assert isinstance(output, GenerateOutput), output
        assert output.finish is not None
        assert output.finish.type == "timeout"
        assert 0 < output.completion_tokens < 8000
    # OpenAI's API has no name for a time-out.
    assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_requests_that_have_nothing_fail(server: Server) -> None:
    for url in (server.ring, server.url):
        error = await outcome(url, 1, f"{url}: {LONG_PROMPT}", 100)
        assert isinstance(error, RequestError)
        assert (error.info.code, error.info.retryable) == (TIMED_OUT, True)
    late = await completion(server, 1, f"Late: {LONG_PROMPT}", 100)
    assert (late.status_code, late.json()["error"]["code"]) == (504, TIMED_OUT)
    wrong = await completion(server, 10**9)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "timeout_ms")


async def until(server: Server, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The scheduler's statistics, once the condition holds."""
    async with asyncio.timeout(SOON_S):
        while not holds(stats := await asyncio.to_thread(server.stats)):
            await asyncio.sleep(0.05)
    return stats


async def test_who_leaves_the_queue_costs_nothing(server: Server) -> None:
    """As many run as may; of five that wait, from the ring and HTTP, nothing is computed."""
    places = httpx2.get(server.url + "/server_info").json()["max_running_requests"]

    async def ask(url: str, text: str, samples: int = 1) -> None:
        async with AsyncClient(url) as client:
            sampling = LONG | {"max_new_tokens": 400, "n": samples, "speculative": "off"}
            await client.generate(PROMPT + text, sampling=sampling)

    holder = asyncio.create_task(ask(server.url, "", places))
    full = await until(server, lambda stats: stats["num_running_reqs"] == places)
    later = full["generation_tokens_total"] + 3 * places  # by then all prompts are computed
    before = await until(server, lambda stats: stats["generation_tokens_total"] >= later)
    urls = [server.url, server.ring] * 2 + [server.url]
    waiting = [asyncio.create_task(ask(url, f" {i}" * 50)) for i, url in enumerate(urls)]
    await until(server, lambda stats: stats["num_queue_reqs"] == len(urls))
    for task in waiting:
        task.cancel()
    after = await until(server, lambda stats: stats["num_queue_reqs"] == 0)
    assert after["num_running_reqs"] == places
    total = "computed_prompt_tokens_total"
    assert after[total] == before[total]
    holder.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await holder
    await asyncio.to_thread(server.wait_idle)
