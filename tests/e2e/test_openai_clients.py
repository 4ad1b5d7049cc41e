"""Every kind of field of the OpenAI routes, through unmodified clients: `openai`, `litellm`, and
`httpx2` for what those hide. Answers are compared with each other, never with recorded text.
"""

import gc
import json
import math
from collections.abc import AsyncIterator, Iterable
from itertools import chain
from typing import Any

import httpx2
import openai
import pytest

from srt import AsyncClient
from srt.wire.sampling import sub_seed
from tests.e2e.server import Server

PROMPT = "The capital of France is"
CHAT: list[Any] = [{"role": "user", "content": "Say hello."}]
SAMPLED: dict[str, Any] = {"temperature": 1.5, "max_tokens": 8, "seed": 11}


@pytest.fixture
async def oai(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
        yield client


async def complete(oai: openai.AsyncOpenAI, prompt: Any = PROMPT, **fields: Any) -> Any:
    """A greedy completion of 8 tokens, unless the fields say otherwise."""
    asked = {"model": "smollm2", "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
    return await oai.completions.create(**asked)


async def chat(oai: openai.AsyncOpenAI, **fields: Any) -> Any:
    asked = {"model": "smollm2", "messages": CHAT, "temperature": 0, "max_tokens": 8, **fields}
    return await oai.chat.completions.create(**asked)


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


# ---- samples -------------------------------------------------------------------------------------


async def test_samples(oai: openai.AsyncOpenAI) -> None:
    """Each is what a request with its seed alone gives; the prompt counts once."""
    prompts = [PROMPT, "Once upon a time"]
    answer = await complete(oai, prompts, n=3, **SAMPLED)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len(set(texts)) == 6
    one = await complete(oai, prompts[1], **SAMPLED | {"seed": sub_seed(11, 2)})
    assert one.choices[0].text == texts[5]
    lengths = [(await complete(oai, prompt)).usage.prompt_tokens for prompt in prompts]
    assert answer.usage.prompt_tokens == sum(lengths)
    assert answer.usage.completion_tokens == 48
    stream = await complete(oai, prompts, n=3, stream=True, **SAMPLED)
    streamed = [""] * 6
    async for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


async def test_samples_of_a_chat(oai: openai.AsyncOpenAI) -> None:
    answer = await chat(oai, n=2, **SAMPLED)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) == 2
    stream = await chat(oai, n=2, stream=True, stream_options={"include_usage": True}, **SAMPLED)
    chunks = [chunk async for chunk in stream]
    streamed = ["", ""]
    for choice in flat(chunk.choices for chunk in chunks):
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    usages = [chunks[-1].usage.model_dump(), answer.usage.model_dump()]
    for usage in usages:  # what was cached, and guessed, may differ
        del usage["prompt_tokens_details"], usage["completion_tokens_details"]
    assert usages[0] == usages[1]


async def test_the_best_of_several(oai: openai.AsyncOpenAI) -> None:
    """The samples that have the best mean of all are returned."""
    every = (await complete(oai, n=4, logprobs=0, **SAMPLED)).choices
    best = (await complete(oai, n=2, best_of=4, logprobs=0, **SAMPLED)).choices

    def mean(choice: Any) -> float:
        return math.fsum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ranked = sorted(every, key=mean, reverse=True)[:2]
    assert {choice.text for choice in best} == {choice.text for choice in ranked}
    assert [choice.index for choice in best] == [0, 1]
    with pytest.raises(openai.BadRequestError) as error:
        await complete(oai, n=2, best_of=4, stream=True)
    assert error.value.param == "best_of"


# ---- what is sampled -----------------------------------------------------------------------------


async def test_single_tokens(oai: openai.AsyncOpenAI) -> None:
    """A bias can force or forbid tokens; so can lists of tokens and of words."""
    extra = {"return_token_ids": True}
    (paris,) = (await complete(oai, max_tokens=1, extra_body=extra)).choices[0].token_ids
    forced = await complete(oai, logit_bias={str(paris): 100}, extra_body=extra)
    assert forced.choices[0].token_ids == [paris] * 8
    for fields in (
        {"logit_bias": {str(paris): -100}},
        {"extra_body": {"bad_words": ["Paris"]}},
    ):
        assert "Paris" not in (await complete(oai, **fields)).choices[0].text
    allowed = {"allowed_token_ids": [paris, paris + 1], **extra}
    few = await complete(oai, extra_body=allowed)
    assert set(few.choices[0].token_ids) <= {paris, paris + 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 2.0}},
    ],
    ids=["frequency", "presence", "repetition"],
)
async def test_penalties_make_a_text_repeat_less(oai: openai.AsyncOpenAI, fields: Any) -> None:
    prompt = "blah blah blah blah blah blah"  # repeated by a wide margin at every token
    distinct = []
    both: list[dict[str, Any]] = [{}, fields]
    for more in both:
        extra = {"return_token_ids": True, "ignore_eos": True} | more.get("extra_body", {})
        asked = {"max_tokens": 12, **more, "extra_body": extra}
        distinct.append(len(set((await complete(oai, prompt, **asked)).choices[0].token_ids)))
    assert distinct[1] > distinct[0]


