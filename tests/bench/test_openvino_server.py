"""The front of the OpenVINO peer, on a fake pipeline."""

import asyncio
import json
from typing import Any

import httpx2
import msgspec
import pytest

from bench.peers.openvino_server import App, Ask, Engine, News, OpenVino, parse_args
from srt.benchmark.load import LoadGenerator
from srt.gateway.http.server import GatewayServer
from tests.srt.gateway.setup import listener, sse_payloads
from tests.waiting import SOON_S

VOCABULARY = [bytes([i]) for i in range(256)]  # a token is a byte
SPECIAL, EOS = 0, 1
VOCABULARY[SPECIAL] = VOCABULARY[EOS] = b""
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class FakeHandle:
    """Answers with the scripted tokens, one for each step, up to the number asked for."""

    def __init__(self, ask: Ask, answer: list[int], error: str | None) -> None:
        self.ask, self.error = ask, error
        self.cancelled = self.done = False
        self._left = answer[: ask.max_tokens]
        self._new: list[int] = []

    def step(self) -> None:
        if self._left:
            self._new.append(self._left.pop(0))

    def news(self) -> News:
        ids, self._new = self._new, []
        if self.error:
            self.done = True
            return News(ids, error=self.error)
        self.done = not self._left
        return News(ids, "length" if self.done else None)


class FakePipeline:
    """A `Pipeline` whose steps fail when it is `broken`."""

    def __init__(self, answer: list[int] | bytes = b"abc") -> None:
        self.vocabulary = VOCABULARY
        self.answer = list(answer)
        self.error: str | None = None
        self.broken = False
        self.steps = 0
        self.handles: list[FakeHandle] = []

    def encode(self, text: str, special: bool) -> list[int]:
        return [SPECIAL] * special + list(text.encode())

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        return "".join(f"{m['role']}:{m['content']};" for m in messages)

    def submit(self, ask: Ask) -> FakeHandle:
        self.handles.append(FakeHandle(ask, self.answer, self.error))
        return self.handles[-1]

    def step(self) -> None:
        if self.broken:
            raise RuntimeError("broken")
        self.steps += 1
        for handle in self.handles:
            handle.step()

    def news(self, handle: FakeHandle) -> News:
        return handle.news()

    def cancel(self, handle: FakeHandle) -> None:
        handle.cancelled = True

    def has_work(self) -> bool:
        return any(not (h.done or h.cancelled) for h in self.handles)


async def post(pipeline: FakePipeline, path: str, body: Any) -> httpx2.Response:
    engine = Engine(pipeline)
    transport = httpx2.ASGITransport(app=App(engine, "m"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://peer") as http:
        steps = asyncio.ensure_future(engine.run())
        try:
            async with asyncio.timeout(SOON_S):
                return await http.request("POST" if body else "GET", path, json=body)
        finally:
            steps.cancel()


async def complete(pipeline: FakePipeline, **body: Any) -> list[Any]:
    reply = await post(pipeline, "/v1/completions", STREAM | body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "text/event-stream"
    return sse_payloads(reply.text)


async def test_a_completion() -> None:
    pipeline = FakePipeline()
    chunks = await complete(pipeline, prompt="hi", max_tokens=3, temperature=0, ignore_eos=True)
    texts = [c["choices"][0]["text"] for c in chunks[:-1]]
    reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
    assert (texts, reasons) == (["a", "b", "c"], [None, None, "length"])
    assert len({c["id"] for c in chunks}) == 1
    assert {c["object"] for c in chunks} == {"text_completion"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    ask = pipeline.handles[0].ask
    assert ask.ids == [SPECIAL, *b"hi"] and ask.ignore_eos and ask.temperature == 0
    assert not pipeline.handles[0].cancelled


async def test_token_ids_and_no_usage() -> None:
    pipeline = FakePipeline()
    chunks = await complete(pipeline, prompt=[5, 6], stream_options=None, seed=7, top_p=1)
    assert [c for c in chunks if "usage" in c] == []
    ask = pipeline.handles[0].ask
    assert (ask.seed, ask.top_p) == (7, 1.0)
    assert (ask.ids, ask.max_tokens, ask.ignore_eos, ask.temperature) == ([5, 6], 16, False, 1.0)


async def test_a_chat() -> None:
    pipeline = FakePipeline()
    body = STREAM | {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2}
    chunks = sse_payloads((await post(pipeline, "/v1/chat/completions", body)).text)
    assert [c["choices"][0]["delta"]["content"] for c in chunks[:-1]] == ["a", "b"]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert pipeline.handles[0].ask.ids == list(b"user:hi;")


async def test_text_waits_for_whole_characters() -> None:
    chunks = await complete(FakePipeline("é".encode() + b"!"), prompt="x")
    assert [c["choices"][0]["text"] for c in chunks[:-1]] == ["é", "!"]
    chunks = await complete(FakePipeline([*b"a", EOS, 0xC3]), prompt="x")
    assert [c["choices"][0]["text"] for c in chunks[:-1]] == ["a", "\ufffd"]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


async def test_a_request_that_does_not_fit() -> None:
    pipeline = FakePipeline()
    pipeline.error = "too long"
    assert await complete(pipeline, prompt="x") == [{"error": {"message": "too long"}}]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "x", "stream": False}, "stream=true"),
        ({"prompt": "x", "n": 2}, "unknown fields: n"),
        ({"prompt": []}, "token ids"),
        ({"prompt": [[1], [2]]}, "token ids"),
        ({}, "prompt"),
        ({"prompt": "x", "max_tokens": "many"}, "many"),
    ],
)
async def test_refusals(body: dict[str, Any], message: str) -> None:
    pipeline = FakePipeline()
    reply = await post(pipeline, "/v1/completions", STREAM | body)
    assert reply.status_code == 400 and message in reply.json()["error"]["message"]
    assert pipeline.handles == []


