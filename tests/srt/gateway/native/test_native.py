"""/generate and the server's operations, as SGLang's clients use them."""

import asyncio
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from srt.client.generation import GenerateOutput, Request
from srt.gateway.batch import MAX_REFUSAL_S
from srt.gateway.native.answers import NativeAnswers
from srt.wire.answer_meta import DraftCounts
from srt.wire.errors import CONTEXT_LENGTH, OVERLOADED, ErrorInfo, RequestError, RingError
from srt.wire.messages import JUMP_WINDOW_TOKENS, ChatMessage, ChatOptions, Finish, ToolSpec
from srt.wire.sampling import SamplingParams, Scoring
from tests.fakes import LOOK, READY, FakeClient
from tests.srt.gateway.setup import PAGE, error_of, in_process, sse_payloads


async def test_one_prompt() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a b c", "rid": "x1"})
    body = response.json()
    latency = body["meta_info"].pop("e2e_latency")
    assert latency >= 0
    assert body == {
        "text": "Hello, wörld",
        "output_ids": [100, 101, 102],
        "meta_info": {
            "id": "x1",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "cached_tokens": 3,
            "jump_forward_tokens": 0,
            "forward_passes": 3,
            "healed_tokens": 0,
            "routed_replica": 0,
        },
    }
    assert client.generations[0].closed


async def test_times_that_are_known_come_at_the_end() -> None:
    client = FakeClient()
    client.facts = {"queued_s": 0.0, "ttft_s": 0.25}  # it has no decode_s
    async with in_process(client) as http:
        whole = (await http.post("/generate", json={"text": "a"})).json()["meta_info"]
        streamed = await http.post("/generate", json={"text": "a", "stream": True})
    *before, last = [payload["meta_info"] for payload in sse_payloads(streamed.text)]
    for meta in (whole, last):
        assert (meta["queued_s"], meta["ttft_s"]) == (0.0, 0.25) and "decode_s" not in meta
    assert before and not any("queued_s" in meta or "ttft_s" in meta for meta in before)


async def test_what_guessing_did_has_sglangs_names() -> None:
    client = FakeClient()
    client.drafts = DraftCounts(verified=4, drafted=9, accepted=6)
    async with in_process(client) as http:
        meta = (await http.post("/generate", json={"text": "a"})).json()["meta_info"]
    assert (meta["spec_verify_ct"], meta["spec_accept_length"]) == (4, 2.5)
    assert (meta["spec_draft_token_num"], meta["spec_accept_token_num"]) == (9, 6)


async def test_put_is_post() -> None:
    async with in_process(FakeClient()) as http:
        assert (await http.put("/generate", json={"input_ids": [1, 2]})).status_code == 200


async def test_sampling_fields_reach_the_ring() -> None:
    client = FakeClient()
    sampling = {
        "max_new_tokens": 2,
        "min_new_tokens": 1,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"7": 2, "8": -1.5},
        "allowed_token_ids": [7, 8],
        "bad_words": ["no"],
        "stop": "END",
        "stop_token_ids": [7],
        "stop_regex": "E+",
        "no_stop_trim": True,
        "ignore_eos": True,
        "sampling_seed": 9,
        "skip_special_tokens": False,
    }
    body = {"text": "a", "sampling_params": sampling, "extra_key": "s"}
    async with in_process(client) as http:
        assert (await http.post("/generate", json=body)).status_code == 200
    assert client.requests[0].sampling == SamplingParams(
        max_new_tokens=2,
        min_new_tokens=1,
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=9,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={7: 2.0, 8: -1.5},
        allowed_token_ids=[7, 8],
        bad_words=["no"],
        stop=["END"],
        stop_token_ids=[7],
        stop_regex=["E+"],
        no_stop_trim=True,
        ignore_eos=True,
        skip_special_tokens=False,
    )
    assert client.requests[0].cache_salt == "s"