async def test_how_a_text_ends(oai: openai.AsyncOpenAI) -> None:
    text = (await complete(oai)).choices[0].text
    middle = text[4:7]
    cut = text[: text.index(middle)]
    kept = {"include_stop_str_in_output": True}
    pattern = {"stop_regex": "[P-Q]ari"}
    for fields, expected in (
        ({"stop": middle}, cut),
        ({"stop": [middle], "extra_body": kept}, cut + middle),
        ({"extra_body": pattern}, text[: text.index("Pari")]),
        ({"extra_body": {**pattern, "no_stop_trim": True}}, text[: text.index("Pari") + 4]),
        ({"stop": [middle], "extra_body": {"min_tokens": 8}}, text),
    ):
        answer = (await complete(oai, **fields)).choices[0]
        assert answer.text == expected
        stream = await complete(oai, **fields, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == expected


# ---- log-probabilities ---------------------------------------------------------------------------


async def test_logprobs_of_a_completion(oai: openai.AsyncOpenAI, server: Server) -> None:
    """The same as from /generate; a greedy token is the likeliest."""
    answer = (await complete(oai, logprobs=3)).choices[0]
    tokens, values, tops = (
        answer.logprobs.tokens,
        answer.logprobs.token_logprobs,
        answer.logprobs.top_logprobs,
    )
    assert "".join(tokens) == answer.text
    for token, offset in zip(tokens, answer.logprobs.text_offset, strict=True):
        assert answer.text[offset:].startswith(token)
    for token, value, top in zip(tokens, values, tops, strict=True):
        assert len(top) == 3 and max(top.values()) == value == top[token]
    async with AsyncClient(server.ring) as client:
        sampling = {"max_new_tokens": 8, "temperature": 0.0}
        plain = await client.generate(PROMPT, sampling=sampling, return_logprob=True)
    assert plain.output_logprobs == pytest.approx(values, abs=1e-3)


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"n": 2, "echo": True, "temperature": 1}])
async def test_a_streams_logprobs_are_those_of_the_whole(
    oai: openai.AsyncOpenAI, fields: Any
) -> None:
    asked = {"logprobs": 2, "seed": 3, "stop": [" a", "\n\nThe"], "max_tokens": 12, **fields}
    whole = await complete(oai, **asked)
    chunks = [chunk.choices[0] async for chunk in await complete(oai, **asked, stream=True)]
    for choice in whole.choices:
        mine = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(chunk.text for chunk in mine) == choice.text
        told = [chunk.logprobs for chunk in mine if chunk.logprobs]
        assert flat(part.tokens for part in told) == choice.logprobs.tokens
        assert flat(part.text_offset for part in told) == choice.logprobs.text_offset
        first = 1 if fields.get("echo") else 0  # the prompt's first token has none
        assert flat(part.token_logprobs for part in told)[first:] == pytest.approx(
            choice.logprobs.token_logprobs[first:], abs=1e-3
        )


