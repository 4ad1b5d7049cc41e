"""The HTTP transport against the gateway itself."""

import httpx
import pytest

from srt.errors import CONTEXT_LENGTH, OVERLOADED, RequestError, RingError
from srt.generation import Client, Request
from srt.http_client import HttpClient
from srt.messages import ChatMessage, Finish, ToolCall, ToolSpec
from srt.sampling_params import SamplingParams
from tests.fakes import FakeClient
from tests.srt.gateway_setup import served


async def test_text_with_logprobs_and_all_sampling_fields() -> None:
    fake = FakeClient()
    fake.jump_forward_tokens = 1
    sampling = SamplingParams(
        max_new_tokens=3, temperature=0.5, top_p=0.9, top_k=3, seed=4, stop=["x"], ignore_eos=True
    )
    async with served(fake) as server, HttpClient(server.url) as http:
        client: Client = http
        generation = await client.submit(
            Request(
                text="a b", sampling=sampling, return_logprob=True, logprob_start_len=0, rid="q"
            )
        )
        assert (generation.rid, generation.prompt_tokens) == ("q", 2)
        snapshots = [output async for output in generation]
        again = await generation.result()
    assert fake.requests[0].sampling == sampling
    assert [s.delta for s in snapshots] == ["Hello", ", ", "wörld"]
    assert [s.finish for s in snapshots] == [None, None, Finish("stop", 2)]
    assert snapshots[-1].output_ids == [100, 101, 102]
    assert snapshots[-1].output_logprobs == [-0.5] * 3
    assert snapshots[-1].prompt_logprobs == [(None, 0), (-0.25, 1)]
    assert snapshots[-1].cached_tokens == 3
    assert (snapshots[-1].jump_forward_tokens, snapshots[-1].forward_passes) == (1, 2)
    assert again == snapshots[-1]
    assert client.ring is None


async def test_messages_use_the_chat_route() -> None:
    fake = FakeClient()
    sampling = SamplingParams(max_new_tokens=None, min_new_tokens=1)
    async with served(fake) as server, HttpClient(server.url) as client:
        generation = await client.submit(
            Request(messages=[ChatMessage("user", "hi")], sampling=sampling)
        )
        output = await generation.result()
    assert fake.requests[0].messages == [ChatMessage("user", "hi")]
    assert fake.requests[0].sampling == sampling
    assert (output.text, output.finish) == ("Hello, wörld", Finish("stop", 2))
    assert (output.prompt_tokens, output.cached_tokens, output.completion_tokens) == (1, 3, 3)


async def test_constraints_and_tools_go_through() -> None:
    """As text: the chat route must take nothing out of it."""
    text = '<think>x</think><tool_call>\n{"name": "f"}\n</tool_call>'
    fake = FakeClient((text,))
    calls = [ToolCall("c1", "f", '{"a":1}')]
    messages = [
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "", tool_calls=calls, reasoning="Hm."),
        ChatMessage("tool", "2", tool_call_id="c1", name="g"),
    ]
    tools = [ToolSpec("f", "Do it.", '{"type":"object"}'), ToolSpec("g")]
    sampling = SamplingParams(choices=["a"], constraint_after="x", json_whitespace="free")
    async with served(fake, reasoning=True) as server, HttpClient(server.url) as client:
        request = Request(messages=messages, tools=tools)
        output = await (await client.submit(request)).result()
        plain = Request(messages=messages[:1], sampling=sampling)
        assert not (await client.submit(plain)).opens_reasoning
        await client.submit(Request(messages=messages[:1], sampling=SamplingParams(regex="a")))
        await client.submit(Request(text="a", sampling=SamplingParams(ebnf="b")))
        with pytest.raises(RequestError) as empty:
            await client.submit(Request(text="a", sampling=SamplingParams(regex="")))
    assert output.text == text
    assert fake.requests[0].messages == messages and fake.requests[0].tools == tools
    assert fake.requests[1].sampling == sampling
    assert fake.requests[2].sampling == SamplingParams(regex="a")
    assert fake.requests[3].sampling == SamplingParams(ebnf="b")
    assert empty.value.info.param == "regex"


