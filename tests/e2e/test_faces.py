"""Every HTTP API on the real model: what it answers, and that the APIs agree.

Greedy requests are compared with each other, never with recorded text; the parity test checks
that the model itself is right.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx2
import msgspec
import pytest

from tests.e2e.server import Server
from tests.waiting import SOON_S

PROMPT = "The capital of France is"
GREEDY = {"max_new_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        yield client
    server.wait_idle()


def ok(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def generate(http: httpx2.Client, sampling: Any = GREEDY, **body: Any) -> Any:
    """The answer of /generate for PROMPT, or for the `text` or `input_ids` given."""
    if "input_ids" not in body:
        body.setdefault("text", PROMPT)
    return ok(http.post("/generate", json={"sampling_params": sampling, **body}))


def events(http: httpx2.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The payloads of a stream, which must end with [DONE]."""
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(frame.removeprefix("data: ")) for frame in frames[:-2]]


@contextmanager
def long_stream(http: httpx2.Client, rid: str) -> Iterator[Iterator[Any]]:
    """The snapshots of a long request, which ends with the block."""
    sampling = {"max_new_tokens": 500, "ignore_eos": True, "temperature": 0.0, "speculative": "off"}
    body = {"text": "Once upon a time", "rid": rid, "stream": True, "sampling_params": sampling}
    with http.stream("POST", "/generate", json=body) as response:
        lines = (x for x in response.iter_lines() if x.startswith("data: {"))
        snapshots = (msgspec.json.decode(x.removeprefix("data: ")) for x in lines)
        next(snapshots)
        yield snapshots


@pytest.fixture(scope="module")
def plain(http: httpx2.Client) -> Any:
    """The answer that the other requests are compared with."""
    return generate(http)


# ---- /generate -----------------------------------------------------------------------------------


def test_an_answer_is_complete(plain: Any) -> None:
    meta = plain["meta_info"]
    assert plain["text"].startswith(" Paris") and len(plain["output_ids"]) == 8
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 8)
    assert meta["e2e_latency"] > 0 and meta["id"]
    assert "input_token_logprobs" not in meta


def test_ids_give_what_their_text_gives(http: httpx2.Client, plain: Any) -> None:
    """The prompt's ids come from its log-probabilities: position 0 has none."""
    scored = generate(http, return_logprob=True, logprob_start_len=0)
    entries = scored["meta_info"]["input_token_logprobs"]
    ids = [token for _, token, _ in entries]
    assert len(ids) == 5
    answer = generate(http, input_ids=ids)
    assert (answer["text"], answer["output_ids"]) == (plain["text"], plain["output_ids"])


def test_put_and_nulls(http: httpx2.Client, plain: Any) -> None:
    body = {"text": PROMPT, "input_ids": None, "rid": None, "stream": None, "image_data": None}
    sampling = {**GREEDY, "stop": None, "top_k": None, "regex": None, "seed": None}
    answer = ok(http.put("/generate", json={**body, "sampling_params": sampling}))
    assert answer["text"] == plain["text"]


def test_a_list_is_answered_in_order(http: httpx2.Client, plain: Any) -> None:
    other = "One, two, three,"
    alone = generate(http, text=other)
    samplings = [GREEDY, GREEDY, {**GREEDY, "max_new_tokens": 2}]
    answers = generate(http, samplings, text=[PROMPT, other, PROMPT], rid=["a", "b", "c"])
    assert [a["meta_info"]["id"] for a in answers] == ["a", "b", "c"]
    assert answers[0]["text"] == plain["text"] and answers[1]["text"] == alone["text"]
    assert answers[2]["output_ids"] == plain["output_ids"][:2]


def test_a_stream_is_cumulative_and_ends_as_the_whole(http: httpx2.Client, plain: Any) -> None:
    sampling = {**GREEDY, "speculative": "off"}  # guessed tokens come together
    snapshots = events(http, "/generate", {"text": PROMPT, "sampling_params": sampling})
    assert len(snapshots) > 2
    for before, after in pairwise(snapshots):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    last = snapshots[-1]
    assert (last["text"], last["output_ids"]) == (plain["text"], plain["output_ids"])
    assert last["meta_info"]["finish_reason"] == plain["meta_info"]["finish_reason"]
    assert all(s["meta_info"]["finish_reason"] is None for s in snapshots[:-1])


