"""The HTTP transport against the gateway itself."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from srt.client.generation import Client, Request, TokenizeRequest
from srt.client.http.client import HttpClient
from srt.wire.answer_meta import DraftCounts
from srt.wire.errors import CONTEXT_LENGTH, OVERLOADED, RequestError, RingError
from srt.wire.messages import ChatMessage, ChatOptions, Finish, ToolCall, ToolSpec
from srt.wire.sampling import SamplingParams, Scoring
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served
from tests.waiting import SOON_S

EVENTS = {"content-type": "text/event-stream"}


async def test_sessions_over_http_have_no_numbers() -> None:
    """The route that opens them knows no such sessions; Parrot's routes ask over the ring."""
    async with served(FakeClient()) as server, HttpClient(server.url) as http:
        with pytest.raises(RingError, match="no numbers"):
            await http.programs.open_session(is_numbered=True)


async def test_text_with_logprobs_and_all_sampling_fields() -> None:
    fake = FakeClient()
    fake.jump_forward_tokens = 1
    fake.facts = {"queued_s": 0.0, "ttft_s": 0.25}
    fake.drafts = DraftCounts(verified=2, drafted=5, accepted=1)
    sampling = SamplingParams(
        max_new_tokens=3, temperature=0.5, top_p=0.9, top_k=3, seed=4, stop=["x"], ignore_eos=True
    )
    async with served(fake) as server, HttpClient(server.url) as http:
        client: Client = http
        generation = await client.submit(
            Request(text="a b", sampling=sampling, scoring=Scoring(start=0), rid="q")
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
    times = [(each.queued_s, each.ttft_s, each.decode_s) for each in snapshots]
    assert times == [(None,) * 3, (None,) * 3, (0.0, 0.25, None)]
    assert [each.drafts for each in snapshots] == [fake.drafts] * 3
    assert again == snapshots[-1]
    assert client.ring is None


async def test_a_whole_answer_is_what_a_stream_ends_with() -> None:
    fake = FakeClient()
    asked = Request(
        text="a b",
        sampling=SamplingParams(max_new_tokens=3, seed=4),
        scoring=Scoring(start=0, top=2, ids=[7]),
        rid="q",
    )
    several = replace(asked, sampling=replace(asked.sampling, n=3))
    chat = replace(asked, text=None, messages=[ChatMessage("user", "hi")], scoring=None)
    async with served(fake) as server, HttpClient(server.url) as client:
        unbounded = replace(asked, sampling=SamplingParams(max_new_tokens=None))
        for request in (asked, several, chat, unbounded):
            whole = await client.complete(request)
            streamed = [await each.result() for each in await client.submit_samples(request)]
            assert [replace(each, delta="") for each in whole] == [
                replace(each, delta="") for each in streamed
            ]
        streams = [each.stream for each in fake.requests]
        assert streams == [False, True, False, True, False, True, True, True]


async def test_a_whole_answer_that_is_cancelled_ends_on_the_server() -> None:
    fake = FakeClient()
    fake.hold.clear()
    async with served(fake) as server, HttpClient(server.url) as client:
        task = asyncio.ensure_future(client.complete(Request(text="a", rid="q")))
        await fake.wait_submitted(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.wait_aborted(1)
    assert fake.aborted == ["q"]


async def test_messages() -> None:
    fake = FakeClient()
    sampling = SamplingParams(max_new_tokens=None, min_new_tokens=1)
    async with served(fake) as server, HttpClient(server.url) as client:
        generation = await client.submit(
            Request(messages=[ChatMessage("user", "hi")], sampling=sampling)
        )
        assert generation.meta.prompt_tokens == 1
        output = await generation.result()
    assert fake.requests[0].messages == [ChatMessage("user", "hi")]
    assert fake.requests[0].sampling == sampling
    assert (output.text, output.finish) == ("Hello, wörld", Finish("stop", 2))
    assert (output.prompt_tokens, output.cached_tokens, output.completion_tokens) == (1, 3, 3)
    assert output.output_ids == [100, 101, 102]


async def test_all_sampling_fields_go_through() -> None:
    fake = FakeClient()
    sampling = SamplingParams(
        min_new_tokens=2,
        min_p=0.1,
        stop_token_ids=[7],
        skip_special_tokens=False,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={5: 1.5, 999: -100.0},
        allowed_token_ids=[1, 2],
        bad_words=["no"],
        stop_regex=["a+", "b"],
        no_stop_trim=True,
        token_healing=True,
        jump_forward="off",
        speculative="off",
    )
    async with served(fake) as server, HttpClient(server.url) as client:
        await client.submit(Request(text="a", sampling=sampling))
        await client.submit(Request(messages=[ChatMessage("user", "hi")], sampling=sampling))
    assert [request.sampling for request in fake.requests] == [sampling, sampling]


async def test_how_the_template_writes_a_chat_goes_through() -> None:
    fake = FakeClient()
    messages = [ChatMessage("user", "hi"), ChatMessage("assistant", "ho")]
    options = [
        ChatOptions(template_args='{"a":[1]}', add_generation_prompt=False),
        ChatOptions(continue_final=True, add_generation_prompt=False),
        ChatOptions(),
    ]
    tools = [ToolSpec("f")]
    async with served(fake) as server, HttpClient(server.url) as client:
        for chat in options:
            await client.submit(Request(messages=messages, chat=chat, tools=tools))
            asked = TokenizeRequest(messages=messages, chat=chat, tools=tools)
            assert await client.tokenize(asked) == [2, 2]
            assert fake.requests[-1].chat == chat
            assert fake.tokenized[-1] == replace(asked, tenant="ip:127.0.0.1")


async def test_log_probabilities_with_all_details() -> None:
    """For texts and for chats."""
    fake = FakeClient()
    asked = Request(
        text="a b",
        scoring=Scoring(start=0, top=2, ids=[7, 9]),
        sampling=SamplingParams(max_new_tokens=2),
    )
    chat = msgspec.structs.replace(asked, text=None, messages=[ChatMessage("user", "hi")])
    async with served(fake) as server, HttpClient(server.url) as client:
        for request in (asked, chat):
            output = await (await client.submit(request)).result()
            top = [(-0.5, 100), (-1.5, 101)]
            assert output.output_logprobs == [-0.5, -0.5]
            assert output.output_top_logprobs == [top, top]
            assert output.prompt_top_logprobs == [None, top]
            assert output.output_id_logprobs == [[-7.0, -9.0]] * 2
            assert output.prompt_id_logprobs == [None, [-7.0, -9.0]]
        plain = await (await client.submit(Request(text="a", scoring=Scoring()))).result()
    assert (fake.requests[1].messages, fake.requests[1].scoring) == (chat.messages, chat.scoring)
    assert (plain.output_top_logprobs, plain.prompt_id_logprobs) == (None, None)


async def test_tokenize() -> None:
    fake = FakeClient()
    async with served(fake) as server, HttpClient(server.url) as client:
        assert await client.tokenize(TokenizeRequest(text="a bc")) == [1, 1, 2]
        plain = TokenizeRequest(text="a bc", add_special_tokens=False)
        assert await client.tokenize(plain) == [1, 2]
        with pytest.raises(RequestError, match="refused"):
            await client.tokenize(TokenizeRequest(text="refused"))


# ---- samples -------------------------------------------------------------------------------------

THREE = SamplingParams(n=3)
PROMPTS: list[dict[str, Any]] = [{"text": "a b"}, {"messages": [ChatMessage("user", "hi")]}]


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_samples_share_a_stream(prompt: dict[str, Any]) -> None:
    fake = FakeClient()
    fake.sample_pieces = {"q/0": ["One"], "q/1": ["T", "w", "o"], "q/2": ["Three", "!"]}
    async with served(fake) as server, HttpClient(server.url) as http:
        client: Client = http
        samples = await client.submit_samples(Request(**prompt, sampling=THREE, rid="q"))
        outputs = [await sample.result() for sample in reversed(samples)][::-1]
    assert [sample.rid for sample in samples] == ["q/0", "q/1", "q/2"]
    assert [output.rid for output in outputs] == ["q/0", "q/1", "q/2"]
    assert [output.text for output in outputs] == ["One", "Two", "Three!"]
    assert [output.output_ids for output in outputs] == [[100], [100, 101, 102], [100, 101]]
    assert [output.completion_tokens for output in outputs] == [1, 3, 2]
    assert all(output.finish == Finish("stop", 2) for output in outputs)
    assert all(output.cached_tokens == 3 for output in outputs)
    assert [r.sampling.n for r in fake.requests] == [3] and fake.aborted == []


async def test_a_sample_is_read_while_others_wait() -> None:
    fake = FakeClient()
    fake.hold.clear()
    async with served(fake) as server, HttpClient(server.url) as client:
        samples = await client.submit_samples(Request(text="a", sampling=THREE))
        deltas = []
        async for output in samples[1]:
            deltas.append(output.delta)
            if output.text == "Hello, ":
                fake.hold.set()
        assert "".join(deltas) == "Hello, wörld"
        assert output.delta == "wörld" and output.finish is not None
        texts = [(await samples[i].result()).text for i in (0, 2)]
    assert texts == ["Hello, wörld"] * 2


async def test_closing_a_sample_ends_that_one() -> None:
    """Closing the last one that runs ends the stream."""
    fake = FakeClient()
    fake.hold.clear()
    async with served(fake) as server, HttpClient(server.url) as client:
        samples = await client.submit_samples(Request(text="a", sampling=THREE, rid="q"))
        await samples[1].aclose()
        await samples[1].aclose()
        assert fake.aborted == ["q/1"]
        with pytest.raises(RequestError, match="closed"):
            await samples[1].result()
        await samples[0].aclose()
        await samples[2].aclose()
        await fake.wait_aborted(4)
        assert not client._samples[0].is_running
    assert fake.aborted[:2] == ["q/1", "q/0"] and set(fake.aborted) == {"q/0", "q/1", "q/2"}


async def test_an_abort_ends_all_samples_or_one() -> None:
    fake = FakeClient()
    fake.hold.clear()
    async with served(fake) as server, HttpClient(server.url) as client:
        await client.submit_samples(Request(text="a", sampling=THREE, rid="q"))
        await client.abort("q/2")
        assert fake.aborted == ["q/2"]
        await client.abort("q")
        assert set(fake.aborted[1:]) >= {"q/0", "q/1", "q/2"}


async def test_samples_fail_together() -> None:
    fake = FakeClient()
    fake.error = RingError("died")
    async with served(fake) as server, HttpClient(server.url) as client:
        samples = await client.submit_samples(Request(text="a", sampling=THREE))
        for sample in samples:
            with pytest.raises(RingError, match="died"):
                await sample.result()
        fake.error, fake.refusals[1] = None, RequestError("full", code=OVERLOADED, retryable=True)
        with pytest.raises(RequestError, match="full"):
            await client.submit_samples(Request(text="a", sampling=THREE))


async def test_a_closed_client_ends_its_samples() -> None:
    fake = FakeClient()
    fake.hold.clear()
    async with served(fake) as server:
        async with HttpClient(server.url) as client:
            samples = await client.submit_samples(Request(text="a", sampling=THREE))
        with pytest.raises(RingError):
            await samples[0].result()
        await fake.wait_aborted(3)


async def test_several_samples_need_their_own_call() -> None:
    async with HttpClient("http://unused") as client:
        with pytest.raises(RequestError) as several:
            await client.submit(Request(text="a", sampling=THREE))
        with pytest.raises(RequestError) as none:
            await client.submit_samples(Request(text="a", sampling=SamplingParams(n=0)))
        with pytest.raises(RequestError) as many:
            await client.submit_samples(Request(text="a", sampling=SamplingParams(n=10**9)))
    assert {e.value.info.param for e in (several, none, many)} == {"n"}


async def test_constraints_and_tools_go_through() -> None:
    """The answer is plain text: the route must take nothing out of it."""
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
    fake.refusals[0] = RequestError(" is too long", at="text", code=CONTEXT_LENGTH)
    fake.refusals[1] = RequestError("full", code=OVERLOADED, retryable=True)
    fake.refusals[2] = RingError("starting")
    async with served(fake) as server, HttpClient(server.url) as client:
        with pytest.raises(RequestError) as too_long:
            await client.submit(Request(text="a"))
        with pytest.raises(RequestError) as full:
            await client.submit(Request(text="a"))
        with pytest.raises(RingError):
            await client.submit(Request(text="a"))
        with pytest.raises(RequestError) as bad:
            await client.submit(Request(text="a", sampling=SamplingParams(top_p=2.0)))
    assert bad.value.info.message.startswith("top_p must be")
    assert (too_long.value.info.code, too_long.value.info.param) == (CONTEXT_LENGTH, "text")
    assert (full.value.info.code, full.value.info.retryable) == (OVERLOADED, True)


async def test_failure_while_running() -> None:
    fake = FakeClient()
    fake.error = RingError("died")
    async with served(fake) as server, HttpClient(server.url) as client:
        generation = await client.submit(Request(text="a"))
        with pytest.raises(RingError, match="died"):
            await generation.result()
        fake.error = RequestError(": no token is left", at="regex")
        generation = await client.submit(Request(text="a", sampling=SamplingParams(regex="b")))
        with pytest.raises(RequestError, match=r"^regex: no token is left"):
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
    assert fake.aborted == [generation.rid]


async def test_operations_and_the_key() -> None:
    fake = FakeClient()
    async with served(fake, api_keys=("k1",)) as server:
        async with HttpClient(server.url, api_key="k1") as client:
            await client.flush_cache(1.5)
            assert (await client.stats())["cached_tokens_total"] == 7
            assert (await client.look())[0]["replica"] == 0
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


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": "a", "tools": [ToolSpec("f")]}, "tools"),
        ({"text": "a", "chat": ChatOptions(continue_final=True)}, "chat"),
        ({"messages": [], "chat": ChatOptions(template_args="[")}, "chat.template_args"),
        ({"messages": [], "chat": ChatOptions(template_args="[]")}, "chat.template_args"),
        ({"text": "a", "tenant": "t"}, "tenant"),
    ],
)
async def test_what_the_transport_cannot_do_is_refused_by_name(
    fields: dict[str, Any], param: str
) -> None:
    async with HttpClient("http://unused") as client:
        with pytest.raises(RequestError) as caught:
            await client.submit(Request(**fields))
    assert caught.value.info.param == param


