"""SGLang's native contract on the real model, field by field.

The first part makes the calls of its front end (`RuntimeEndpoint`) in the same way: by urllib, with
a new connection for each, and with every field that it sends. The second tries what each field of
/generate does to the answer.
"""

import asyncio
import http.client
import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from tests.e2e.server import Server
from tests.waiting import SOON_S

PROMPT = "The capital of France is"
GREEDY = {"max_new_tokens": 8, "temperature": 0.0}
# What the front end sends for a plain `gen`: all fields, null or empty if they are not set.
UNSET_SAMPLING: dict[str, Any] = {
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "max_new_tokens": 8,
    "min_new_tokens": 0,
    "n": 1,
    "stop": [],
    "stop_token_ids": [],
    "stop_regex": [],
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
    "regex": None,
    "json_schema": None,
}


class Endpoint:
    """Calls a server as the front end does, with the same exception if the status is not 200."""

    def __init__(self, url: str) -> None:
        self.url = url
        status, self.model = self.call("/get_model_info")
        assert status == 200

    def call(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        """Status and JSON of one call on a connection of its own."""
        with self._open(path, body, method) as response:
            data = response.read()
            return response.status, json.loads(data) if data else None

    def generate(self, **body: Any) -> Any:
        """The answer of /generate."""
        status, answer = self.call("/generate", body)
        assert status == 200
        return answer

    def stream(self, **body: Any) -> Iterator[Any]:
        """The events of /generate, line by line until [DONE]."""
        with self._open("/generate", {**body, "stream": True}, None) as response:
            for line in response:
                text = line.decode().strip("\n")
                if text == "data: [DONE]":
                    return
                if text.startswith("data:"):
                    yield json.loads(text[5:].strip("\n"))
        raise AssertionError("no [DONE]")

    def _open(self, path: str, body: Any, method: str | None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=120)
        assert response.headers["connection"] == "close"
        return response


@pytest.fixture(scope="module")
def endpoint(server: Server) -> Iterator[Endpoint]:
    yield Endpoint(server.url)
    server.wait_idle()


@pytest.fixture(scope="module")
def plain(endpoint: Endpoint) -> Any:
    """The greedy answer that others are compared with."""
    return endpoint.generate(text=PROMPT, sampling_params=GREEDY)


# ---- what the front end calls --------------------------------------------------------------------


def test_the_constructor_reads_the_model(endpoint: Endpoint) -> None:
    """It chooses a chat template by the name in the path."""
    assert isinstance(endpoint.model["model_path"], str)
    assert "SmolLM2" in endpoint.model["model_path"]


def test_gen_with_every_field_unset(endpoint: Endpoint, plain: Any) -> None:
    answer = endpoint.generate(text=PROMPT, sampling_params=UNSET_SAMPLING)
    assert answer["text"] == plain["text"] and isinstance(answer["meta_info"], dict)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
    logprobs = {
        "return_logprob": None,
        "logprob_start_len": None,
        "top_logprobs_num": None,
        "return_text_in_logprobs": None,
        "image_data": None,
    }
    again = endpoint.generate(text=PROMPT, sampling_params=UNSET_SAMPLING, **logprobs)
    assert again["text"] == plain["text"]


def test_gen_with_fields_set(endpoint: Endpoint) -> None:
    sampling = UNSET_SAMPLING | {
        "min_new_tokens": 2,
        "stop": ["\n"],
        "stop_token_ids": [0],
        "stop_regex": ["[0-9]"],
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.05,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "temperature": 0.7,
        "regex": " [A-Z][a-z]+",
    }
    answer = endpoint.generate(
        text=PROMPT,
        sampling_params=sampling,
        return_logprob=True,
        logprob_start_len=1,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )
    assert re.fullmatch(" [A-Z][a-z]+", answer["text"])
    meta = answer["meta_info"]
    assert len(meta["output_top_logprobs"]) == meta["completion_tokens"]
    assert all(len(row) == 2 for row in meta["output_top_logprobs"])


def test_stream_lines_are_cumulative(endpoint: Endpoint, plain: Any) -> None:
    sampling = UNSET_SAMPLING | {"speculative": "off"}  # else in fewer pieces
    payloads = list(endpoint.stream(text=PROMPT, sampling_params=sampling))
    texts = [payload["text"] for payload in payloads]
    assert all(b.startswith(a) for a, b in pairwise(texts))
    assert texts[-1] == plain["text"] and len(texts) > 1
    assert all(p["meta_info"]["finish_reason"] is None for p in payloads[:-1])
    assert payloads[-1]["meta_info"]["completion_tokens"] == 8


def test_cache_prefix_is_a_prompt_without_output(endpoint: Endpoint) -> None:
    text = "A prefix that only this test of the contract sends, to be cached."
    first = endpoint.generate(text=text, sampling_params={"max_new_tokens": 0})
    assert (first["text"], first["output_ids"]) == ("", [])
    tokens = first["meta_info"]["prompt_tokens"]
    later = endpoint.generate(text=text + " More.", sampling_params=GREEDY)
    assert later["meta_info"]["cached_tokens"] >= tokens - 1


CHOICES = [" yes, it is", " no", " maybe", " ha"]


@pytest.mark.parametrize("prompt", ["Is water wet? Answer:", "ha ha ha", "x"])
def test_select(endpoint: Endpoint, prompt: str) -> None:
    """The three requests of a select, and what it computes from the answers.

    A first element that is None would break its arithmetic; it removes one that belongs to the
    prompt, which it recognises by its text.
    """
    zero = {"max_new_tokens": 0, "temperature": 0.0}
    whole = endpoint.generate(text=prompt, sampling_params={"max_new_tokens": 0})
    prompt_len = whole["meta_info"]["prompt_tokens"]
    start = max(prompt_len - 2, 0)
    answers = endpoint.generate(
        text=[prompt + choice for choice in CHOICES],
        sampling_params=zero,
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=start,
    )
    rows = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    assert all(answer["meta_info"]["output_token_logprobs"] == [] for answer in answers)
    for choice, answer, row in zip(CHOICES, answers, rows, strict=True):
        assert len(row) == answer["meta_info"]["prompt_tokens"] - start
        assert (row[0][0] is None) == (start == 0)
        assert all(isinstance(lp, float) and isinstance(i, int) for lp, i, _ in row[1:])
        joined = "".join(text for _, _, text in row)
        assert (prompt + choice).endswith(joined) and joined.endswith(choice)
    scores = [_normalized(row, prompt) for row in rows]
    assert all(math.isfinite(score) and score < 0 for score in scores)
    ids = [[token for _, token, _ in row] for row in rows]
    unconditional = endpoint.generate(
        input_ids=ids, sampling_params={"max_new_tokens": 0}, return_logprob=True
    )
    for row, given in zip(unconditional, ids, strict=True):
        entries = row["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in entries] == given
        assert entries[0][0] is None and all(lp < 0 for lp, _, _ in entries[1:])


def _normalized(row: list[Any], prompt: str) -> float:
    """The mean log-probability of a choice, without the token before it."""
    values: list[float] = [lp for lp, _, _ in row if lp]
    if prompt.endswith(row[0][2]) and row[0][0] is not None:
        values = values[1:]
    return sum(values) / len(values)


def test_operations(endpoint: Endpoint) -> None:
    for path in ("/get_server_info", "/server_info"):
        status, info = endpoint.call(path)
        assert status == 200 and info["internal_states"][0]["executor"]
    assert endpoint.call("/start_profile")[0] == 200
    endpoint.generate(text=PROMPT, sampling_params=GREEDY)
    status, profile = endpoint.call("/stop_profile")
    assert status == 200 and profile["gained"]["generation_tokens_total"] == 8
    assert endpoint.call("/flush_cache?timeout=60", method="POST")[0] == 200
    assert endpoint.call("/flush_cache", method="POST")[0] == 200
    assert endpoint.call("/health_generate")[1]["evidence"] == "token"
    for path in ("/health", "/ready", "/model_info"):
        assert endpoint.call(path)[0] == 200


def test_an_error_is_the_body_of_its_status(endpoint: Endpoint) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        endpoint.generate(text=PROMPT, sampling_params={"top_p": 0})
    with caught.value as response:
        error = json.loads(response.read())["error"]
    assert caught.value.code == 400 and error["param"] == "sampling_params.top_p"


# ---- prompts and rids ----------------------------------------------------------------------------


def test_ids_are_the_same_as_their_text(endpoint: Endpoint, plain: Any) -> None:
    ids = endpoint.call("/tokenize", {"prompt": PROMPT})[1]["tokens"]
    answers = endpoint.generate(
        input_ids=[ids, ids[:2]], sampling_params=GREEDY, return_prompt_token_ids=True
    )
    assert answers[0]["text"] == plain["text"]
    assert [a["prompt_token_ids"] for a in answers] == [ids, ids[:2]]
    told = endpoint.generate(text=PROMPT, sampling_params=GREEDY, return_prompt_token_ids=True)
    assert told["prompt_token_ids"] == ids


def test_every_prompt_may_have_its_own_parameters(endpoint: Endpoint) -> None:
    samplings = [{"max_new_tokens": 1}, {"max_new_tokens": 3, "temperature": 0}]
    answers = endpoint.generate(text=[PROMPT, PROMPT], sampling_params=samplings, rid=["a", "b"])
    assert [a["meta_info"]["completion_tokens"] for a in answers] == [1, 3]
    assert [a["meta_info"]["id"] for a in answers] == ["a", "b"]
    prefixed = endpoint.generate(text=["x", "y"], sampling_params=GREEDY, rid="p")
    assert [a["meta_info"]["id"] for a in prefixed] == ["p_0", "p_1"]
    assert endpoint.generate(text="x", sampling_params=GREEDY, rid="p")["meta_info"]["id"] == "p"


def test_n_samples_are_grouped_by_prompt(endpoint: Endpoint, plain: Any) -> None:
    """The prompt is shared; a sample with a seed is what a request with this seed gives."""
    sampling = {"max_new_tokens": 8, "temperature": 1.2, "n": 3, "sampling_seed": 5}
    answers = endpoint.generate(text=[PROMPT, "Once upon"], sampling_params=sampling)
    assert len(answers) == 6
    lengths = [a["meta_info"]["prompt_tokens"] for a in answers]
    assert lengths == [5, 5, 5, lengths[3], lengths[3], lengths[3]]
    alone = endpoint.generate(text=PROMPT, sampling_params=sampling | {"n": 1})
    assert answers[0]["output_ids"] == alone["output_ids"]
    assert len({tuple(a["output_ids"]) for a in answers[:3]}) > 1
    (first, second) = endpoint.generate(text=PROMPT, sampling_params=GREEDY | {"n": 2})
    assert first["text"] == second["text"] == plain["text"]
    last: dict[int, Any] = {}
    for payload in endpoint.stream(text=[PROMPT, "Once upon"], sampling_params=sampling):
        last[payload["index"]] = payload
    assert [last[i]["output_ids"] for i in range(6)] == [a["output_ids"] for a in answers]


async def test_a_batch_is_aborted_by_its_name(server: Server) -> None:
    sampling = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0.0, "n": 2}
    body = {"text": ["Once upon", "There was"], "rid": "bunch", "sampling_params": sampling}
    async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
        request = asyncio.ensure_future(client.post("/generate", json=body))
        aborted: list[str] = []
        async with asyncio.timeout(SOON_S):
            while len(aborted) < 4:
                await asyncio.sleep(0.1)
                answer = await client.post("/abort_request", json={"rid": "bunch"})
                aborted = answer.json()["aborted"]
            answers = (await request).json()
    assert aborted == ["bunch_0/0", "bunch_0/1", "bunch_1/0", "bunch_1/1"]
    reasons = [a["meta_info"]["finish_reason"] for a in answers]
    assert all(reason["type"] == "abort" for reason in reasons)
    await asyncio.to_thread(server.wait_idle)


# ---- sampling parameters -------------------------------------------------------------------------

REPEATS = "blah blah blah blah blah blah"  # repeated by a wide margin at every token


def words_of(endpoint: Endpoint, **sampling: Any) -> list[int]:
    body = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True} | sampling
    ids: list[int] = endpoint.generate(text=REPEATS, sampling_params=body)["output_ids"]
    return ids


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}]
)
def test_penalties_make_repetition_rarer(endpoint: Endpoint, penalty: dict[str, float]) -> None:
    free, held = words_of(endpoint), words_of(endpoint, **penalty)
    assert len(set(free)) < len(set(held))