def test_a_streamed_list_tells_the_index(http: httpx2.Client, plain: Any) -> None:
    body = {"text": [PROMPT, "Hello"], "sampling_params": {**GREEDY, "max_new_tokens": 4}}
    last = {s["index"]: s for s in events(http, "/generate", body)}
    assert sorted(last) == [0, 1]
    assert last[0]["output_ids"] == plain["output_ids"][:4]
    assert all(s["meta_info"]["finish_reason"] for s in last.values())


@pytest.mark.parametrize("stream", [False, True])
def test_no_new_tokens(http: httpx2.Client, stream: bool) -> None:
    """max_new_tokens 0 computes the prompt, with its log-probabilities if they are requested."""
    sampling = {"max_new_tokens": 0}
    body = {"text": PROMPT, "sampling_params": sampling, "return_logprob": True}
    body["logprob_start_len"] = 0
    if stream:
        answer = events(http, "/generate", body)[-1]
    else:
        answer = ok(http.post("/generate", json=body))
    meta = answer["meta_info"]
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert len(meta["input_token_logprobs"]) == 5 and meta["output_token_logprobs"] == []


def test_logprobs(http: httpx2.Client, plain: Any) -> None:
    """One per output token, and one per prompt token from `logprob_start_len` on; the same
    whatever the start, and whether or not the prefix was cached."""
    full = generate(http, return_logprob=True, logprob_start_len=0)["meta_info"]
    entries, output = full["input_token_logprobs"], full["output_token_logprobs"]
    assert entries[0][0] is None
    assert all(lp < 0 for lp, _, _ in entries[1:])
    assert [token for _, token, _ in output] == plain["output_ids"]
    assert all(-20 < lp <= 0 for lp, _, _ in output)
    later = generate(http, return_logprob=True, logprob_start_len=3)["meta_info"]
    assert [token for _, token, _ in later["input_token_logprobs"]] == [
        token for _, token, _ in entries[3:]
    ]
    for (a, _, _), (b, _, _) in zip(later["input_token_logprobs"], entries[3:], strict=True):
        assert a == pytest.approx(b, abs=1e-3)
    none = generate(http, return_logprob=True)["meta_info"]
    assert none["input_token_logprobs"] == []
    for (a, _, _), (b, _, _) in zip(none["output_token_logprobs"], output, strict=True):
        assert a == pytest.approx(b, abs=1e-3)


def test_a_prompt_seen_before_is_cached(http: httpx2.Client) -> None:
    prompt = "A sentence that no other test sends, made of a dozen or so tokens."
    first, second = generate(http, text=prompt), generate(http, text=prompt)
    assert first["meta_info"]["cached_tokens"] < 3
    assert second["meta_info"]["cached_tokens"] == second["meta_info"]["prompt_tokens"] - 1
    assert second["text"] == first["text"]
    salted = generate(http, text=prompt, cache_salt="tenant")
    assert salted["meta_info"]["cached_tokens"] == 0
    assert salted["text"] == first["text"]


# ---- how a text ends -----------------------------------------------------------------------------


def test_a_stop_string_is_cut_off_exactly(http: httpx2.Client) -> None:
    """Across a token boundary and within a token; streamed text never shows any of it."""
    whole = generate(http, {**GREEDY, "max_new_tokens": 8})["text"]
    middle = len(whole) // 2
    for stop in (whole[middle : middle + 3], whole[middle : middle + 1]):
        sampling = {"max_new_tokens": 8, "temperature": 0.0, "stop": ["never said", stop]}
        answer = generate(http, sampling)
        assert answer["text"] == whole[: whole.index(stop)]
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"])
        snapshots = events(http, "/generate", {"text": PROMPT, "sampling_params": sampling})
        assert snapshots[-1]["text"] == answer["text"]
        assert all(answer["text"].startswith(s["text"]) for s in snapshots)


