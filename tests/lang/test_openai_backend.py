"""The OpenAI back end, on our server and on answers that our server does not give."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import httpx2
import msgspec
import pytest

import lang as sgl
from lang import loop
from lang.backends.base import Image, Prompt, Turn
from lang.backends.openai import OpenAI, closest
from lang.backends.sampling import Sampling
from lang.errors import UnsupportedError
from srt.client.face import AsyncClient
from srt.wire.errors import ConfigError, RequestError
from tests.e2e.server import Server
from tests.waiting import SOON_S

TEXT = Prompt("The capital of France is")
CHAT = Prompt(
    "USER:Say hello.\nASSISTANT:",
    messages=(Turn("user", "Say hello."),),
    open_role="assistant",
)
GREEDY = Sampling(temperature=0.0, max_tokens=6)
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


@pytest.fixture
async def text_model(server: Server) -> AsyncIterator[OpenAI]:
    backend = OpenAI("smollm2", is_chat_model=False, base_url=server.url + "/v1", dialect="sglang")
    yield backend
    await backend.aclose()


@pytest.fixture
async def chat_model(server: Server) -> AsyncIterator[OpenAI]:
    backend = OpenAI("smollm2", base_url=server.url + "/v1", dialect="sglang")
    yield backend
    await backend.aclose()


class FakeServer:
    """Gives `answers` in order, then always the last one; keeps the bodies that it was sent."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []
        self.headers: list[httpx2.Headers] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def backend(self, is_chat: bool = False, **options: Any) -> OpenAI:
        options = {"base_url": "http://fake/v1", "dialect": "sglang"} | options
        return OpenAI("m", is_chat, transport=httpx2.MockTransport(self), **options)


def completion(text: str, **choice: Any) -> httpx2.Response:
    choices = [{"index": 0, "text": text, "finish_reason": "stop", **choice}]
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return httpx2.Response(200, json={"id": "c", "choices": choices, "usage": usage})


def chat_answer(content: str | None, **message: Any) -> httpx2.Response:
    said = {"role": "assistant", "content": content, **message}
    choices = [{"index": 0, "message": said, "finish_reason": "stop"}]
    return httpx2.Response(200, json={"id": "c", "choices": choices})


def refused(status: int, headers: dict[str, str] | None = None, **error: Any) -> httpx2.Response:
    body = {"error": {"message": "no", "param": None, **error}}
    return httpx2.Response(status, json=body, headers=headers)


def stream(*events: Any, done: bool = True) -> httpx2.Response:
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    return httpx2.Response(200, text="".join(lines) + ("data: [DONE]\n\n" if done else ""))


# ---- our server ----------------------------------------------------------------------------------


async def test_a_completion(text_model: OpenAI) -> None:
    answer = await text_model.generate(TEXT, GREEDY)
    assert answer.text.startswith(" Paris") and answer.finish == "length"
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 6)
    assert answer.meta["id"] and answer.meta["e2e_latency"] > 0
    assert text_model.token_usage.prompt_tokens == 5
    again = await text_model.generate(TEXT, GREEDY)
    assert again.text == answer.text and again.cached_tokens > 0
    assert text_model.token_usage.completion_tokens == 12
    text_model.token_usage.reset()
    assert text_model.token_usage.completion_tokens == 0


async def test_a_chat(chat_model: OpenAI) -> None:
    answer = await chat_model.generate(CHAT, GREEDY)
    assert answer.text and answer.completion_tokens == 6 and answer.finish == "length"


@pytest.mark.full
async def test_streams_end_like_whole_answers(text_model: OpenAI, chat_model: OpenAI) -> None:
    # What has come when a busy reader looks is one part: so many do not come at once.
    long = msgspec.structs.replace(GREEDY, max_tokens=160, ignore_eos=True)
    for backend, prompt in ((text_model, TEXT), (chat_model, CHAT)):
        whole = await backend.generate(prompt, long)
        parts = [part async for part in backend.stream(prompt, long)]
        assert parts[-1].text == whole.text and parts[-1].finish == whole.finish
        assert parts[-1].completion_tokens == 160 and len(parts) > 2
        assert all(part.finish is None for part in parts[:-1])
        assert all(b.text.startswith(a.text) for a, b in pairwise(parts))