def test_logit_bias_forces_and_forbids(endpoint: Endpoint, plain: Any) -> None:
    first = plain["output_ids"][0]
    for key in (first, str(first)):
        sampling = GREEDY | {"logit_bias": {key: -100}}
        assert first not in endpoint.generate(text=PROMPT, sampling_params=sampling)["output_ids"]
    forced = endpoint.generate(text=PROMPT, sampling_params=GREEDY | {"logit_bias": {"30": 100}})
    assert set(forced["output_ids"]) == {30}


def test_allowed_ids_and_bad_words(endpoint: Endpoint, plain: Any) -> None:
    sampling = GREEDY | {"allowed_token_ids": [30, 198], "ignore_eos": True}
    ids = endpoint.generate(text=PROMPT, sampling_params=sampling)["output_ids"]
    assert set(ids) <= {30, 198} and len(ids) == 8
    sampling = GREEDY | {"bad_words": [" Paris", "Paris"]}
    held = endpoint.generate(text=PROMPT, sampling_params=sampling)
    assert "Paris" in plain["text"] and "Paris" not in held["text"]


@pytest.mark.parametrize(
    ("fields", "matched"),
    [
        ({"stop": "ris"}, "ris"),
        ({"stop": ["nothing", "ris"]}, "ris"),
        ({"stop_regex": "r[a-z]s"}, "r[a-z]s"),
        ({"stop_regex": ["[0-9]", "r[a-z]s"]}, "r[a-z]s"),
    ],
)
def test_stops(endpoint: Endpoint, fields: dict[str, Any], matched: str) -> None:
    cut = endpoint.generate(text=PROMPT, sampling_params=GREEDY | fields)
    kept = endpoint.generate(text=PROMPT, sampling_params=GREEDY | fields | {"no_stop_trim": True})
    assert (cut["text"], kept["text"]) == (" Pa", " Paris")
    for answer in (cut, kept):
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}


