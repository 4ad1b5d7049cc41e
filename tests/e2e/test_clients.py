"""The clients of a server: the unmodified `openai` package, and `srt.AsyncClient` both ways.

`AsyncClient` must give the same for the same call over the ring and over HTTP, and no client may
disturb another.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import openai
import pytest

from srt import AsyncClient
from srt.client.generation import GenerateOutput
from srt.ring.places import LEASE_S, RING_LOST_S, send_now
from srt.wire.errors import NOT_FOUND, ConfigError, RequestError, RingError
from srt.wire.messages import Finish, Goodbye
from srt.wire.sampling import SamplingParams
from tests.e2e.server import Server
from tests.waiting import SOON_S

PROMPT = "The capital of France is"
GREEDY = {"max_new_tokens": 6, "temperature": 0.0}
LONG = {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0.0, "speculative": "off"}
CHAT: list[Any] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
async def oai(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any") as client:
        yield client


@asynccontextmanager
async def both(server: Server) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """A client over the ring and one over HTTP."""
    async with AsyncClient(server.ring) as ring, AsyncClient(server.url) as http:
        yield ring, http


# ---- the openai package --------------------------------------------------------------------------


async def test_openai_completion(oai: openai.AsyncOpenAI) -> None:
    answer = await oai.completions.create(
        model="smollm2", prompt=PROMPT, temperature=0, max_tokens=6
    )
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 6
    stream = await oai.completions.create(
        model="smollm2", prompt=PROMPT, temperature=0, max_tokens=6, stream=True
    )
    text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == answer.choices[0].text


async def test_openai_chat(oai: openai.AsyncOpenAI) -> None:
    answer = await oai.chat.completions.create(
        model="smollm2", messages=CHAT, temperature=0, max_completion_tokens=6, user="someone"
    )
    stream = await oai.chat.completions.create(
        model="smollm2",
        messages=CHAT,
        temperature=0,
        max_completion_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    deltas = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(deltas) == answer.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None and answer.usage is not None
    assert usage.completion_tokens == answer.usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


async def test_openai_extras(oai: openai.AsyncOpenAI) -> None:
    """Fields that the package does not know, as its `extra_body`; stop strings; models."""
    answer = await oai.completions.create(
        model="smollm2",
        prompt=PROMPT,
        max_tokens=6,
        temperature=0,
        stop=["ris"],
        extra_body={"top_k": 1, "ignore_eos": True},
    )
    assert answer.choices[0].text == " Pa" and answer.choices[0].finish_reason == "stop"
    assert [model.id async for model in oai.models.list()] == ["smollm2"]


async def test_openai_errors(oai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await oai.chat.completions.create(model="smollm2", messages=CHAT, top_p=0)
    assert bad.value.param == "top_p" and bad.value.code == "bad_request"
    with pytest.raises(openai.NotFoundError) as missing:
        await oai.models.retrieve("gpt-4o")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        await oai.completions.create(model="smollm2", prompt="x " * 9000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        await oai.chat.completions.create(
            model="smollm2",
            messages=CHAT,
            tools=[{"type": "function", "function": {"name": "a b"}}],
        )
    assert tools.value.param == "tools[0].function.name"


async def test_openai_stream_left_early(oai: openai.AsyncOpenAI, server: Server) -> None:
    stream = await oai.completions.create(
        model="smollm2",
        prompt=PROMPT,
        max_tokens=500,
        stream=True,
        extra_body={"ignore_eos": True, "speculative": "off"},
    )
    async for _ in stream:
        break
    await stream.close()
    await assert_soon_idle(server)


# ---- srt.AsyncClient, both ways ------------------------------------------------------------------


async def assert_soon_idle(server: Server) -> None:
    """The server is idle within a few steps, long before 500 tokens."""
    steps = (await asyncio.to_thread(server.stats))["forward_steps_total"]
    stats = await asyncio.to_thread(server.wait_idle)
    assert stats["forward_steps_total"] - steps < 100


def facts(output: GenerateOutput) -> tuple[Any, ...]:
    """What must be the same over the ring and over HTTP."""
    finish = output.finish
    assert finish is not None
    return (
        output.text,
        output.output_ids,
        (finish.type, finish.matched),
        output.prompt_tokens,
        output.completion_tokens,
    )


async def last_of_stream(client: AsyncClient, **request: Any) -> GenerateOutput:
    """The last snapshot of a stream, whose deltas must add up to its text."""
    outputs = [output async for output in client.stream(**request)]
    assert "".join(output.delta for output in outputs) == outputs[-1].text
    assert all(output.finish is None for output in outputs[:-1])
    return outputs[-1]


CALLS: dict[str, dict[str, Any]] = {
    "text": {"text": PROMPT, "sampling": GREEDY},
    "input_ids": {"input_ids": [504, 3575, 282, 4649, 314], "sampling": GREEDY},
    "stop": {"text": PROMPT, "sampling": {**GREEDY, "stop": ["ris"]}},
    "nothing new": {"text": PROMPT, "sampling": {"max_new_tokens": 0}},
    "params": {"text": PROMPT, "sampling": SamplingParams(max_new_tokens=4, temperature=0.0)},
    "seed": {"text": PROMPT, "sampling": {"max_new_tokens": 6, "temperature": 1.3, "seed": 11}},
}


@pytest.mark.parametrize("call", CALLS)
async def test_both_ways_give_the_same(server: Server, call: str) -> None:
    """Complete and streamed answers, all requested at once."""
    async with both(server) as (ring, http):
        outputs = await asyncio.gather(
            ring.generate(**CALLS[call]),
            http.generate(**CALLS[call]),
            last_of_stream(ring, **CALLS[call]),
            last_of_stream(http, **CALLS[call]),
        )
        results = [facts(output) for output in outputs]
        assert results.count(results[0]) == 4, results


async def test_both_ways_give_the_same_chat(server: Server) -> None:
    async with both(server) as clients:
        answers = [await c.generate(messages=CHAT, sampling=GREEDY) for c in clients]
        streamed = [await last_of_stream(c, messages=CHAT, sampling=GREEDY) for c in clients]
    results = [facts(answer) for answer in (*answers, *streamed)]
    assert results.count(results[0]) == 4 and results[0][0] != "", results
    assert answers[0].rid and answers[1].rid
    assert answers[0].cached_tokens <= answers[1].cached_tokens == results[0][3] - 1


async def test_both_ways_give_the_same_chat_with_tools_and_logprobs(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "greet", "description": "Say hello."}}]
    asked: dict[str, Any] = {
        "messages": [*CHAT, {"role": "assistant", "content": "Hello"}],
        "tools": tools,
        "chat": {"continue_final": True},
        "sampling": GREEDY,
        "return_logprob": True,
        "logprob_start_len": 0,
        "logprob_token_ids": [5],
    }
    async with both(server) as clients:
        answers = [await c.generate(**asked) for c in clients]
        chat = {name: asked[name] for name in ("messages", "tools", "chat")}
        ids = [await c.tokenize(**chat) for c in clients]
        errors = []
        for client in clients:
            with pytest.raises(RequestError) as caught:
                await client.generate(**asked | {"sampling": {"top_p": 0.0}})
            errors.append(caught.value.info)
    ring, http = answers
    assert facts(ring) == facts(http) and ring.text != ""
    assert ids[0] == ids[1] == [token for _, token in http.prompt_logprobs or []]
    for mine, its in zip(ring.output_id_logprobs or [], http.output_id_logprobs or [], strict=True):
        assert mine == pytest.approx(its, abs=1e-3)
    assert errors[0] == errors[1]


async def test_both_ways_give_the_same_logprobs(server: Server) -> None:
    async with both(server) as clients:
        ring, http = [
            await c.generate(PROMPT, sampling=GREEDY, return_logprob=True, logprob_start_len=0)
            for c in clients
        ]
    assert ring.output_logprobs is not None and http.output_logprobs is not None
    assert ring.output_logprobs == pytest.approx(http.output_logprobs, abs=1e-3)
    assert ring.prompt_logprobs is not None and http.prompt_logprobs is not None
    assert ring.prompt_logprobs[0][0] is None and http.prompt_logprobs[0][0] is None
    assert [token for _, token in ring.prompt_logprobs] == [t for _, t in http.prompt_logprobs]
    values = [[value for value, _ in o.prompt_logprobs or []][1:] for o in (ring, http)]
    assert values[0] == pytest.approx(values[1], abs=1e-3)


async def test_both_ways_raise_the_same(server: Server) -> None:
    async with both(server) as clients:
        for sampling, param in (({"top_p": 0.0}, "top_p"), ({"stop": [""]}, "stop")):
            infos = []
            for client in clients:
                with pytest.raises(RequestError) as caught:
                    await client.generate(PROMPT, sampling=sampling)
                infos.append(caught.value.info)
            assert infos[0].param == param and infos[1].message == infos[0].message
            assert infos[0].code == infos[1].code
        stats = [await client.stats() for client in clients]
        assert stats[0]["max_total_tokens"] == stats[1]["max_total_tokens"]
        for client in clients:
            await client.flush_cache(timeout_s=5)


async def test_the_same_rid_at_two_clients(server: Server) -> None:
    """A rid belongs to its client: neither requests nor an abort are confused."""
    async with AsyncClient(server.ring) as one, AsyncClient(server.ring) as two:
        first = await one.submit(text="Once upon a time", sampling=LONG, stream=True, rid="r")
        expected = await two.generate(PROMPT, sampling=GREEDY)
        output = await two.generate(PROMPT, sampling=GREEDY, rid="r")
        assert output.rid == "r" and facts(output) == facts(expected)
        await two.abort("r")
        snapshots = aiter(first)
        before = (await anext(snapshots)).completion_tokens
        assert (await anext(snapshots)).completion_tokens > before
        with pytest.raises(RequestError) as caught:
            await one.submit(text=PROMPT, rid="r")
        assert caught.value.info.param == "rid"
        await one.abort("r")
        last = [snapshot async for snapshot in snapshots][-1]
        assert last.finish is not None and last.finish.type == "abort"
        assert (await one.generate(PROMPT, sampling=GREEDY, rid="r")).text == expected.text
    await asyncio.to_thread(server.wait_idle)


@pytest.mark.parametrize("way", ["ring", "http"])
async def test_a_stream_left_early_is_aborted(server: Server, way: str) -> None:
    async with AsyncClient(server.ring if way == "ring" else server.url) as client:
        async with aclosing(client.stream(PROMPT, sampling=LONG)) as outputs:
            async for output in outputs:
                if output.completion_tokens >= 2:
                    break
        await assert_soon_idle(server)
        assert (await client.generate(PROMPT, sampling=GREEDY)).text.startswith(" Paris")


@pytest.mark.parametrize("way", ["ring", "http"])
async def test_a_cancelled_call_is_aborted(server: Server, way: str) -> None:
    """It is cancelled while it waits for its tokens, or for its admission."""
    async with AsyncClient(server.ring if way == "ring" else server.url) as client:
        for delay_s in (0.0, 0.5):
            call = asyncio.ensure_future(client.generate(PROMPT, sampling=LONG))
            await asyncio.sleep(delay_s)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await assert_soon_idle(server)


@pytest.mark.parametrize("way", ["ring", "http"])
async def test_an_abort_by_rid(server: Server, way: str) -> None:
    async with AsyncClient(server.ring if way == "ring" else server.url) as client:
        generation = await client.submit(text=PROMPT, sampling=LONG, stream=True, rid=f"a-{way}")
        async for output in generation:
            if output.finish is None:
                await client.abort(f"a-{way}")
        assert output.finish is not None and output.finish.type == "abort"
        assert output.completion_tokens == len(output.output_ids) < 500
        await client.abort("unknown")
    await asyncio.to_thread(server.wait_idle)


async def test_where_no_server_is(server: Server) -> None:
    with pytest.raises(ConfigError, match="no ring at"):
        AsyncClient("ipc:///nonexistent/ring")
    with pytest.raises(ConfigError, match="expected http"):
        AsyncClient("ftp://somewhere")
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(RingError) as caught:
            await client.generate(PROMPT)
        assert caught.value.info.retryable
    async with AsyncClient(server.url + "/nowhere") as client:
        with pytest.raises(RequestError) as wrong:
            await client.generate(PROMPT)
        assert wrong.value.info.code == NOT_FOUND


@pytest.mark.parametrize("way", ["ring", "http"])
async def test_a_closed_client_says_so(server: Server, way: str) -> None:
    """A stream in flight ends with an error at once, and later calls are refused."""
    client = AsyncClient(server.ring if way == "ring" else server.url)
    async with client:
        outputs = client.stream(PROMPT, sampling=LONG)
        await anext(outputs)
    with pytest.raises(RingError):
        async for _ in outputs:
            pass
    with pytest.raises(RingError, match=r"the client was closed|cannot be reached"):
        await client.generate(PROMPT)
    await assert_soon_idle(server)


# ---- one client, many requests -------------------------------------------------------------------


async def test_a_flush_beside_a_request_harms_neither(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        for _ in range(5):
            flushed, output = await asyncio.gather(
                client.flush_cache(20.0), client.generate(PROMPT, sampling=GREEDY)
            )
            assert flushed is None and output.completion_tokens == 6


async def test_flushes_that_wait_do_not_hide_the_statistics(server: Server) -> None:
    """More flushes than may wait: the others fail at once, because the cache is in use."""
    async with AsyncClient(server.ring) as client:
        async with aclosing(client.stream("Once upon a time", sampling=LONG)) as stream:
            await anext(stream)
            flushes = [asyncio.ensure_future(client.flush_cache(250.0)) for _ in range(20)]
            async with asyncio.timeout(SOON_S):
                while sum(task.done() for task in flushes) < 12:
                    await asyncio.sleep(0.01)
            done = [task for task in flushes if task.done()]
            waiting = [task for task in flushes if not task.done()]
            assert len(done) == 12 and len(waiting) == 8
            errors = [task.exception() for task in done]
            assert all(isinstance(e, RequestError) and e.info.code == "conflict" for e in errors)
            assert (await client.stats())["num_running_reqs"] == 1
        await asyncio.gather(*waiting)


async def test_a_rid_can_be_used_again_as_soon_as_its_answer_is_there(server: Server) -> None:
    """Even after a stop string, when the scheduler is the last to know of the end."""
    async with AsyncClient(server.ring) as client:
        for _ in range(10):
            sampling = {**GREEDY, "stop": [" Paris"]}
            output = await client.generate(PROMPT, sampling=sampling, rid="again")
            assert output.finish is not None and output.finish.matched == " Paris"
            generation = await client.submit(text="Once upon", sampling=LONG, rid="again")
            await generation.aclose()


async def test_a_program_that_blocks_its_loop_loses_nothing(server: Server) -> None:
    """It blocks for longer than a server may be silent, but not longer than its lease."""
    sampling = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 0.0}
    async with AsyncClient(server.ring) as client:
        statistics = asyncio.ensure_future(client.stats())
        async with aclosing(client.stream(PROMPT, sampling=sampling)) as stream:
            last = await anext(stream)  # of a busy client, all that has come
            time.sleep(RING_LOST_S + 1)
            async for output in stream:
                last = output
        assert (last.finish, last.completion_tokens) == (Finish("length"), 40)
        assert await statistics


async def test_after_a_pause_a_client_asks_whether_its_lease_is_over(server: Server) -> None:
    """A request after the pause succeeds, whether the lease is over or not."""
    async with AsyncClient(server.ring) as client:
        for is_over in (False, True):
            if is_over:
                send_now(client._transport._link._sockets.back, Goodbye())
            client._transport._link._hello_at -= 2 * LEASE_S
            output = await client.generate(PROMPT, sampling=GREEDY)
            assert output.text.startswith(" Paris")