async def test_stop_and_seed(text_model: OpenAI) -> None:
    answer = await text_model.generate(TEXT, Sampling(temperature=0.0, stop=("aris",)))
    assert (answer.text, answer.finish, answer.matched) == (" P", "stop", "aris")
    seeded = Sampling(temperature=1.0, seed=7, max_tokens=12)
    texts = {(await text_model.generate(TEXT, seeded)).text for _ in range(2)}
    assert len(texts) == 1


async def test_constraints(text_model: OpenAI, chat_model: OpenAI) -> None:
    digits = await text_model.generate(TEXT, Sampling(temperature=0.0, regex=r" [0-9]{3}"))
    assert digits.text[1:].isdecimal() and len(digits.text) == 4
    properties = {"n": {"type": "integer"}}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["n"]}
    schema["additionalProperties"] = False
    asked = Sampling(temperature=0.0, json_schema=json.dumps(schema))
    assert set(json.loads((await chat_model.generate(CHAT, asked)).text)) == {"n"}
    ebnf = Sampling(temperature=0.0, ebnf='root ::= "left" | "right"')
    assert (await text_model.generate(TEXT, ebnf)).text in ("left", "right")


@pytest.mark.parametrize("choices", [[" Paris", " Rome"], [" (a) b.", " *c|d*", " é"]])
async def test_a_choice_is_constrained(text_model: OpenAI, choices: list[str]) -> None:
    answer = await text_model.select(TEXT, choices, Sampling(temperature=0.0))
    assert answer.text in choices and answer.meta["select_method"] == "constrained"
    assert answer.text == (" Paris" if " Paris" in choices else answer.meta["answer"])


async def test_a_choice_in_a_chat(server: Server, chat_model: OpenAI) -> None:
    answer = await chat_model.select(CHAT, ["hello", "goodbye"], Sampling(temperature=0.0))
    assert answer.text == "hello" and answer.meta["select_method"] == "constrained"
    free = OpenAI("smollm2", base_url=server.url + "/v1", dialect="sglang", select="closest")
    answer = await free.select(CHAT, ["hello", "goodbye"], Sampling(temperature=0.0))
    assert answer.text == "hello" and answer.meta["select_method"] == "closest"
    await free.aclose()


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
async def test_other_dialects_fit_our_server(server: Server, dialect: Any) -> None:
    backend = OpenAI("smollm2", base_url=server.url + "/v1", dialect=dialect)
    assert (await backend.generate(CHAT, GREEDY)).completion_tokens == 6
    answer = await backend.select(CHAT, ["hello", "goodbye"], Sampling(temperature=0.0))
    assert answer.text == "hello" and answer.meta["select_method"] == "constrained"
    await backend.aclose()


async def test_penalties_and_biases_reach_our_server(text_model: OpenAI) -> None:
    greedy = await text_model.generate(TEXT, GREEDY)
    biased = Sampling(temperature=0.0, max_tokens=6, logit_bias={"7042": -100.0})
    assert greedy.text.startswith(" Paris")
    assert not (await text_model.generate(TEXT, biased)).text.startswith(" Paris")
    long = Sampling(temperature=0.0, max_tokens=32, ignore_eos=True)
    words = (await text_model.generate(Prompt("Left, right, left, right,"), long)).text.split()
    penalised = msgspec.structs.replace(long, frequency_penalty=2.0)
    others = (
        await text_model.generate(Prompt("Left, right, left, right,"), penalised)
    ).text.split()
    assert len(set(others)) > len(set(words))