def test_min_new_tokens_holds_stops_off(endpoint: Endpoint) -> None:
    sampling = GREEDY | {"stop": ["ris", "\n"], "min_new_tokens": 8}
    answer = endpoint.generate(text=PROMPT, sampling_params=sampling)
    assert answer["meta_info"]["completion_tokens"] == 8


def test_stream_interval(endpoint: Endpoint, plain: Any) -> None:
    sampling = GREEDY | {"stream_interval": 4}
    payloads = list(endpoint.stream(text=PROMPT, sampling_params=sampling))
    counts = [p["meta_info"]["completion_tokens"] for p in payloads]
    assert all(b - a >= 4 for a, b in pairwise(counts[:-1]))
    assert counts[-1] == 8 and len(counts) <= 4
    assert payloads[-1]["text"] == plain["text"]


def test_fields_that_change_nothing(endpoint: Endpoint, plain: Any) -> None:
    extras = {
        "log_metrics": True,
        "no_logs": True,
        "custom_labels": {"a": "b"},
        "lora_path": None,
        "priority": 0,
        "return_hidden_states": False,
        "modalities": ["text"],
        "background": False,
    }
    answer = endpoint.generate(text=PROMPT, sampling_params=GREEDY, **extras)
    assert answer["text"] == plain["text"]