async def test_nulls_are_defaults_everywhere() -> None:
    client = FakeClient()
    sampling = {
        "stop": None,
        "regex": None,
        "n": None,
        "json_schema": None,
        "temperature": None,
    }
    body = {"text": "a", "input_ids": None, "sampling_params": sampling, "rid": None}
    async with in_process(client) as http:
        assert (await http.post("/generate", json=body)).status_code == 200
        body = {"text": "a", "sampling_params": None, "stream": None}
        assert (await http.post("/generate", json=body)).status_code == 200
    assert client.requests[0].sampling == client.requests[1].sampling
    assert client.requests[0].sampling.temperature is None
    assert client.requests[0].sampling.max_new_tokens == 128


async def test_what_the_sglang_language_sends() -> None:
    sampling = {
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "max_new_tokens": 0,
        "min_new_tokens": 0,
        "n": 1,
        "stop": [],
        "stop_token_ids": [],
        "stop_regex": [],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "regex": None,
        "json_schema": None,
    }
    client = FakeClient()
    client.finish = Finish("length")
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a", "sampling_params": sampling})
    body = response.json()
    assert body["text"] == "" and body["output_ids"] == []
    assert body["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


async def test_a_list_gives_a_list_in_order() -> None:
    client = FakeClient()
    body = {
        "text": ["a", "b c"],
        "sampling_params": [{"temperature": 0.1}, {"temperature": 0.2}],
        "rid": "q",
    }
    async with in_process(client) as http:
        answers = (await http.post("/generate", json=body)).json()
    assert [a["meta_info"]["id"] for a in answers] == ["q_0", "q_1"]
    assert [a["meta_info"]["prompt_tokens"] for a in answers] == [1, 2]
    assert [r.sampling.temperature for r in client.requests] == [0.1, 0.2]


async def test_lists_of_ids_and_logprobs() -> None:
    client = FakeClient()
    body = {"input_ids": [[1, 2, 3]], "return_logprob": True, "logprob_start_len": 0}
    async with in_process(client) as http:
        (answer,) = (await http.post("/generate", json=body)).json()
    meta = answer["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 0, None], [-0.25, 1, None]]
    assert meta["output_token_logprobs"] == [[-0.5, i, None] for i in (100, 101, 102)]
    assert client.requests[0].input_ids == [1, 2, 3]


async def test_all_kinds_of_logprobs_with_text() -> None:
    body = {
        "text": "a b c",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [3, 102],
        "return_text_in_logprobs": True,
        "sampling_params": {"max_new_tokens": 1},
    }
    async with in_process(FakeClient()) as http:
        meta = (await http.post("/generate", json=body)).json()["meta_info"]
    top = [[-0.5, 100, "Hello"], [-1.5, 101, ", "]]
    named = [[-3.0, 3, "t3"], [-102.0, 102, "wörld"]]
    assert meta["input_token_logprobs"] == [[None, 0, "t0"], [-0.25, 1, "t1"]]
    assert meta["output_token_logprobs"] == [[-0.5, 100, "Hello"]]
    assert (meta["input_top_logprobs"], meta["output_top_logprobs"]) == ([None, top], [top])
    assert meta["input_token_ids_logprobs"] == [None, named]
    assert meta["output_token_ids_logprobs"] == [named]
    assert meta["normalized_prompt_logprob"] == -0.25


class Asked:
    """Gives the texts of tokens, and records for which."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.tokens += ids
        return f"t{ids[0]}"


def test_entries_are_made_once_but_those_that_a_jump_may_replace() -> None:
    """Every event has all log-probabilities: time must not grow with the square of the length."""
    request = Request(
        text="a",
        sampling=SamplingParams(regex="a*"),
        scoring=Scoring(0, 1, [7]),
    )
    texts, steps = Asked(), 40
    ids: list[int] = []
    answers = NativeAnswers([request], 1, [], cast(Any, texts))
    for step in range(1, steps + 1):
        # A step replaces as many tokens as a jump may, and adds one.
        kept = max(0, step - 1 - JUMP_WINDOW_TOKENS)
        ids = [*ids[:kept], *range(1000 * step + kept, 1000 * step + step)]
        values = [-i / 1000 for i in ids]
        output = GenerateOutput(
            rid="r",
            text="",
            delta="",
            output_ids=ids,
            prompt_tokens=2,
            cached_tokens=0,
            completion_tokens=step,
            finish=Finish("stop") if step == steps else None,
            output_logprobs=values,
            prompt_logprobs=[(None, 1), (-0.5, 2)],
            output_top_logprobs=[[(value, i)] for value, i in zip(values, ids, strict=True)],
            prompt_top_logprobs=[None, [(-0.25, 3)]],
            output_id_logprobs=[[value] for value in values],
            prompt_id_logprobs=[None, [-0.75]],
        )
        meta = msgspec.json.decode(msgspec.json.encode(answers.response(0, output, 0.0).meta_info))
        told = [[value, i, f"t{i}"] for value, i in zip(values, ids, strict=True)]
        assert meta["output_token_logprobs"] == told
        assert meta["output_top_logprobs"] == [[entry] for entry in told]
        assert meta["output_token_ids_logprobs"] == [[[value, 7, "t7"]] for value in values]
        assert meta["input_token_logprobs"] == [[None, 1, "t1"], [-0.5, 2, "t2"]]
        assert meta["input_top_logprobs"] == [None, [[-0.25, 3, "t3"]]]
        assert meta["input_token_ids_logprobs"] == [None, [[-0.75, 7, "t7"]]]
    assert len(texts.tokens) <= 4 + 3 * steps * (JUMP_WINDOW_TOKENS + 2)
    assert texts.tokens.count(3) == 1  # of the prompt


async def test_what_was_not_asked_for_is_left_out() -> None:
    async with in_process(FakeClient()) as http:
        plain = (await http.post("/generate", json={"text": "a"})).json()
        body = {"text": "a", "return_logprob": True}
        scored = (await http.post("/generate", json=body)).json()
    assert "prompt_token_ids" not in plain and "index" not in plain
    assert not [name for name in plain["meta_info"] if "logprob" in name]
    assert scored["meta_info"]["input_token_logprobs"] == []
    assert scored["meta_info"]["normalized_prompt_logprob"] is None
    assert not [name for name in scored["meta_info"] if "top" in name or "ids" in name]


async def test_logprobs_per_prompt() -> None:
    client = FakeClient()
    body = {
        "text": ["a", "b", "c"],
        "return_logprob": [True, False, True],
        "logprob_start_len": [0, -1, 1],
        "top_logprobs_num": [1, 0, 2],
        "token_ids_logprob": [[5], None, [6, 7]],
        "cache_salt": ["x", "", "y"],
    }
    async with in_process(client) as http:
        answers = (await http.post("/generate", json=body)).json()
    assert [(r.scoring, r.cache_salt) for r in client.requests] == [
        (Scoring(0, 1, [5]), "x"),
        (None, ""),
        (Scoring(1, 2, [6, 7]), "y"),
    ]
    assert ["output_top_logprobs" in a["meta_info"] for a in answers] == [True, False, True]
    assert answers[2]["meta_info"]["output_token_ids_logprobs"][0] == [
        [-6.0, 6, None],
        [-7.0, 7, None],
    ]


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({}, -1),
        ({"logprob_start_len": None}, -1),
        ({"logprob_start_len": 2}, 2),
        ({"sampling_params": {"max_new_tokens": 0}}, 0),
        ({"sampling_params": {"max_new_tokens": 0}, "logprob_start_len": -1}, -1),
    ],
)
async def test_where_prompt_logprobs_start(fields: dict[str, Any], start: int) -> None:
    """They start at 0 for a request that generates nothing, which has no others."""
    client = FakeClient()
    async with in_process(client) as http:
        await http.post("/generate", json={"text": "a", "return_logprob": True} | fields)
    assert client.requests[0].scoring == Scoring(start)


async def test_prompt_ids_are_told_on_demand() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        body: dict[str, Any] = {"return_prompt_token_ids": True, "sampling_params": {"n": 2}}
        texts = (await http.post("/generate", json=body | {"text": ["ab c", "d"]})).json()
        ids = (await http.post("/generate", json={"input_ids": [5, 6]} | body)).json()
        refused = await http.post("/generate", json=body | {"text": ["a", "refused"]})
        stream = await http.post("/generate", json={"text": "ab", "stream": True} | body)
    assert [a["prompt_token_ids"] for a in texts] == [[1, 2, 1], [1, 2, 1], [1, 1], [1, 1]]
    assert [a["prompt_token_ids"] for a in ids] == [[5, 6], [5, 6]]
    assert (refused.status_code, error_of(refused)["param"]) == (400, "text[1]")
    assert all(p["prompt_token_ids"] == [1, 2] for p in sse_payloads(stream.text))


@pytest.mark.parametrize("text", ["a", ["a", "b"]])
async def test_samples_make_a_list_grouped_by_prompt(text: str | list[str]) -> None:
    client = FakeClient()
    body = {"text": text, "rid": "q", "sampling_params": {"n": 3}}
    async with in_process(client) as http:
        answers = (await http.post("/generate", json=body)).json()
    prompts = ["q"] if text == "a" else ["q_0", "q_1"]
    expected = [f"{prompt}/{i}" for prompt in prompts for i in range(3)]
    assert [a["meta_info"]["id"] for a in answers] == expected
    assert [r.rid for r in client.requests] == prompts
    assert all(r.sampling.n == 3 for r in client.requests)
    assert all(g.closed for g in client.generations)


async def test_streamed_samples_tell_their_index() -> None:
    body = {"text": ["a", "b c"], "stream": True, "sampling_params": {"n": 2}}
    async with in_process(FakeClient()) as http:
        response = await http.post("/generate", json=body)
    assert response.headers["srt-prompt-tokens"] == "3"
    last = {p["index"]: p["meta_info"] for p in sse_payloads(response.text)}
    assert [last[i]["id"] for i in range(4)] == ["r0/0", "r0/1", "r1/0", "r1/1"]
    assert [last[i]["prompt_tokens"] for i in range(4)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("interval", "server", "counts"),
    [(None, 1, [1, 2, 3, 4, 5]), (2, 1, [1, 3, 5]), (None, 3, [1, 4, 5]), (9, 3, [1, 5])],
)
async def test_stream_interval(interval: int | None, server: int, counts: list[int]) -> None:
    """The first token comes at once, then an event for each `interval` tokens, and the end; the
    default is the server's."""
    body = {"text": "p", "stream": True, "sampling_params": {"stream_interval": interval}}
    async with in_process(FakeClient("abcde"), stream_interval=server) as http:
        payloads = sse_payloads((await http.post("/generate", json=body)).text)
        chat = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        chunks = sse_payloads((await http.post("/v1/chat/completions", json=chat)).text)
    assert [p["meta_info"]["completion_tokens"] for p in payloads] == counts
    assert payloads[-1]["text"] == "abcde"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "abcde"


async def test_stream_is_cumulative_and_exact() -> None:
    async with in_process(FakeClient(("a", "é"))) as http:
        response = await http.post("/generate", json={"text": "p", "rid": "x", "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["srt-prompt-tokens"] == "1"
    first, second, done, rest = response.content.split(b"\n\n")
    assert first.startswith(b'data: {"text":"a","output_ids":[100],"meta_info":{"prompt_tokens":1,')
    assert b'"finish_reason":null' in first
    assert second.startswith('data: {"text":"aé","output_ids":[100,101],'.encode())
    assert b'"finish_reason":{"type":"stop","matched":2}' in second
    assert (done, rest) == (b"data: [DONE]", b"")


async def test_streamed_batch_tells_the_index() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": ["a", "b"], "stream": True})
    final: dict[int, Any] = {}
    for payload in sse_payloads(response.text):
        final[payload["index"]] = payload
    assert sorted(final) == [0, 1]
    assert all(p["text"] == "Hello, wörld" for p in final.values())


async def test_error_in_a_stream_is_one_event() -> None:
    client = FakeClient()
    client.error = RingError("the scheduler died")
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a", "stream": True})
    assert response.status_code == 200
    payloads = sse_payloads(response.text)
    assert payloads[-1]["error"]["code"] == "unavailable"
    assert payloads[-1]["error"]["retryable"] is True
    assert client.aborted == ["r0"]


async def test_defect_in_a_stream_tells_no_traceback() -> None:
    client = FakeClient()
    client.error = ValueError("secret detail")
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a", "stream": True})
    assert "secret" not in response.text
    assert sse_payloads(response.text)[-1]["error"]["request_id"]


async def test_abort_as_a_finish_reason() -> None:
    client = FakeClient()
    client.finish = Finish("abort", error=ErrorInfo("conflict", "aborted by the user"))
    async with in_process(client) as http:
        body = (await http.post("/generate", json={"text": "a"})).json()
    assert body["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "aborted by the user",
        "status_code": 409,
        "err_type": "conflict",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_item_aborts_the_others_and_is_named(stream: bool) -> None:
    client = FakeClient()
    client.refusals[2] = RequestError(" is too long", at="text", code=CONTEXT_LENGTH)
    body = {"text": ["a", "b", "c", "d"], "stream": stream}
    async with in_process(client) as http:
        response = await http.post("/generate", json=body)
    error = error_of(response)
    assert response.status_code == 400
    assert (error["param"], error["code"]) == ("text[2]", "context_length_exceeded")
    assert error["message"] == "text[2] is too long"
    assert sorted(client.aborted) == ["r0", "r1"]
    assert len(client.requests) == 3


async def test_overload_is_429_even_for_streams() -> None:
    client = FakeClient()
    client.refusals[0] = RequestError("queue full", code=OVERLOADED, retryable=True)
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a", "stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert error_of(response)["type"] == "rate_limit_error"


async def test_a_refusal_for_load_holds_for_those_that_come_at_once() -> None:
    client = FakeClient()
    client.refusals[0] = RequestError(
        "queue full", code=OVERLOADED, retryable=True, retry_after_s=2.1
    )
    async with in_process(client) as http:
        first = await http.post("/generate", json={"text": "a"})
        second = await http.post("/generate", json={"text": "b"})
        assert [first.status_code, second.status_code] == [429, 429]
        assert second.headers["retry-after"] == "3"
        assert len(client.requests) == 1
        await asyncio.sleep(2 * MAX_REFUSAL_S)
        third = await http.post("/generate", json={"text": "c"})
    assert third.status_code == 200


@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
async def test_a_refusal_for_load_does_not_hold_for_the_class_latency(route: str) -> None:
    """A caller's flood that is refused again and again keeps nothing of the class out; what is
    refused in the class holds for all."""
    client = FakeClient()
    error = RequestError("queue full", code=OVERLOADED, retryable=True, retry_after_s=2.1)
    client.refusals[0] = client.refusals[2] = error
    prompts: dict[str, dict[str, Any]] = {
        "/generate": {"text": "a"},
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    }
    found = []
    async with in_process(client) as http:
        for perf in ("throughput", "", "latency", "throughput", "latency", "latency", ""):
            response = await http.post(route, json=prompts[route] | {"hints": {"perf": perf}})
            found.append((response.status_code, len(client.requests)))
    assert found == [(429, 1), (429, 1), (200, 2), (429, 2), (429, 3), (429, 3), (429, 3)]


async def test_only_the_first_prompt_of_a_batch_is_judged_by_its_wait() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        await http.post("/generate", json={"text": ["a", "b", "c"]})
    assert [request.joined for request in client.requests] == [False, True, True]


async def test_ring_down_is_503() -> None:
    client = FakeClient()
    client.refusals[0] = RingError("starting")
    async with in_process(client) as http:
        response = await http.post("/generate", json={"text": "a"})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert error_of(response)["retryable"] is True


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1, [2]]}, "input_ids"),
        ({"input_ids": [1, -2]}, "input_ids[1]"),
        ({"input_ids": [2**40]}, "input_ids[0]"),
        ({"text": 5}, "text"),
        ({"text": ["a", 5]}, "text[1]"),
        ({"text": "a", "colour": "red"}, "colour"),
        ({"text": "a", "sampling_params": {"colour": 1}}, "sampling_params.colour"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"temperature": True}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"top_k": 2**70}}, "sampling_params.top_k"),
        ({"text": ["a"], "sampling_params": [{"top_p": 2}]}, "sampling_params[0].top_p"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"text": "a", "rid": ""}, "rid"),
        ({"text": "a", "cache_salt": "x", "extra_key": "y"}, "extra_key"),
        ({"text": "a", "top_logprobs_num": -1}, "top_logprobs_num"),
        ({"text": ["a", "b"], "top_logprobs_num": [1]}, "top_logprobs_num"),
        ({"text": "a", "token_ids_logprob": [1, [2]]}, "token_ids_logprob"),
        ({"text": "a", "token_ids_logprob": [[1], [2]]}, "token_ids_logprob"),
        ({"text": ["a", "b"], "extra_key": ["x"]}, "extra_key"),
        ({"text": "a", "image_data": "aGk="}, "image_data"),
        ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n"),
        (
            {"text": "a", "sampling_params": {"seed": 1, "sampling_seed": 2}},
            "sampling_params.seed",
        ),
        ({"text": "a", "sampling_params": {"n": 129}}, "sampling_params.n"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}, "sampling_params[1].n"),
        ({"text": "a", "sampling_params": {"logit_bias": {"x": 1}}}, "sampling_params.logit_bias"),
        ({"text": "a", "sampling_params": {"logit_bias": {"-1": 1}}}, "sampling_params.logit_bias"),
        (
            {"text": "a", "sampling_params": {"logit_bias": {"1000": 1}}},
            "sampling_params.logit_bias",
        ),
        ({"text": "a", "sampling_params": {"stop_regex": [""]}}, "sampling_params.stop_regex"),
        (
            {"text": "a", "sampling_params": {"stream_interval": 0}},
            "sampling_params.stream_interval",
        ),
        ({"text": "a", "sampling_params": {"speculative": "own"}}, "sampling_params.speculative"),
        ({"text": "a", "sampling_params": {"beam_width": 4}}, "sampling_params.beam_width"),
        ({"text": ["a"], "sampling_params": [{"regex": 5}]}, "sampling_params[0].regex"),
    ],
)
async def test_bad_fields_are_named(body: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/generate", json=body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert all(g.closed for g in client.generations)


async def test_flush_cache() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        assert (await http.get("/flush_cache")).status_code == 200
        assert (await http.post("/flush_cache?timeout=2.5")).status_code == 200
        client.busy = True
        busy = await http.post("/flush_cache")
        bad = await http.post("/flush_cache?timeout=nan")
    assert client.flushes == [0.0, 2.5, 0.0]
    assert (busy.status_code, error_of(busy)["code"]) == (409, "conflict")
    assert (bad.status_code, error_of(bad)["param"]) == (400, "timeout")


async def test_abort_needs_a_rid_and_ignores_unknown_ones() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        assert (await http.post("/abort_request", json={})).status_code == 400
        response = await http.post("/abort_request", json={"rid": "nobody"})
    assert response.json() == {"aborted": []}
    assert client.aborted == []


@pytest.mark.parametrize("path", ["/get_model_info", "/model_info"])
async def test_model_info(path: str) -> None:
    async with in_process(FakeClient()) as http:
        body = (await http.get(path)).json()
    assert body["model_path"] == "/models/tiny.gguf"
    assert body["served_model_name"] == "tiny"
    assert body["is_generation"] is True
    assert body["context_length"] == 2048


async def test_the_pool_is_as_large_as_a_scheduler_says() -> None:
    fake = FakeClient()
    async with in_process(fake) as http:
        for path in ("/model_info", "/server_info"):
            assert (await http.get(path)).json()["max_total_tokens"] == 4096
        fake.ring = msgspec.structs.replace(READY, pool_tokens=7777)
        for path in ("/model_info", "/server_info"):
            assert (await http.get(path)).json()["max_total_tokens"] == 7777


@pytest.mark.parametrize("path", ["/get_server_info", "/server_info"])
async def test_server_info_has_stats_and_no_secrets(path: str) -> None:
    async with in_process(FakeClient()) as http:
        response = await http.get(path)
    body = response.json()
    assert "sesame" not in response.text
    assert body["port"] == 30000 and body["version"] == "0.1"
    assert body["resolved_activations"] == "auto"
    assert body["internal_states"][0]["cached_tokens_total"] == 7
    assert body["ring"]["ready"] is True
    assert body["default_sampling_params"]["top_k"] == {"value": -1, "source": "neutral"}


async def test_the_tree_is_each_replicas() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        (replica,) = (await http.get("/tree", headers=PAGE)).json()["replicas"]
        assert replica == LOOK
        client.look = AsyncMock(side_effect=TimeoutError)  # type: ignore[method-assign]
        response = await http.get("/tree", headers=PAGE)
    assert response.status_code == 503 and "did not answer" in error_of(response)["message"]


async def test_parts_of_a_prompt_that_are_text() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        body = {"text": "a b", "literal_spans": [[0, 1], [2, 3]]}
        assert (await http.post("/generate", json=body)).status_code == 200
        for more in ({"text": ["a"]}, {"text": None, "input_ids": [1]}):
            refused = await http.post("/generate", json={**body, **more})
            assert error_of(refused)["param"] == "literal_spans"
        ids = await http.post("/generate", json={**body, "return_prompt_token_ids": True})
        assert "exclude each other" in error_of(ids)["message"]
    assert [tuple(span) for span in client.requests[0].literal_spans] == [(0, 1), (2, 3)]


# ---- chats ---------------------------------------------------------------------------------------

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def test_a_chat_is_answered_as_the_model_writes_it() -> None:
    text = '<think>x</think><tool_call>\n{"name": "f"}\n</tool_call>'
    client = FakeClient((text,))
    body = {
        "messages": [*HI, {"role": "assistant", "content": "Well", "name": None}],
        "tools": [FUNCTION],
        "continue_final_message": True,
        "chat_template_kwargs": {"a": 1},
        "reasoning_effort": "low",
        "return_logprob": True,
        "return_prompt_token_ids": True,
        "sampling_params": {"n": 2, "max_new_tokens": None},
    }
    async with in_process(client, reasoning=True, template="{{ reasoning_effort }}") as http:
        answers = (await http.post("/generate", json=body)).json()
        streamed = await http.post("/generate", json=body | {"stream": True})
    assert [answer["text"] for answer in answers] == [text, text]
    assert answers[0]["prompt_token_ids"] == [2, 4]
    assert answers[0]["meta_info"]["output_token_logprobs"] == [[-0.5, 100, None]]
    assert streamed.headers["srt-prompt-tokens"] == "2"
    assert [payload["text"] for payload in sse_payloads(streamed.text)] == [text, text]
    request = client.requests[0]
    assert request.messages == [ChatMessage("user", "hi"), ChatMessage("assistant", "Well")]
    assert request.tools == [ToolSpec("f", "", '{"type":"object"}')]
    assert request.chat == ChatOptions('{"a":1,"reasoning_effort":"low"}', True, False)
    assert client.tokenized[0].messages == request.messages


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a", "messages": HI}, "text"),
        ({"text": "a", "tools": [FUNCTION]}, "tools"),
        ({"input_ids": [1], "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [*HI, {"role": "user", "contents": "a"}]}, "messages[1].contents"),
        ({"messages": HI, "tools": [FUNCTION, FUNCTION]}, "tools[1].function.name"),
        ({"messages": HI, "image_data": "AAAA"}, "image_data"),
        ({"messages": HI, "literal_spans": [[0, 1]]}, "literal_spans"),
    ],
)
async def test_bad_chats(body: dict[str, Any], param: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        response = await http.post("/generate", json=body)
    assert response.status_code == 400 and client.requests == []
    assert (error_of(response)["param"] or "").replace("[...]", "[1]") == param


async def test_refusals_of_chats_have_the_bodys_names() -> None:
    client = FakeClient()
    client.refusals[0] = RequestError("too long", param="text", code=CONTEXT_LENGTH)
    client.refusals[1] = RequestError(": no object", at="chat.template_args")
    async with in_process(client) as http:
        answers = [await http.post("/generate", json={"messages": HI}) for _ in range(2)]
    params = [error_of(answer)["param"] for answer in answers]
    assert params == ["messages", "chat_template_kwargs"]