async def test_scores_by_our_echo_are_those_of_our_endpoint(server: Server) -> None:
    choices = [" Paris", " Rome", " Paris, of course"]
    echoing = OpenAI(
        "smollm2", False, base_url=server.url + "/v1", dialect="sglang", echo_logprobs=True
    )
    scores = await echoing.score(TEXT, choices)
    await echoing.aclose()
    async with AsyncClient(server.url) as client:
        exact = await client.score(TEXT.text, choices)
    for mine, theirs in zip(scores.continuations, exact.choices, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


async def test_what_our_server_refuses(text_model: OpenAI, server: Server) -> None:
    with pytest.raises(RequestError) as caught:
        await text_model.generate(TEXT, Sampling(frequency_penalty=7.0))
    assert caught.value.info.param == "frequency_penalty"


async def test_leaving_ends_the_request(server: Server, text_model: OpenAI) -> None:
    """Leaving a stream, and cancelling a call that is running."""
    long = Sampling(max_tokens=4000, ignore_eos=True)
    async with aclosing(text_model.stream(TEXT, long)) as parts:  # type: ignore[type-var]
        async for part in parts:
            assert part.finish is None
            break
    await asyncio.to_thread(server.wait_idle)
    task = asyncio.create_task(text_model.generate(TEXT, long))
    while (await asyncio.to_thread(server.stats))["num_running_reqs"] == 0:
        assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(server.wait_idle)


# ---- errors and retries --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "code", "retryable"),
    [
        (400, {"param": "stop"}, "bad_request", False),
        (400, {"code": "context_length_exceeded"}, "context_length_exceeded", False),
        (401, {}, "unauthorized", False),
        (403, {}, "unauthorized", False),
        (404, {"code": "model_not_found"}, "not_found", False),
        (408, {}, "request_timeout", False),
        (429, {"code": "insufficient_quota"}, "overloaded", False),
        (429, {}, "overloaded", True),
        (500, {}, "internal", True),
        (529, {}, "overloaded", True),
        (503, {}, "unavailable", True),
    ],
)
async def test_errors_by_status(status: int, error: Any, code: str, retryable: bool) -> None:
    backend = FakeServer(refused(status, **error)).backend(max_retries=0)
    with pytest.raises(RequestError, match="no") as caught:
        await backend.generate(TEXT, GREEDY)
    info = caught.value.info
    assert (info.code, info.retryable, info.param) == (code, retryable, error.get("param"))


@pytest.mark.parametrize(
    "answer",
    [refused(429, {"Retry-After": "0"}), refused(500), refused(529), httpx2.ConnectError("no")],
)
async def test_what_was_not_taken_is_sent_again(
    answer: httpx2.Response | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lang.backends.openai_http.FIRST_PAUSE_S", 0.0)
    server = FakeServer(answer, answer, completion("yes"))
    assert (await server.backend().generate(TEXT, GREEDY)).text == "yes"
    server = FakeServer(answer)
    with pytest.raises(RequestError) as caught:
        await server.backend(max_retries=2).generate(TEXT, GREEDY)
    assert len(server.bodies) == 3 and caught.value.info.retryable


@pytest.mark.parametrize(
    "answer",
    [
        refused(429, {"Retry-After": "3600"}),
        refused(503, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}),
        refused(400),
        httpx2.ReadError("cut"),
        httpx2.ReadTimeout("slow"),
    ],
)
async def test_what_is_not_sent_again(answer: httpx2.Response | Exception) -> None:
    """After a long retry-after, a final refusal, or a failure that may have cost something."""
    server = FakeServer(answer)
    with pytest.raises(RequestError):
        await server.backend().generate(TEXT, GREEDY)
    assert len(server.bodies) == 1


