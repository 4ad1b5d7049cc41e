"""One fact of an answer, on its way to everybody who may want to know it. Programs have it in
`tests/srt/gateway/programs/test_reading.py`."""

from typing import Any

import pytest

import lang as sgl
from srt.client.generation import Request
from srt.client.http.client import HttpClient
from srt.client.ring.generation import RingSamples
from srt.wire.answer_meta import AnswerMeta
from srt.wire.messages import Finish, Output
from tests.fakes import FakeClient
from tests.lang.test_images import run_at
from tests.srt.gateway.setup import in_process, served

FACTS: dict[str, Any] = {"retractions": 2}
DRAFTS = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
CHAT = [{"role": "user", "content": "a"}]


@pytest.fixture
def fake() -> FakeClient:
    made = FakeClient()
    made.facts = FACTS
    return made


async def test_every_route_shows_it(fake: FakeClient) -> None:
    async def answer(path: str, **body: Any) -> Any:
        return (await http.post(path, json=body)).json()

    async with in_process(fake) as http:
        native = await answer("/generate", text="a")
        text = await answer("/v1/completions", model="tiny", prompt="a")
        chat = await answer("/v1/chat/completions", model="tiny", messages=CHAT, n=2)
        response = await answer("/v1/responses", model="tiny", input="a", store=False)
    assert native["meta_info"]["retractions"] == 2
    assert text["usage"]["completion_tokens_details"] == DRAFTS | {"retractions": 2}
    assert chat["usage"]["completion_tokens_details"] == DRAFTS | {"retractions": 4}
    assert response["usage"]["output_tokens_details"] == {"retractions": 2, "reasoning_tokens": 0}


async def test_the_http_client_has_it(fake: FakeClient) -> None:
    async with served(fake) as server, HttpClient(server.url) as client:
        generation = await client.submit(Request(text="a"))
        assert (await generation.result()).retractions == 2


async def test_the_ring_client_has_it() -> None:
    samples = RingSamples("r", "7", Request(text="a"), lambda _: None, None)  # type: ignore[arg-type]
    (generation,) = samples.generations
    generation.take(Output("7", "x", meta=AnswerMeta(**FACTS), finish=Finish("stop")))
    assert (await generation.result()).retractions == 2


async def test_a_program_in_lang_has_it(fake: FakeClient) -> None:
    def body(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=3)

    state = await run_at(fake, body)
    assert (state.get_meta_info("x") or {})["retractions"] == 2