async def test_other_routes() -> None:
    pipeline = FakePipeline()
    assert (await post(pipeline, "/health", None)).status_code == 200
    models = (await post(pipeline, "/v1/models", None)).json()
    assert [model["id"] for model in models["data"]] == ["m"]
    assert (await post(pipeline, "/flush_cache", {"a": 1})).status_code == 404


async def test_a_disconnect_cancels() -> None:
    """No steps run here, so the answer is never complete."""
    pipeline = FakePipeline()
    gone = asyncio.Event()
    sent: list[Any] = []
    body = json.dumps(STREAM | {"prompt": "x"}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        gone.set()

    scope = {"type": "http", "method": "POST", "path": "/v1/completions"}
    async with asyncio.timeout(SOON_S):
        await App(Engine(pipeline), "m")(scope, receive, send)
    assert pipeline.handles[0].cancelled
    assert [message["type"] for message in sent] == ["http.response.start"]


async def test_no_steps_without_work_and_a_failed_step_ends_the_engine() -> None:
    pipeline = FakePipeline()
    await complete(pipeline, prompt="x")
    assert pipeline.steps == 3
    engine = Engine(pipeline)
    pipeline.broken = True
    engine.submit(Ask([1], 1, 0.0, True, True, False))
    with pytest.raises(RuntimeError, match="broken"):
        await asyncio.wait_for(engine.run(), SOON_S)


async def test_the_load_generator_reads_it() -> None:
    engine = Engine(FakePipeline())
    app: Any = App(engine, "m")
    server = GatewayServer(app, listener(), stream_grace_s=0.5)
    await server.start()
    steps = asyncio.ensure_future(engine.run())
    try:
        async with LoadGenerator(server.url) as load:
            await load.fill_model()
            record = await asyncio.wait_for(load.complete("hi", 2), SOON_S)
            assert not await load.flush_cache()
    finally:
        steps.cancel()
        await server.stop()
    assert (record.error, record.text, len(record.chunk_times)) == (None, "ab", 2)
    assert (record.prompt_tokens, record.completion_tokens) == (3, 2)
    assert record.cached_tokens is None


class Named(msgspec.Struct):
    """Stands for an enumeration's member."""

    name: str


class Output(msgspec.Struct):
    """Stands for the library's GenerationOutput."""

    generated_ids: list[int]
    finish_reason: Named


class LibraryHandle:
    """Stands for the library's GenerationHandle."""

    def __init__(self, outputs: list[Output], status: str) -> None:
        self.outputs, self.status = outputs, Named(status)

    def can_read(self) -> bool:
        return bool(self.outputs)

    def read(self) -> dict[int, Output]:
        return {0: self.outputs.pop(0)}

    def get_status(self) -> Named:
        return self.status


def test_news_of_the_library() -> None:
    first, last = Output([7], Named("NONE")), Output([8, 9], Named("STOP"))

    def news(outputs: list[Output], status: str) -> News:
        return OpenVino.__new__(OpenVino).news(LibraryHandle(outputs, status))

    assert news([], "RUNNING") == News([])
    assert news([first], "RUNNING") == News([7])
    assert news([first, last], "FINISHED") == News([7, 8, 9], "stop")
    assert news([], "IGNORED").error is not None


def test_defaults() -> None:
    args = parse_args(["--model", "m.gguf"])
    assert (args.cache_gb, args.max_num_batched_tokens, args.prefix_caching) == (2, 256, True)
    assert not parse_args(["--model", "m", "--no-prefix-caching"]).prefix_caching