async def test_a_silent_server_is_given_up() -> None:
    async with asyncio.timeout(SOON_S):
        held = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await held.wait()
            writer.close()

        async with await asyncio.start_server(hold, "127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            backend = OpenAI("m", False, base_url=url, timeout_s=0.05)
            with pytest.raises(RequestError, match="silent") as caught:
                await backend.generate(TEXT, GREEDY)
            assert caught.value.info.code == "request_timeout"
            held.set()
            await backend.aclose()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx2.Response(200, text="<html>"), "not JSON"),
        (httpx2.Response(200, json={"choices": [{}]}), "before the end"),
        (httpx2.Response(200, json={}), "'choices'"),
        (httpx2.Response(502, text="<html>bad gateway"), "bad gateway"),
    ],
)
async def test_answers_of_another_form(answer: httpx2.Response, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        await FakeServer(answer).backend(max_retries=0).generate(TEXT, GREEDY)


# ---- streams -------------------------------------------------------------------------------------


async def parts_of(answer: httpx2.Response, **options: Any) -> list[str]:
    backend = FakeServer(answer).backend(**options)
    return [part.text async for part in backend.stream(TEXT, GREEDY)]


async def test_a_stream_may_hold_line_separators() -> None:
    """Only a newline ends an event; JSON may hold U+2028 unescaped."""
    first = "a\u2028b\x85c\u2029"
    texts = [{"choices": [{"text": t, "finish_reason": None}]} for t in (first, "d")]
    end = {"choices": [{"text": "", "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"completion_tokens": 2}}
    assert await parts_of(stream(*texts, end, usage)) == [first, first + "d", first + "d"]


async def test_streams_that_break() -> None:
    event = {"choices": [{"text": "a", "finish_reason": None}]}
    with pytest.raises(RequestError, match="before the end"):
        await parts_of(stream(event, done=False))
    with pytest.raises(RequestError, match="lost a part") as caught:
        await parts_of(stream(event, {"error": {"message": "lost a part"}}))
    assert caught.value.info.code == "internal"


async def test_reasoning_is_kept_apart() -> None:
    backend = FakeServer(chat_answer("4", reasoning_content="2+2")).backend(is_chat=True)
    answer = await backend.generate(CHAT, GREEDY)
    assert answer.text == "4" and answer.meta["reasoning_content"] == "2+2"


# ---- requests ------------------------------------------------------------------------------------


async def body_of(sampling: Sampling, is_chat: bool, **options: Any) -> Any:
    server = FakeServer(chat_answer("x") if is_chat else completion("x"))
    backend = server.backend(is_chat, **options)
    await backend.generate(CHAT if is_chat else TEXT, sampling)
    return server.bodies[0]


async def test_bodies_of_the_dialects() -> None:
    plain = Sampling(max_tokens=9, temperature=0.5, stop=("a",), seed=3, top_p=0.9)
    body = await body_of(plain, True, dialect="openai")
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "stop": ["a"],
        "seed": 3,
        "top_p": 0.9,
    }
    body = await body_of(Sampling(min_tokens=2, regex="a+"), False, dialect="sglang")
    assert (body["max_tokens"], body["min_tokens"], body["regex"]) == (128, 2, "a+")
    assert not body.keys() & {"temperature", "top_p", "top_k", "min_p"}  # the server's own
    body = await body_of(Sampling(temperature=1.0, top_k=-1), False, dialect="sglang")
    assert (body["temperature"], body["top_k"]) == (1.0, -1)
    body = await body_of(Sampling(ebnf="root ::= a"), False, dialect="vllm")
    assert body["structured_outputs"] == {"grammar": "root ::= a"}
    schema = await body_of(Sampling(json_schema='{"type": "string"}'), True, dialect="openai")
    sent = schema["response_format"]["json_schema"]
    assert sent["strict"] and sent["schema"]["properties"] == {"value": {"type": "string"}}


@pytest.mark.parametrize(
    ("sampling", "is_chat", "dialect", "param"),
    [
        (Sampling(ebnf="a"), True, "openai", "ebnf"),
        (Sampling(regex="a"), False, "openai", "regex"),
        (Sampling(top_k=3), True, "openai", "top_k"),
        (Sampling(json_schema="{}"), False, "openai", "json_schema"),
        (Sampling(n=2), True, "sglang", "n"),
        (Sampling(token_healing=True), False, "sglang", "token_healing"),
        (Sampling(speculative="off"), True, "sglang", "speculative"),
        (Sampling(top_n_sigma=1.0), True, "openai", "top_n_sigma"),
        (Sampling(top_n_sigma=1.0), False, "vllm", "top_n_sigma"),
    ],
)
async def test_what_a_dialect_lacks_is_refused(
    sampling: Sampling, is_chat: bool, dialect: Any, param: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        await body_of(sampling, is_chat, dialect=dialect)
    assert caught.value.param == param


async def test_unknown_hosts_are_sent_openais_fields_only() -> None:
    body = await body_of(Sampling(max_tokens=9, top_k=-1, min_p=0.0), True, dialect=None)
    assert body.keys() == {"model", "messages", "max_tokens"}
    for given in ({"ebnf": 'root ::= "a"'}, {"top_k": 3}):
        with pytest.raises(UnsupportedError, match=r"name whose: dialect='sglang' or") as caught:
            await body_of(Sampling(**given), True, dialect=None)
        assert [caught.value.param] == list(given)
    assert OpenAI("m", base_url="http://127.0.0.1:1/v1").dialect == "openai"


async def test_neutral_values_are_taken_by_every_dialect() -> None:
    neutral = Sampling(top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0)
    body = await body_of(neutral, True, dialect="openai")
    assert body["top_p"] == 1.0 and body.keys().isdisjoint({"top_k", "min_p", "repetition_penalty"})
    assert (await body_of(neutral, True, dialect="vllm"))["repetition_penalty"] == 1.0


async def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    for given, key in ((None, "from-environment"), ("given", "given")):
        server = FakeServer(completion("x"))
        await server.backend(api_key=given).generate(TEXT, GREEDY)
        assert server.headers[0]["authorization"] == f"Bearer {key}"


def test_impossible_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    make: list[Callable[[], OpenAI]] = [
        lambda: OpenAI("m"),
        lambda: OpenAI("m", base_url="localhost"),
        lambda: OpenAI("m", base_url="http://x", dialect="klingon"),  # type: ignore[arg-type]
        lambda: OpenAI("m", base_url="http://x", select="best"),  # type: ignore[arg-type]
    ]
    for build, word in zip(make, ("api_key", "base_url", "dialect", "select"), strict=True):
        with pytest.raises(ConfigError, match=word):
            build()
    assert OpenAI("davinci-002", api_key="k").is_chat is False


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (Prompt("Hello"), "in no role"),
        (Prompt("USER:Hello", open_role="user", open_text="Hello"), "in the user's role"),
        (Prompt("ASSISTANT:So", open_role="assistant", open_text="So"), "cannot continue"),
        (Prompt("Once.ASSISTANT:", open_role="assistant"), "outside roles"),
    ],
)
async def test_prompts_that_no_chat_can_say(prompt: Prompt, reason: str) -> None:
    server = FakeServer(chat_answer("x"))
    with pytest.raises(UnsupportedError, match=reason):
        await server.backend(is_chat=True, dialect="openai").generate(prompt, GREEDY)
    assert server.bodies == []


async def test_images_travel_as_urls() -> None:
    server = FakeServer(chat_answer("a cat"))
    turn = Turn("user", "What is it?", (Image(PNG),))
    prompt = Prompt("", (turn,), "assistant")
    await server.backend(is_chat=True).generate(prompt, GREEDY)
    image, text = server.bodies[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert text == {"type": "text", "text": "What is it?"}
    turn = Turn("user", "What is it?", (Image(PNG), Image(PNG)), (5, 11))
    await server.backend(is_chat=True).generate(Prompt("", (turn,), "assistant"), GREEDY)
    parts = server.bodies[1]["messages"][0]["content"]
    assert [part.get("text") for part in parts] == ["What ", None, "is it?", None]
    for bad, param in ((Image(b"?"), "image"), (Image(PNG, "video", 4), "video")):
        turn = Turn("user", "What is it?", (bad,))
        with pytest.raises(UnsupportedError) as caught:
            await server.backend(is_chat=True).generate(Prompt("", (turn,), "assistant"), GREEDY)
        assert caught.value.param == param


async def test_results_of_tools_follow_their_calls() -> None:
    """The API takes none without a call, which is the assistant's turn before it."""
    called = '{"thought": "Hm.", "tool": "add", "arguments": {"a": 1}}'
    server = FakeServer(chat_answer("x"))
    turns = (Turn("user", "Go."), Turn("assistant", called), Turn("tool", "2"))
    text = f"USER:Go.\nASSISTANT:{called}\nTOOL:2\nASSISTANT:"
    prompt = Prompt(text, messages=turns, open_role="assistant")
    backend = server.backend(True)
    await backend.generate(prompt, GREEDY)
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert server.bodies[0]["messages"] == [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": "Hm.",
            "tool_calls": [{"id": "call_2", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "2"},
    ]
    for before in (Turn("user", called), Turn("assistant", "Well."), Turn("tool", "1")):
        role, content = before.role.upper(), before.content
        text = f"{role}:{content}\nTOOL:2\nASSISTANT:"
        prompt = Prompt(text, messages=(before, Turn("tool", "2")), open_role="assistant")
        with pytest.raises(UnsupportedError, match="only after its call") as error:
            await backend.generate(prompt, GREEDY)
        assert error.value.param == "tool"
    image = (Turn("assistant", called), Turn("tool", "2", (Image(PNG),)))
    with pytest.raises(UnsupportedError, match="from users only"):
        await backend.generate(Prompt(text, messages=image, open_role="assistant"), GREEDY)
    await backend.aclose()


# ---- choices -------------------------------------------------------------------------------------


async def test_scores_from_an_echo() -> None:
    """The scores begin where the sequences differ, here inside the prompt."""
    rows = [["a", " b"], ["a", " b", "c"], ["a", " bd"]]
    choices = [
        {"index": i, "logprobs": {"tokens": row, "token_logprobs": [None, -1.0, -2.0][: len(row)]}}
        for i, row in enumerate(rows)
    ]
    server = FakeServer(httpx2.Response(200, json={"choices": choices[::-1]}))
    scores = await server.backend(dialect="vllm").score(Prompt("a b"), ["c", "d"])
    assert [scored.logprobs for scored in scores.continuations] == [(-1.0, -2.0), (-1.0,)]
    assert [scored.token_ids for scored in scores.continuations] == [(-1, -1), (-1,)]
    body = server.bodies[0]
    assert body["prompt"] == ["a b", "a bc", "a bd"] and body["echo"] and body["max_tokens"] == 0


async def test_a_server_that_cannot_score_says_so() -> None:
    with pytest.raises(UnsupportedError, match="score"):
        await FakeServer(completion("x")).backend().score(TEXT, ["a"])


async def test_an_ignored_constraint_is_noticed() -> None:
    server = FakeServer(completion("neither"))
    with pytest.raises(UnsupportedError, match=r"neither.*ignores regex"):
        await server.backend().select(TEXT, ["a", "b"], GREEDY)
    with pytest.raises(UnsupportedError, match="cannot be constrained"):
        backend = server.backend(dialect="openai", select="constrained")
        await backend.select(TEXT, ["a", "b"], GREEDY)


async def test_an_enum_chooses_where_there_is_no_regex() -> None:
    server = FakeServer(chat_answer('{"choice": "b"}'))
    answer = await server.backend(True, dialect="openai").select(CHAT, ["a", "b"], GREEDY)
    assert answer.text == "b"
    format_ = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert format_["properties"]["choice"]["enum"] == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "choices", "chosen"),
    [
        ("Yes, of course.", ["no", "yes"], "yes"),
        (' "tool box"', ["tool", "tool box"], "tool box"),
        ("calculater", ["search", "calculator"], "calculator"),
        ("", ["a", "b"], "a"),
    ],
)
def test_the_closest_choice(answer: str, choices: list[str], chosen: str) -> None:
    assert closest(answer, choices) == chosen


# ---- programs ------------------------------------------------------------------------------------


@pytest.fixture
def program_backend(server: Server) -> Iterator[Callable[[bool], OpenAI]]:
    """Makes back ends for programs, which run on the language's own loop."""
    made: list[OpenAI] = []

    def make(is_chat: bool) -> OpenAI:
        made.append(OpenAI("smollm2", is_chat, base_url=server.url + "/v1", dialect="sglang"))
        return made[-1]

    yield make
    for backend in made:
        loop.call(backend.aclose())


@sgl.function
def chat(s: sgl.ProgramState) -> None:
    s += sgl.system("You are brief.")
    s += sgl.user("Is snow white?")
    s += sgl.assistant(sgl.select("white", ["yes", "no"]))
    forks = s.fork(2)
    forks += sgl.user("And coal?")
    forks += sgl.assistant(sgl.gen("coal", max_tokens=4))
    forks.join()


def test_a_chat_program(program_backend: Callable[[bool], OpenAI]) -> None:
    s = chat.run(temperature=0, backend=program_backend(True))
    assert s["white"] in ("yes", "no") and len(s["coal"]) == 2 and all(s["coal"])
    assert s.get_meta_info("white")["select_method"] == "constrained"
    assert [message["role"] for message in s.messages()] == ["system", "user", "assistant"]


@sgl.function
def complete(s: sgl.ProgramState) -> None:
    s += "The capital of France is" + sgl.gen("city", max_tokens=4, stop=".")
    s += ". It has" + sgl.gen("samples", max_tokens=3, n=2)


def test_a_completion_program(program_backend: Callable[[bool], OpenAI]) -> None:
    backend = program_backend(False)
    s = complete.run(temperature=0, backend=backend)
    assert s["city"] == " Paris" and s.text().startswith("The capital of France is Paris. It has")
    assert len(s["samples"]) == 2 and backend.token_usage.completion_tokens >= 6
    streamed = complete.run(temperature=0, stream=True, backend=backend)
    assert "".join(streamed.text_iter("city")) == " Paris"
    assert streamed.error() is None and len(streamed["samples"]) == 2


def test_a_chat_model_completes_nothing(program_backend: Callable[[bool], OpenAI]) -> None:
    error = complete.run(backend=program_backend(True)).error()
    assert isinstance(error, UnsupportedError)