def test_a_stop_id_ends_the_text_before_it(http: httpx2.Client, plain: Any) -> None:
    stop_id = plain["output_ids"][3]
    first = plain["output_ids"].index(stop_id)
    answer = generate(http, {**GREEDY, "stop_token_ids": [stop_id]})
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop_id}
    assert answer["meta_info"]["completion_tokens"] == first + 1
    shorter = generate(http, {**GREEDY, "max_new_tokens": first})
    assert answer["text"] == shorter["text"]
    held_off = generate(http, {**GREEDY, "stop_token_ids": [stop_id], "min_new_tokens": 8})
    assert held_off["meta_info"]["completion_tokens"] == 8
    assert stop_id not in held_off["output_ids"][:-1]


def test_eos_ends_a_chat_unless_ignored(http: httpx2.Client) -> None:
    """A short answer ends with the end token; `ignore_eos` and `min_tokens` continue after it."""
    question = "Name the capital of France."
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 16}
    ended = ok(http.post("/v1/chat/completions", json=body))
    choice, used = ended["choices"][0], ended["usage"]["completion_tokens"]
    assert choice["finish_reason"] == "stop" and used < 16, ended
    assert isinstance(choice["matched_stop"], int)
    assert "<|" not in choice["message"]["content"]
    for extra in ({"ignore_eos": True}, {"min_tokens": used + 2}):
        limit = {"max_tokens": used + 2}
        longer = ok(http.post("/v1/chat/completions", json=body | limit | extra))
        assert longer["usage"]["completion_tokens"] == used + 2
        assert longer["choices"][0]["finish_reason"] == "length"


def test_a_seed_repeats_itself_alone_and_in_a_batch(http: httpx2.Client) -> None:
    sampling = {"max_new_tokens": 8, "temperature": 1.5, "seed": 7}
    alone = generate(http, sampling)["output_ids"]
    assert generate(http, sampling)["output_ids"] == alone
    seeds = [8, 7, 9]
    batch = generate(http, [{**sampling, "seed": s} for s in seeds], text=[PROMPT] * 3)
    assert batch[1]["output_ids"] == alone
    assert len({tuple(answer["output_ids"]) for answer in batch}) == 3