# ---- log-probabilities ---------------------------------------------------------------------------


def test_kinds_of_logprobs_agree(endpoint: Endpoint, plain: Any) -> None:
    """A greedy token is the likeliest; requested by its id, it has the same value."""
    ids = sorted(set(plain["output_ids"]))[:4]
    meta = endpoint.generate(
        text=PROMPT,
        sampling_params=GREEDY,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=3,
        token_ids_logprob=ids,
        return_text_in_logprobs=True,
    )["meta_info"]
    for way, count in (("input", 5), ("output", 8)):
        chosen = meta[f"{way}_token_logprobs"]
        tops, named = meta[f"{way}_top_logprobs"], meta[f"{way}_token_ids_logprobs"]
        assert len(chosen) == len(tops) == len(named) == count
        for (logprob, token, text), top, row in zip(chosen, tops, named, strict=True):
            assert text == endpoint.call("/detokenize", {"tokens": [token]})[1]["text"]
            if logprob is None:
                assert top is None and row is None
                continue
            assert [lp for lp, _, _ in top] == sorted((lp for lp, _, _ in top), reverse=True)
            assert len(top) == 3 and top[0][0] >= logprob - 1e-4
            assert [i for _, i, _ in row] == ids
            same = [lp for lp, i, _ in [*top, *row] if i == token]
            assert all(lp == pytest.approx(logprob, abs=1e-4) for lp in same)
    assert meta["input_token_logprobs"][0][0] is None
    greedy = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
    assert all(top[0][1] == token for (_, token, _), top in greedy)
    values = [lp for lp, _, _ in meta["input_token_logprobs"][1:]]
    assert meta["normalized_prompt_logprob"] == pytest.approx(sum(values) / len(values))