async def test_refusals_keep_their_code_and_field() -> None:
    fake = FakeClient()
    fake.refusals[0] = RequestError("text is too long", param="text", code=CONTEXT_LENGTH)
    fake.refusals[1] = RequestError("full", code=OVERLOADED, retryable=True)
    fake.refusals[2] = RingError("starting")
    async with served(fake) as server, HttpClient(server.url) as client:
        with pytest.raises(RequestError) as too_long:
            await client.submit(Request(text="a"))
        with pytest.raises(RequestError) as full:
            await client.submit(Request(text="a"))
        with pytest.raises(RingError):
            await client.submit(Request(text="a"))
    assert (too_long.value.info.code, too_long.value.info.param) == (CONTEXT_LENGTH, "text")
    assert (full.value.info.code, full.value.info.retryable) == (OVERLOADED, True)


async def test_failure_while_running() -> None:
    fake = FakeClient()
    fake.error = RingError("died")
    async with served(fake) as server, HttpClient(server.url) as client:
        generation = await client.submit(Request(text="a"))
        with pytest.raises(RingError, match="died"):
            await generation.result()


async def test_aclose_aborts_on_the_server() -> None:
    fake = FakeClient()
    fake.hold.clear()
    async with served(fake) as server, HttpClient(server.url) as client:
        generation = await client.submit(Request(text="a"))
        async for _ in generation:
            break
        await generation.aclose()
        await generation.aclose()
        await fake.wait_aborted(1)
    assert fake.aborted == ["r0"]


async def test_operations_and_the_key() -> None:
    fake = FakeClient()
    async with served(fake, api_keys=("k1",)) as server:
        async with HttpClient(server.url, api_key="k1") as client:
            await client.flush_cache(1.5)
            assert (await client.stats())["cached_tokens_total"] == 7
            await client.abort("nobody")
            fake.busy = True
            with pytest.raises(RequestError) as busy:
                await client.flush_cache()
        async with HttpClient(server.url) as client:
            with pytest.raises(RequestError) as locked:
                await client.submit(Request(text="a"))
    assert fake.flushes == [1.5, 0.0]
    assert busy.value.info.code == "conflict"
    assert locked.value.info.code == "unauthorized"


async def test_what_the_transport_cannot_do_is_refused_by_name() -> None:
    async with HttpClient("http://unused") as client:
        with pytest.raises(RequestError) as logprobs:
            await client.submit(Request(messages=[ChatMessage("user", "a")], return_logprob=True))
        with pytest.raises(RequestError) as room:
            await client.submit(Request(text="a", sampling=SamplingParams(max_new_tokens=None)))
    assert logprobs.value.info.param == "return_logprob"
    assert room.value.info.param == "max_new_tokens"


async def test_no_server_and_foreign_errors() -> None:
    async with HttpClient("http://127.0.0.1:1") as client:
        with pytest.raises(RingError, match="cannot reach"):
            await client.submit(Request(text="a"))

    def plain(request: httpx.Request) -> httpx.Response:
        return httpx.Response(418, text="teapot")

    async with HttpClient("http://x", transport=httpx.MockTransport(plain)) as client:
        with pytest.raises(RequestError, match="teapot") as foreign:
            await client.submit(Request(text="a"))
    assert foreign.value.info.code == "bad_request"


async def test_a_truncated_stream_is_an_error() -> None:
    def cut(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b": ping\n\n")

    async with HttpClient("http://x", transport=httpx.MockTransport(cut)) as client:
        generation = await client.submit(Request(text="a"))
        with pytest.raises(RingError, match="before the end"):
            await generation.result()


async def test_line_separators_that_json_may_hold_do_not_end_a_line() -> None:
    text = "one\u2028two\u2029three\x85four"
    async with served(FakeClient((text,))) as server, HttpClient(server.url) as client:
        output = await (await client.submit(Request(text="a"))).result()
    assert output.text == text