async def test_no_server_and_foreign_errors() -> None:
    async with HttpClient("http://127.0.0.1:1") as client:
        with pytest.raises(RingError, match="cannot reach"):
            await client.submit(Request(text="a"))

    def plain(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(418, text="teapot")

    async with HttpClient("http://x", transport=httpx2.MockTransport(plain)) as client:
        with pytest.raises(RequestError, match="teapot") as foreign:
            await client.submit(Request(text="a"))
    assert foreign.value.info.code == "bad_request"


async def test_a_truncated_stream_is_an_error() -> None:
    def cut(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=b": ping\n\n", headers=EVENTS)

    async with HttpClient("http://x", transport=httpx2.MockTransport(cut)) as client:
        generation = await client.submit(Request(text="a"))
        with pytest.raises(RingError, match="before the end"):
            await generation.result()


async def test_line_separators_that_json_may_hold_do_not_end_a_line() -> None:
    text = "one\u2028two\u2029three\x85four"
    async with served(FakeClient((text,))) as server, HttpClient(server.url) as client:
        output = await (await client.submit(Request(text="a"))).result()
    assert output.text == text


@pytest.mark.parametrize(
    "event", [b"data: {broken", b"data: {}", b"data: 5", b'data: {"meta_info": 3}']
)
@pytest.mark.parametrize("n", [1, 2])
async def test_a_strange_event_ends_the_request_with_the_servers_error(
    event: bytes, n: int
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=event + b"\n\n", headers=EVENTS)

    async with HttpClient("http://strange", transport=httpx2.MockTransport(answer)) as client:
        request = Request(text="a", sampling=SamplingParams(n=n))
        for generation in await client.submit_samples(request):
            with pytest.raises(RingError, match="cannot be read"):
                await generation.result()


class _Strange(httpx2.AsyncByteStream):
    """A stream that does not end after an event that cannot be read."""

    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("n", [1, 2])
async def test_the_connection_of_a_strange_event_is_closed(n: int) -> None:
    stream = _Strange()

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=stream, headers=EVENTS)

    async with HttpClient("http://strange", transport=httpx2.MockTransport(answer)) as client:
        request = Request(text="a", sampling=SamplingParams(n=n))
        samples = await client.submit_samples(request)
        for generation in samples:
            with pytest.raises(RingError, match="cannot be read"):
                await generation.result()
            await generation.aclose()
        assert stream.is_closed


async def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and requests, and never answers."""
    monkeypatch.setattr("srt.client.http.client.CALL_TIMEOUT_S", 0.1)
    monkeypatch.setattr("srt.client.http.client.SILENCE_TIMEOUT_S", 0.1)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with HttpClient(f"http://127.0.0.1:{port}") as client:
        calls = (
            client.submit(Request(text="a")),
            client.stats(),
            client.abort("a"),
            client.tokenize(TokenizeRequest(text="a")),
        )
        for call in calls:
            with pytest.raises(RingError, match="ReadTimeout"):
                await asyncio.wait_for(call, SOON_S)
    server.close()
    await server.wait_closed()