async def test_a_prompt_is_scored_as_evaluations_do(
    oai: openai.AsyncOpenAI, server: Server
) -> None:
    """Batches of ids, echoed without new tokens: a continuation's sum is its score."""
    async with AsyncClient(server.ring) as client:
        prefix = await client.tokenize(PROMPT)
        choices = [await client.tokenize(text) for text in (" Paris", " Rome, of course")]
        score = await client.score(input_ids=prefix, continuations=choices)
    prompts = [prefix + ids for ids in choices]
    for new in (0, 1):
        answer = await complete(oai, prompts, echo=True, logprobs=1, max_tokens=new)
        for choice, wanted, ids in zip(answer.choices, score.choices, prompts, strict=True):
            values = choice.logprobs.token_logprobs[len(prefix) : len(ids)]
            assert choice.logprobs.token_logprobs[0] is None
            assert math.fsum(values) == pytest.approx(wanted.total, abs=1e-2)
            assert len(choice.logprobs.tokens) == len(ids) + new
            assert choice.text.startswith(PROMPT)
        greedy = answer.choices[0].logprobs
        assert max(greedy.top_logprobs[len(prefix)].values()) == greedy.token_logprobs[len(prefix)]
        assert answer.choices[0].finish_reason == "length"


async def test_logprobs_of_a_chat(oai: openai.AsyncOpenAI) -> None:
    answer = (await chat(oai, logprobs=True, top_logprobs=2)).choices[0]
    content = answer.logprobs.content
    assert "".join(entry.token for entry in content) == answer.message.content
    for entry in content:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token
        assert entry.logprob == entry.top_logprobs[0].logprob
    stream = await chat(oai, logprobs=True, top_logprobs=2, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    told = flat(chunk.logprobs.content for chunk in chunks if chunk.logprobs)
    assert [entry.token for entry in told] == [entry.token for entry in content]


async def test_logprobs_of_forced_text(oai: openai.AsyncOpenAI) -> None:
    """Jumps may replace tokens: the stream reports them when they are final."""
    form: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {
                "type": "object",
                "properties": {"a long name": {"enum": ["yes", "no"]}, "b": {"type": "boolean"}},
                "required": ["a long name", "b"],
                "additionalProperties": False,
            },
        },
    }
    asked = {"response_format": form, "logprobs": True, "max_tokens": 60}
    whole = (await chat(oai, **asked)).choices[0]
    chunks = [chunk.choices[0] async for chunk in await chat(oai, **asked, stream=True)]
    assert set(json.loads(whole.message.content)) == {"a long name", "b"}
    told = flat(chunk.logprobs.content for chunk in chunks if chunk.logprobs)
    assert [entry.token for entry in told] == [entry.token for entry in whole.logprobs.content]
    written = b"".join(bytes(entry.bytes) for entry in told).decode()
    assert written.startswith(whole.message.content)


