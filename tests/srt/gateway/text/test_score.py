"""/score_choices over a fake client, by plain HTTP and through `AsyncClient`'s HTTP transport."""

import asyncio
import math
from typing import Any, cast

import httpx2
import pytest
from msgspec.structs import replace

from srt.client.generation import ChoiceScore, ScoreOutput, ScoreRequest
from srt.client.http.client import HttpClient
from srt.client.request_fields import checked_score
from srt.gateway.app import app_of, gateway_over
from srt.wire.errors import CONFLICT, OVERLOADED, RequestError, RingError
from srt.wire.sampling import Scoring
from tests.fakes import FakeClient
from tests.srt.gateway.setup import INFO, VOCAB, error_of, in_process, served

BODY: dict[str, Any] = {"text": "a b", "continuations": [" c", [4, 5]]}


async def test_the_answer() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/score_choices", json=BODY | {"rid": "s1", "cache_salt": "x"})
    body = response.json()
    assert body.pop("e2e_latency") >= 0
    first, second = (choice.pop("probability") for choice in body["choices"])
    assert first + second == pytest.approx(1.0)
    assert first / second == pytest.approx(math.e)
    assert body == {
        "id": "s1",
        "choices": [
            {
                "index": 0,
                "token_ids": [0, 1],
                "logprobs": [-0.5, 0.0],
                "total_logprob": -0.5,
                "mean_logprob": -0.25,
            },
            {
                "index": 1,
                "token_ids": [1, 2],
                "logprobs": [-0.5, -1.0],
                "total_logprob": -1.5,
                "mean_logprob": -0.75,
            },
        ],
        "start": 2,
        "prompt_tokens": 3,
        "cached_tokens": 3,
        "computed_tokens": 9,
    }
    asked = ScoreRequest(text="a b", continuations=[" c", [4, 5]], cache_salt="x", rid="s1")
    assert client.scores == [replace(asked, tenant="ip:127.0.0.1")]


async def test_every_score_has_a_rid_of_its_own() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        ids = [(await http.post("/score_choices", json=BODY)).json()["id"] for _ in range(2)]
    assert ids[0] != ids[1] and [score.rid for score in client.scores] == ids


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a"}, "continuations"),
        ({"text": "a", "continuations": "b"}, "continuations"),
        ({"text": "a", "continuations": [1]}, "continuations[0]"),
        ({"text": "a", "continuations": ["b", [-1]]}, "continuations[1][0]"),
        ({"text": ["a"], "continuations": ["b"]}, "text"),
        ({"input_ids": ["a"], "continuations": ["b"]}, "input_ids[0]"),
        ({"text": "a", "continuations": ["b"] * 1025}, "continuations"),
        (BODY | {"choices": ["b"]}, "choices"),
        (BODY | {"rid": ""}, "rid"),
    ],
)
async def test_bad_bodies_are_refused_by_name(body: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/score_choices", json=body)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert client.scores == []


async def test_an_overloaded_server_refuses() -> None:
    client = FakeClient()
    client.error = RequestError("too much", code=OVERLOADED, retryable=True)
    async with in_process(client) as http:
        response = await http.post("/score_choices", json=BODY)
    assert response.status_code == 429 and error_of(response)["retryable"]


async def test_a_client_that_leaves_ends_its_score() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client) as server, httpx2.AsyncClient(base_url=server.url) as http:
        waiting = asyncio.ensure_future(http.post("/score_choices", json=BODY | {"rid": "s1"}))
        await client.wait_submitted(1)
        waiting.cancel()
        await client.wait_aborted(1)
        assert client.aborted == ["s1"]
        after = await http.post("/abort_request", json={"abort_all": True})
    assert after.json() == {"aborted": []}


async def test_abort_request_finds_a_score() -> None:
    client = FakeClient()
    client.hold.clear()
    async with served(client) as server, httpx2.AsyncClient(base_url=server.url) as http:
        waiting = asyncio.ensure_future(http.post("/score_choices", json=BODY | {"rid": "s1"}))
        await client.wait_submitted(1)
        abort = await http.post("/abort_request", json={"rid": "s1"})
        assert (abort.json(), client.aborted) == ({"aborted": ["s1"]}, ["s1"])
        client.error = RequestError("the request was aborted", code=CONFLICT)
        client.hold.set()
        assert (await waiting).status_code == 409


# ---- /v1/score -----------------------------------------------------------------------------------

LABELS: dict[str, Any] = {"query": "q ", "items": ["a", "b c"], "label_token_ids": [2, 1, 3]}


async def test_labels_behind_each_item() -> None:
    """The fake's id n has the log-probability -n."""
    client = FakeClient(("x",))
    async with in_process(client) as http:
        body = LABELS | {"rid": "s", "cache_salt": "x", "model": "tiny", "user": "someone"}
        answer = (await http.post("/v1/score", json=body)).json()
        soft = (await http.post("/v1/score", json=LABELS | {"apply_softmax": True})).json()
    assert answer["scores"] == [[pytest.approx(math.exp(-i)) for i in (2, 1, 3)]] * 2
    assert sum(soft["scores"][0]) == pytest.approx(1.0)
    assert soft["scores"][0][1] / soft["scores"][0][0] == pytest.approx(math.e)
    assert (answer["object"], answer["model"], answer["id"]) == ("scoring", "tiny", "s")
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == 5
    first = client.requests[0]
    assert (first.text, first.rid, first.cache_salt) == ("q a", "s_0", "x")
    assert first.scoring == Scoring(ids=[2, 1, 3])
    assert first.sampling.max_new_tokens == 1 and first.sampling.ignore_eos