# ---- the OpenAI routes ---------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [0, 8])
def test_completions_agree_with_generate(http: httpx2.Client, plain: Any, max_tokens: int) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": max_tokens, "model": "smollm2"}
    answer = ok(http.post("/v1/completions", json=body))
    expected = plain["text"] if max_tokens else ""
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected, "length")
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, max_tokens)
    assert usage["total_tokens"] == 5 + max_tokens
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    chunks = events(http, "/v1/completions", body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "length"
    assert all("usage" not in c for c in chunks) and len({c["id"] for c in chunks}) == 1


def test_completions_of_several_prompts(http: httpx2.Client, plain: Any) -> None:
    body = {"prompt": [PROMPT, "Hello"], "temperature": 0, "max_tokens": 4}
    answer = ok(http.post("/v1/completions", json=body))
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert plain["text"].startswith(answer["choices"][0]["text"])
    texts = ["", ""]
    for chunk in events(http, "/v1/completions", body):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [c["text"] for c in answer["choices"]]


def test_a_chat_streams_what_it_answers(http: httpx2.Client) -> None:
    body = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Say hello."}]},
        ],
        "temperature": 0,
        "max_completion_tokens": 8,
    }
    answer = ok(http.post("/v1/chat/completions", json=body))
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant" and message["content"]
    body["stream_options"] = {"include_usage": True}
    chunks = events(http, "/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]]
    assert "".join(deltas) == message["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]
    usage = chunks[-1]["usage"]
    assert chunks[-1]["choices"] == [] and all(c["usage"] is None for c in chunks[:-1])
    assert usage["completion_tokens"] == answer["usage"]["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


# ---- facts and operations ------------------------------------------------------------------------


def test_what_is_served(http: httpx2.Client) -> None:
    card = ok(http.get("/v1/models"))["data"][0]
    assert (card["id"], card["max_model_len"]) == ("smollm2", 8192)
    assert ok(http.get("/v1/models/smollm2")) == card
    assert http.get("/v1/models/gpt-4").status_code == 404
    info = ok(http.get("/get_model_info"))
    assert info["served_model_name"] == "smollm2" and info["is_generation"] is True
    server_info = ok(http.get("/server_info"))
    assert server_info["internal_states"][0]["executor"] in ("torch", "native")
    assert "api_key" not in server_info
    assert ok(http.get("/health"))["status"] == "ok" and ok(http.get("/ready"))["ready"] is True


def metrics_of(http: httpx2.Client) -> dict[str, float]:
    lines = http.get("/metrics").text.splitlines()
    samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_metrics_move(http: httpx2.Client, server: Server, plain: Any) -> None:
    """All of the prompt but its last token is cached, because of an earlier request."""
    server.wait_idle()
    before = metrics_of(http)
    sampling = {"max_new_tokens": 32, "temperature": 0.0, "ignore_eos": True}
    snapshots = events(http, "/generate", {"text": PROMPT, "sampling_params": sampling})
    first = snapshots[0]["meta_info"]["completion_tokens"]  # more than one on a busy machine
    server.wait_idle()
    after = metrics_of(http)

    def gained(name: str) -> float:
        return after[name] - before[name]

    assert gained("srt_num_requests_total") == 1
    assert gained("srt_prompt_tokens_total") == 5
    assert gained("srt_generation_tokens_total") == 32
    assert gained("srt_cached_tokens_total") == 4
    assert gained("srt_time_to_first_token_seconds_count") == 1
    assert gained("srt_inter_token_latency_seconds_count") == 32 - first
    assert gained("srt_e2e_request_latency_seconds_count") == 1
    assert after["srt_up"] == 1
    assert after["srt_num_running_reqs"] == after["srt_num_queue_reqs"] == 0
    assert after["srt_token_usage"] == 0 and 0 < after["srt_cache_hit_rate"] < 1


def test_flush_cache(http: httpx2.Client, server: Server) -> None:
    """Refused while a request runs, unless it may wait; afterwards nothing is cached."""
    with long_stream(http, "in-the-way") as snapshots:
        busy = http.post("/flush_cache")
        assert busy.status_code == 409 and busy.json()["error"]["code"] == "conflict"
        assert metrics_of(http)["srt_num_running_reqs"] == 1
        next(snapshots)
    assert ok(http.post("/flush_cache", params={"timeout": 20})) == {"flushed": True}
    assert server.wait_idle()["num_cached_tokens"] == 0
    assert generate(http)["meta_info"]["cached_tokens"] == 0
    assert generate(http)["meta_info"]["cached_tokens"] == 4


def test_abort_ends_a_stream_with_a_finish_reason(http: httpx2.Client, server: Server) -> None:
    with long_stream(http, "unwanted") as snapshots:
        assert ok(http.post("/abort_request", json={"rid": "unwanted"})) == {
            "aborted": ["unwanted"]
        }
        last = list(snapshots)[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < last["meta_info"]["completion_tokens"] < 500
    server.wait_idle()
    assert ok(http.post("/abort_request", json={"rid": "unwanted"})) == {"aborted": []}


async def test_abort_ends_a_request_that_does_not_stream(server: Server) -> None:
    """Its answer is what was generated until then."""
    sampling = {"max_new_tokens": 500, "ignore_eos": True, "temperature": 0.0, "speculative": "off"}
    body = {"text": "Once upon a time", "rid": "quiet", "sampling_params": sampling}
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        request = asyncio.ensure_future(client.post("/generate", json=body))
        aborted: list[str] = []
        async with asyncio.timeout(SOON_S):
            while not aborted:
                await asyncio.sleep(0.2)
                answer = await client.post("/abort_request", json={"abort_all": True})
                aborted = answer.json()["aborted"]
        assert aborted == ["quiet"]
        answer = await request
    assert answer.status_code == 200
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
    await asyncio.to_thread(server.wait_idle)