def test_logprob_start_len(endpoint: Endpoint) -> None:
    """From every position, cached or not; only position 0 has no value."""

    def entries(start: int | None) -> Any:
        answer = endpoint.generate(
            text=PROMPT,
            sampling_params={"max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=start,
        )
        return answer["meta_info"]["input_token_logprobs"]

    full = entries(0)
    for start in range(5):
        row = entries(start)
        assert [i for _, i, _ in row] == [i for _, i, _ in full[start:]]
        assert (row[0][0] is None) == (start == 0)
        pairs = [(a, b) for (a, _, _), (b, _, _) in zip(row, full[start:], strict=True) if b]
        assert all(a == pytest.approx(b, abs=1e-3) for a, b in pairs)
    assert entries(-1) == entries(None) == entries(5) == []


def test_logprobs_per_prompt(endpoint: Endpoint) -> None:
    answers = endpoint.generate(
        text=[PROMPT, PROMPT],
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        return_logprob=[True, False],
        logprob_start_len=[3, -1],
        top_logprobs_num=[2, 0],
        token_ids_logprob=[[1, 2], None],
    )
    first, second = (answer["meta_info"] for answer in answers)
    assert len(first["input_token_logprobs"]) == 2
    assert len(first["output_top_logprobs"][0]) == 2
    assert [i for _, i, _ in first["output_token_ids_logprobs"][0]] == [1, 2]
    assert not [name for name in second if "logprob" in name]


# ---- tokens and scores ---------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokens_round_trip(endpoint: Endpoint, prefix: str) -> None:
    texts = ["Grüße, 世界! 🙂", "", "  two  blanks\n"]
    rows = endpoint.call(prefix + "/tokenize", {"prompt": texts})[1]
    assert rows["count"] == [len(row) for row in rows["tokens"]] and rows["max_model_len"] == 8192
    back = endpoint.call(prefix + "/detokenize", {"tokens": rows["tokens"]})[1]
    assert back["text"] == texts


def test_a_chat_has_the_tokens_that_its_answer_counts(endpoint: Endpoint) -> None:
    chat = {"messages": [{"role": "user", "content": "Say hello."}]}
    tokens = endpoint.call("/tokenize", chat)[1]
    body = chat | {"max_tokens": 1, "temperature": 0}
    answer = endpoint.call("/v1/chat/completions", body)[1]
    assert answer["usage"]["prompt_tokens"] == tokens["count"]
    body = {"tokens": tokens["tokens"], "skip_special_tokens": False}
    text = endpoint.call("/detokenize", body)[1]["text"]
    assert text.endswith("<|im_start|>assistant\n") and "Say hello." in text
    same = endpoint.generate(input_ids=tokens["tokens"], sampling_params=GREEDY)
    assert same["text"].startswith(answer["choices"][0]["message"]["content"])


def test_scores_of_labels_are_next_token_probabilities(endpoint: Endpoint) -> None:
    labels = [7042, 4528, 30]
    query, items = "The capital of", [" France is", " England is"]
    body = {"query": query, "items": items, "label_token_ids": labels}
    scored = endpoint.call("/v1/score", body)[1]
    for item, row in zip(items, scored["scores"], strict=True):
        meta = endpoint.generate(
            text=query + item,
            sampling_params={"max_new_tokens": 1, "temperature": 0},
            return_logprob=True,
            token_ids_logprob=labels,
        )["meta_info"]
        values = [math.exp(lp) for lp, _, _ in meta["output_token_ids_logprobs"][0]]
        assert row == pytest.approx(values, rel=1e-2)
    assert scored["scores"][0][0] > 10 * scored["scores"][1][0]
    soft = endpoint.call("/v1/score", body | {"apply_softmax": True})[1]["scores"]
    for row, plain_row in zip(soft, scored["scores"], strict=True):
        assert sum(row) == pytest.approx(1.0)
        assert row == pytest.approx([v / sum(plain_row) for v in plain_row], rel=1e-2)
    ids = [endpoint.call("/tokenize", {"prompt": text})[1]["tokens"] for text in (query, *items)]
    by_ids = {"query": ids[0], "items": ids[1:], "label_token_ids": labels}
    assert endpoint.call("/v1/score", by_ids)[1]["scores"][0] == pytest.approx(
        scored["scores"][0], rel=1e-2
    )
    turned = {"query": " is", "items": ["The capital of France"], "label_token_ids": labels}
    assert endpoint.call("/v1/score", turned | {"item_first": True})[1]["scores"][0] == (
        pytest.approx(scored["scores"][0], rel=1e-2)
    )
