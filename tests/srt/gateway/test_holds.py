"""No body, whatever is in it, and no answer holds the gateway's loop for long."""

import gc
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from bench.hostile_bodies import BODIES
from srt.client.generation import GenerateOutput, Request
from tests.fakes import FakeClient, FakeGeneration
from tests.running.profiles import some
from tests.srt.gateway.holds import Holds, watched_loop
from tests.srt.gateway.setup import error_of, in_process

# In CPU time; 0.05 s on a quiet machine. Decoded in one go, the worst bodies take 4 s.
MAX_HOLD_S = 0.25
ATTEMPTS = 3  # in a virtual machine, CPU time includes what the host takes away
ANSWERED = {
    "130,000 characters to tokenize",
    "1024 texts to tokenize",
    "slow numbers in a metadata",
    "escapes",
    "begins of calls",
    "10,000 calls",
    "a long reasoning",
    "2 MB of rid",
}


@pytest.fixture(autouse=True, scope="module")
def _as_in_the_gateway() -> None:
    """The garbage collector ignores what the tests have loaded, from here to their end."""
    gc.collect()
    gc.freeze()


async def shortest_hold(
    client: type[FakeClient], path: str, **content: Any
) -> tuple[httpx2.Response, Holds]:
    """The answer to a request, and the best of a few attempts' longest holds."""
    for _ in range(ATTEMPTS):
        async with in_process(client()) as http, watched_loop() as holds:
            answer = await http.post(path, **content)
        if holds.longest_s < MAX_HOLD_S:
            break
    return answer, holds


class Pieces:
    """A body in pieces of 64 KiB, which can be read several times."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), 2**16):
            yield self.data[start : start + 2**16]


@pytest.mark.parametrize("name", some(BODIES, *[*BODIES][::3]))
async def test_no_body_holds_the_loop(name: str) -> None:
    path, data = BODIES[name].path, BODIES[name].make()
    answer, holds = await shortest_hold(FakeClient, path, content=Pieces(data))
    assert holds.longest_s < MAX_HOLD_S, holds.what
    if name in ANSWERED:
        assert answer.status_code == 200
    else:
        assert answer.status_code in (400, 413)
        assert "Traceback" not in error_of(answer)["message"]


LONG = 4000  # tokens of an answer
TOP = 20


class LongGeneration(FakeGeneration):
    """Ends at once with LONG tokens, and the likeliest tokens at each place, in the prompt too."""

    async def result(self) -> GenerateOutput:
        self.finished = True
        row = [(-0.5 - i, 100 + i) for i in range(TOP)]
        return GenerateOutput(
            rid=self.rid,
            text="a" * LONG,
            delta="",
            output_ids=[100] * LONG,
            prompt_tokens=LONG,
            cached_tokens=0,
            completion_tokens=LONG,
            finish=self.client.finish,
            output_logprobs=[-0.5] * LONG,
            prompt_logprobs=[(-0.5, 100)] * LONG,
            output_top_logprobs=[row] * LONG,
            prompt_top_logprobs=[row] * LONG,
        )


class LongAnswers(FakeClient):
    async def submit_samples(self, request: Request) -> list[FakeGeneration]:
        samples = await super().submit_samples(request)
        self.generations = [LongGeneration(self, request, sample.rid) for sample in samples]
        return self.generations


DETAILS = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": TOP}
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "sampling_params": {"n": 4}, **DETAILS}),
        ("/v1/completions", {"prompt": "a", "n": 4, "logprobs": TOP, "prompt_logprobs": TOP}),
        ("/v1/completions", {"prompt": "a", "n": 2, "logprobs": TOP, "echo": True}),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "n": 4, "logprobs": True, "top_logprobs": TOP},
        ),
    ],
)
async def test_no_answer_holds_the_loop(path: str, body: dict[str, Any]) -> None:
    answer, holds = await shortest_hold(LongAnswers, path, json=body)
    assert answer.status_code == 200 and len(answer.content) > 4 * LONG * TOP
    assert holds.longest_s < MAX_HOLD_S, holds.what