@pytest.mark.parametrize(
    ("query", "items", "item_first", "prompts"),
    [
        ("q ", "a", False, ["q a"]),
        ("q", ["a ", "b "], True, ["a q", "b q"]),
        ([1, 2], [[3], [4, 5]], False, [[1, 2, 3], [1, 2, 4, 5]]),
        ([1], [[3]], True, [[3, 1]]),
    ],
)
async def test_query_and_items_are_joined(
    query: Any, items: Any, item_first: bool, prompts: list[Any]
) -> None:
    client = FakeClient()
    body = {"query": query, "items": items, "item_first": item_first, "label_token_ids": [1]}
    async with in_process(client) as http:
        assert (await http.post("/v1/score", json=body)).status_code == 200
    assert [r.text or r.input_ids for r in client.requests] == prompts


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [-1]}, "label_token_ids[0]"),
        ({"items": []}, "items"),
        ({"items": ["a"] * 1025}, "items"),
        ({"items": ["a", [1]]}, "items[1]"),
        ({"query": [1]}, "items[0]"),
        ({"query": None}, "query"),
        ({"text_1": "x"}, "text_1"),
    ],
)
async def test_bad_bodies_of_score(fields: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/v1/score", json=LABELS | fields)
    assert (response.status_code, error_of(response)["param"]) == (400, param)
    assert client.requests == []


async def test_a_refused_item_is_named() -> None:
    client = FakeClient()
    client.refusals[1] = RequestError(" is too long", at="text")
    async with in_process(client) as http:
        error = error_of(await http.post("/v1/score", json=LABELS))
    assert (error["param"], error["message"]) == ("items[1]", "items[1] is too long")
    assert client.aborted == ["r0"]


async def test_embeddings_are_refused() -> None:
    async with in_process(FakeClient()) as http:
        response = await http.post("/v1/embeddings", json={"input": "a", "model": "tiny"})
    assert response.status_code == 400 and "embeddings" in error_of(response)["message"]


# ---- the HTTP transport --------------------------------------------------------------------------


def over_http(client: FakeClient) -> HttpClient:
    app = app_of(gateway_over(client, INFO, VOCAB))
    return HttpClient("http://gateway", transport=httpx2.ASGITransport(app=cast(Any, app)))


async def test_the_transport_gives_what_the_ring_gave() -> None:
    client = FakeClient()
    request = ScoreRequest(input_ids=[1, 2], continuations=["é", [7]], rid="r", cache_salt="s")
    async with over_http(client) as http:
        output = await http.score(request)
    assert client.scores == [replace(request, tenant="ip:127.0.0.1")]
    assert output == await FakeClient().score(request)


async def test_the_transport_raises_what_the_ring_raised() -> None:
    client = FakeClient()
    request = ScoreRequest(text="a", continuations=["b"])
    async with over_http(client) as http:
        client.error = RequestError("no", param="continuations[0]")
        with pytest.raises(RequestError) as bad:
            await http.score(request)
        client.error = RingError("a part died")
        with pytest.raises(RingError):
            await http.score(request)
    assert bad.value.info == RequestError("no", param="continuations[0]").info


# ---- what a client checks, and what it gets ------------------------------------------------------


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"continuations": "ab"}, "continuations"),
        ({"continuations": 3}, "continuations"),
        ({"continuations": ["a", None]}, "continuations[1]"),
        ({"continuations": ["a", ["x"]]}, "continuations[1]"),
        ({"continuations": ["\ud800"]}, "continuations[0]"),
        ({"continuations": ["a"], "text": 3}, "text"),
        ({"continuations": ["a"], "input_ids": "x"}, "input_ids"),
        ({"continuations": ["a"], "stream": True}, "stream"),
    ],
)
def test_wrong_fields_are_named(request_fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        checked_score(request_fields)
    assert error.value.info.param == param


def test_totals_means_and_probabilities() -> None:
    choices = [
        ChoiceScore([1, 2, 3], [None, -1.0, -2.0]),
        ChoiceScore([], []),
        ChoiceScore([1], [None]),
    ]
    assert [(choice.total, choice.mean) for choice in choices] == [(-3.0, -1.5), (0, 0), (0, 0)]
    far = ScoreOutput("r", [ChoiceScore([1], [-2000.0]), ChoiceScore([2], [-2000.0])], 1, 1, 0, 4)
    assert far.probabilities == [0.5, 0.5]


async def test_parts_of_the_prefix_that_are_text() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        body = {"text": "a b", "continuations": ["c"], "literal_spans": [[2, 3]]}
        assert (await http.post("/score_choices", json=body)).status_code == 200
        wrong = await http.post("/score_choices", json={**body, "literal_spans": [[2]]})
    assert [tuple(span) for span in client.scores[0].literal_spans] == [(2, 3)]
    assert wrong.status_code == 400
    assert str(error_of(wrong)["param"]).startswith("literal_spans")