async def test_prompt_logprobs_and_ids(oai: openai.AsyncOpenAI, server: Server) -> None:
    """vLLM's fields, which the package passes on."""
    extra = {"prompt_logprobs": 1, "return_token_ids": True}
    async with AsyncClient(server.ring) as client:
        ids = await client.tokenize(PROMPT)
    choice = (await complete(oai, max_tokens=1, extra_body=extra)).choices[0]
    assert choice.prompt_token_ids == ids and len(choice.token_ids) == 1
    assert choice.prompt_logprobs[0] is None
    for token, entries in zip(ids[1:], choice.prompt_logprobs[1:], strict=True):
        assert str(token) in entries and 1 <= len(entries) <= 2
        assert [entry["rank"] for entry in entries.values()].count(1) == 1
    answer = await chat(oai, max_tokens=1, extra_body=extra)
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    stream = await chat(oai, stream=True, extra_body={"return_token_ids": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].prompt_token_ids == answer.prompt_token_ids
    told = flat(getattr(chunk.choices[0], "token_ids", None) or [] for chunk in chunks)
    assert len(told) == 8


# ---- chats ---------------------------------------------------------------------------------------


async def test_the_last_message_goes_on(oai: openai.AsyncOpenAI) -> None:
    """The answer continues it, so the prompt neither ends this message nor begins a new one."""
    begun = [*CHAT, {"role": "assistant", "content": "Hello, my name is"}]
    extra: Any = {"continue_final_message": True, "return_token_ids": True}
    goes_on = await chat(oai, messages=begun, extra_body=extra)
    plain = await chat(oai, messages=begun)
    headless = await chat(
        oai, messages=begun, extra_body={"add_generation_prompt": False}, max_tokens=1
    )
    assert goes_on.usage.prompt_tokens < headless.usage.prompt_tokens < plain.usage.prompt_tokens
    same = await complete(oai, goes_on.prompt_token_ids)
    assert goes_on.choices[0].message.content == same.choices[0].text


async def test_variables_of_the_template(oai: openai.AsyncOpenAI) -> None:
    """The embedded model's template has none: values for them change nothing."""
    answer = await chat(oai, reasoning_effort="high", verbosity="low", user="me", store=True)
    assert answer.choices[0].message.content == (await chat(oai)).choices[0].message.content


# ---- responses -----------------------------------------------------------------------------------


async def test_responses(oai: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": "smollm2", "temperature": 0, "max_output_tokens": 8}
    same = (await chat(oai)).choices[0].message.content
    answer = await oai.responses.create(input="Say hello.", store=False, **asked)
    assert answer.output_text == same and answer.usage is not None
    assert answer.status == "incomplete" and answer.usage.output_tokens == 8
    async with oai.responses.stream(input=CHAT, **asked) as stream:
        kinds = [event.type async for event in stream]
    assert "response.output_text.delta" in kinds and kinds[-1] == "response.incomplete"
    history = [*CHAT, *[item.model_dump() for item in answer.output], *CHAT]
    asked |= {"input": history}
    longer = await oai.responses.create(instructions="Be brief.", **asked)
    assert longer.usage is not None and longer.usage.input_tokens > answer.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as error:
        await oai.responses.create(previous_response_id=answer.id, **asked)
    assert error.value.param == "previous_response_id"


async def test_responses_with_a_schema_and_with_tools(oai: openai.AsyncOpenAI) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    asked: Any = {"model": "smollm2", "temperature": 0, "input": "Where is the Louvre?"}
    form: Any = {"format": {"type": "json_schema", "name": "place", "schema": schema}}
    answer = await oai.responses.create(text=form, **asked)
    assert json.loads(answer.output_text)["city"] in ("Paris", "Rome")
    tool: Any = {"type": "function", "name": "go", "parameters": schema, "strict": True}
    asked |= {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    async with oai.responses.stream(**asked) as stream:
        async for _ in stream:
            pass
        (call,) = (await stream.get_final_response()).output
    assert call.type == "function_call" and set(json.loads(call.arguments)) == {"city"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    item = call.model_dump(include={"type", "id", "call_id", "name", "arguments", "status"})
    history: list[Any] = [{"role": "user", "content": asked.pop("input")}, item, result]
    last = await oai.responses.create(
        **asked | {"tool_choice": "none"}, input=history, max_output_tokens=8
    )
    assert last.output_text


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["completions", "chat.completions", "responses"])
async def test_errors(oai: openai.AsyncOpenAI, route: str) -> None:
    """Each error has its class, its code and the field's name."""
    create: Any = oai
    for name in route.split("."):
        create = getattr(create, name)
    long = "x " * 9000
    prompts: dict[str, tuple[dict[str, Any], str]] = {
        "completions": ({"prompt": long}, "prompt"),
        "chat.completions": ({"messages": [{"role": "user", "content": long}]}, "messages"),
        "responses": ({"input": long}, "input"),
    }
    prompt, param = prompts[route]
    with pytest.raises(openai.BadRequestError) as error:
        await create.create(model="smollm2", **prompt)
    assert (error.value.code, error.value.type) == (
        "context_length_exceeded",
        "invalid_request_error",
    )
    assert error.value.param in (param, "max_tokens")
    assert "maximum context length is 8192 tokens" in error.value.message
    short: dict[str, Any] = {name: CHAT if name == "messages" else "a" for name in prompt}
    short["extra_body"] = {"num_predict": 1}
    answer = await create.with_raw_response.create(model="gpt-4o", **short)
    assert (answer.headers["x-ignored-fields"], answer.parse().model) == ("model", "smollm2")
    with pytest.raises(openai.BadRequestError) as bad:
        await create.create(model="smollm2", temperature=-1, **short)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unknown:
        await create.create(model="smollm2", **short | {"extra_body": {"temprature": 1}})
    assert unknown.value.param == "temprature"


# ---- httpx2 --------------------------------------------------------------------------------------


async def test_events_as_they_are_on_the_wire(server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 4, "n": 2, "ignore_eos": True}
    body["stream_options"] = options
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 8
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {5}
    assert chunks[-1]["choices"] == []


async def test_leaving_a_stream_ends_all_its_samples(server: Server) -> None:
    body = {
        "prompt": PROMPT,
        "stream": True,
        "max_tokens": 2000,
        "n": 4,
        "ignore_eos": True,
        "speculative": "off",
    }
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json=body) as response,
    ):
        async for _ in response.aiter_lines():
            break
    server.wait_idle()


# ---- litellm -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def litellm() -> Any:
    """The package, without fetching its list of prices from the web."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm
    litellm.suppress_debug_info = True
    return litellm


@pytest.fixture
async def through(server: Server, litellm: Any) -> AsyncIterator[dict[str, Any]]:
    """Arguments of litellm's functions."""
    yield {"model": "openai/smollm2", "api_base": server.url + "/v1", "api_key": "any"}
    litellm.in_memory_llm_clients_cache.flush_cache()
    gc.collect()  # connections left open are collected here, where KEEPS_CONNECTIONS is in force


KEEPS_CONNECTIONS = pytest.mark.filterwarnings("ignore:[Uu]nclosed:ResourceWarning")


@pytest.mark.full
@KEEPS_CONNECTIONS
async def test_litellm_chat(litellm: Any, through: dict[str, Any], oai: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_tokens": 8}
    same = (await chat(oai)).choices[0].message.content
    answer = await litellm.acompletion(**asked, n=2, logprobs=True, top_logprobs=1, **through)
    assert [choice.message.content for choice in answer.choices] == [same, same]
    assert len(answer.choices[1].logprobs.content) == 8
    assert answer.usage.completion_tokens == 16
    options = {"include_usage": True}
    stream = await litellm.acompletion(**asked, stream=True, stream_options=options, **through)
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == same
    assert any(getattr(chunk, "usage", None) for chunk in chunks)
    bias: Any = {"frequency_penalty": 1.0, "seed": 1, "stop": ["."], "logit_bias": {"5": -1}}
    assert (await litellm.acompletion(**asked, **bias, **through)).choices[0].finish_reason


@pytest.mark.full
@KEEPS_CONNECTIONS
async def test_litellm_tools_and_schemas(litellm: Any, through: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 2]}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    asked: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_tokens": 60}
    calls = await litellm.acompletion(**asked, tools=[tool], tool_choice="required", **through)
    made = calls.choices[0].message.tool_calls[0].function
    assert made.name == "f" and json.loads(made.arguments)["a"] in (1, 2)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = await litellm.acompletion(**asked, response_format=form, **through)
    assert json.loads(answer.choices[0].message.content)["a"] in (1, 2)


@KEEPS_CONNECTIONS
async def test_litellm_completions_and_responses(litellm: Any, through: dict[str, Any]) -> None:
    text = through | {"model": "text-completion-openai/smollm2"}
    asked: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4}
    answer = await litellm.atext_completion(**asked, echo=True, logprobs=1, **text)
    assert answer.choices[0].text.startswith(PROMPT)
    assert len(answer.choices[0].logprobs.tokens) == 9
    response = await litellm.aresponses(input="Say hello.", max_output_tokens=4, **through)
    assert response.output[0].content[0].text and response.usage.output_tokens == 4


@KEEPS_CONNECTIONS
async def test_litellm_errors(litellm: Any, through: dict[str, Any]) -> None:
    """It chooses an exception by the status and text of an error."""
    with pytest.raises(litellm.ContextWindowExceededError):
        long = [{"role": "user", "content": "x " * 9000}]
        await litellm.acompletion(messages=long, num_retries=0, **through)
    with pytest.raises(litellm.BadRequestError):
        await litellm.acompletion(messages=CHAT, top_p=0, num_retries=0, **through)
