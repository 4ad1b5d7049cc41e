"""An OpenAI-compatible streaming server over OpenVINO GenAI's continuous batching.

Runs as a script in a virtual environment of its own (openvino.txt), so it imports nothing of ours.
`OpenVino` is all that touches the library; `Engine` runs steps and hands out tokens; `App` is HTTP.
"""

import argparse
import asyncio
import codecs
import json
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import uvicorn

# `step` keeps the interpreter's lock, so HTTP only runs between steps. This many turns of the
# event loop let it write the tokens of the last step and take the requests that have arrived.
TURNS_BETWEEN_STEPS = 8
FIELDS = {"model", "prompt", "messages", "stream", "stream_options"}
FIELDS |= {"max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "ignore_eos"}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Ask(NamedTuple):
    """A checked request."""

    ids: list[int]
    max_tokens: int
    temperature: float
    ignore_eos: bool
    include_usage: bool
    is_chat: bool
    top_p: float = 1.0
    seed: int = 0


class News(NamedTuple):
    """What a step brought for one request; `finish` is set on the last."""

    ids: list[int]
    finish: str | None = None
    error: str | None = None


class Pipeline(Protocol):
    """What the server needs of an inference library."""

    # The bytes of each token, empty for special ones.
    vocabulary: list[bytes]

    def encode(self, text: str, special: bool) -> list[int]:
        """The tokens of `text`; `special` adds what the tokenizer puts in front."""

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        """`messages` in the model's chat template, ready for an answer."""

    def submit(self, ask: Ask) -> Any:
        """Add a request, which the next step may begin; returns what `news` and `cancel` take."""

    def news(self, handle: Any) -> News:
        """What is new about a request since the last call."""

    def cancel(self, handle: Any) -> None:
        """Drop a request, finished or not; the next step frees its cache."""

    def step(self) -> None:
        """One forward pass. Blocks."""

    def has_work(self) -> bool:
        """Whether a step would do something."""


class OpenVino:
    """The library: loads the GGUF, holds the pipeline and its tokenizer."""

    def __init__(self, args: argparse.Namespace) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        config = openvino_genai.SchedulerConfig()
        config.cache_size = args.cache_gb
        config.max_num_batched_tokens = args.max_num_batched_tokens
        config.max_num_seqs = args.max_num_seqs
        config.enable_prefix_caching = args.prefix_caching
        properties = {"INFERENCE_NUM_THREADS": args.threads} if args.threads else {}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(args.model), config, "CPU", properties
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        self._new_config: Any = openvino_genai.GenerationConfig
        self._new_tensor: Any = lambda ids: openvino.Tensor(np.array([ids], np.int64))
        self._defaults = self._pipeline.get_config()
        self._count = 0
        self.vocabulary = self._bytes_of_tokens()

    def _bytes_of_tokens(self) -> list[bytes]:
        # Decoded alone, special tokens give nothing, and so do parts of characters, which are kept.
        names = self._tokenizer.get_vocab()
        alone = self._tokenizer.decode([[i] for i in range(max(names.values()) + 1)])
        table = [b""] * len(alone)
        for name, token in names.items():
            is_part = "\ufffd" in name.decode(errors="replace")
            table[token] = name if alone[token] or is_part else b""
        return table

    def encode(self, text: str, special: bool) -> list[int]:
        """The tokenizer's ids."""
        ids = self._tokenizer.encode([text], add_special_tokens=special).input_ids.data[0]
        return [int(i) for i in ids]

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        """The GGUF's own chat template."""
        return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def submit(self, ask: Ask) -> Any:
        """A GenerationHandle. The prompt goes in as ids, so that no template is applied to it."""
        config = self._new_config(max_new_tokens=ask.max_tokens, ignore_eos=ask.ignore_eos)
        config.eos_token_id = self._defaults.eos_token_id
        config.stop_token_ids = self._defaults.stop_token_ids
        config.do_sample = ask.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p = ask.temperature, ask.top_p
            config.rng_seed = ask.seed
        self._count += 1
        return self._pipeline.add_request(self._count, self._new_tensor(ask.ids), config)

    def news(self, handle: Any) -> News:
        """All outputs that have not been read yet, as one."""
        ids: list[int] = []
        finish = None
        while handle.can_read():
            for output in handle.read().values():
                ids.extend(output.generated_ids)
                if output.finish_reason.name != "NONE":
                    finish = output.finish_reason.name.lower()
        if handle.get_status().name == "IGNORED":
            return News(ids, error="the request does not fit into the cache")
        return News(ids, finish)

    def cancel(self, handle: Any) -> None:
        """GenerationHandle.cancel"""
        handle.cancel()

    def step(self) -> None:
        """ContinuousBatchingPipeline.step"""
        self._pipeline.step()

    def has_work(self) -> bool:
        """Cancelled requests count until a step has freed them."""
        return bool(self._pipeline.has_non_finished_requests())


class Running:
    """A submitted request: its handle and its unread news. None means that the client is gone."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.queue: asyncio.Queue[News | None] = asyncio.Queue()


class Engine:
    """Steps the pipeline while there is work. Everything but `step` runs on the event loop."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._live: set[Running] = set()
        self._work = asyncio.Event()

    def submit(self, ask: Ask) -> Running:
        """Start a request; the caller must call `release` with it."""
        running = Running(self.pipeline.submit(ask))
        self._live.add(running)
        self._work.set()
        return running

    def release(self, running: Running) -> None:
        """Cancel the request unless it has ended."""
        if running in self._live:
            self._live.remove(running)
            self.pipeline.cancel(running.handle)

    async def run(self) -> None:
        """Never returns; a failing step ends it."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "step") as thread:
            while True:
                await self._work.wait()
                await loop.run_in_executor(thread, self.pipeline.step)
                self._hand_out()
                for _ in range(TURNS_BETWEEN_STEPS):
                    await asyncio.sleep(0)

    def _hand_out(self) -> None:
        for running in list(self._live):
            news = self.pipeline.news(running.handle)
            if news.finish or news.error:
                self._live.remove(running)
            if news.ids or news.finish or news.error:
                running.queue.put_nowait(news)
        if not self.pipeline.has_work():
            self._work.clear()


class App:
    """The ASGI application."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        match scope["method"], scope["path"]:
            case "GET", "/health":
                await _reply(send, 200, {"status": "ok"})
            case "GET", "/v1/models":
                model = {"id": self._model, "object": "model", "owned_by": "openvino"}
                await _reply(send, 200, {"object": "list", "data": [model]})
            case "POST", "/v1/completions" | "/v1/chat/completions" as path:
                await self._complete(path.endswith("/chat/completions"), receive, send)
            case _:
                await _reply(send, 404, _error("no such route"))

    async def _complete(self, is_chat: bool, receive: Receive, send: Send) -> None:
        try:
            ask = self._ask(json.loads(await _body(receive)), is_chat)
        except (ValueError, TypeError, KeyError) as exc:
            await _reply(send, 400, _error(f"{type(exc).__name__}: {exc}"))
            return
        running = self._engine.submit(ask)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_watch(receive, running))
                await self._stream(ask, running, send)
                watch.cancel()
        finally:
            self._engine.release(running)

    def _ask(self, body: dict[str, Any], is_chat: bool) -> Ask:
        if unknown := set(body) - FIELDS:
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        if body.get("stream") is not True:
            raise ValueError("only stream=true is answered")
        return Ask(
            ids=self._prompt(body, is_chat),
            max_tokens=int(body.get("max_completion_tokens") or body.get("max_tokens") or 16),
            temperature=float(body.get("temperature", 1.0)),
            ignore_eos=bool(body.get("ignore_eos", False)),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            is_chat=is_chat,
            top_p=float(body.get("top_p", 1.0)),
            seed=int(body.get("seed") or 0),
        )

    def _prompt(self, body: dict[str, Any], is_chat: bool) -> list[int]:
        pipeline = self._engine.pipeline
        if is_chat:
            return pipeline.encode(pipeline.chat_prompt(body["messages"]), special=False)
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return pipeline.encode(prompt, special=True)
        if not prompt or not all(type(token) is int for token in prompt):
            raise ValueError("prompt must be text or token ids")
        return list(prompt)

    async def _stream(self, ask: Ask, running: Running, send: Send) -> None:
        chunks = Chunks(ask, self._model, self._engine.pipeline.vocabulary)
        await _start(send, 200, b"text/event-stream")
        finish = None
        while finish is None:
            news = await running.queue.get()
            if news is None:
                return
            if news.error is not None:
                await _events(send, [_error(news.error)], last=True)
                return
            finish = news.finish
            await _events(send, chunks.of(news), last=False)
        await _events(send, chunks.end(), last=True)


class Chunks:
    """Makes OpenAI's chunks of one answer from its tokens."""

    def __init__(self, ask: Ask, model: str, vocabulary: Sequence[bytes]) -> None:
        self._ask = ask
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens = 0
        self._head = {
            "id": f"{'chatcmpl' if ask.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if ask.is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    def of(self, news: News) -> list[dict[str, Any]]:
        """The chunks of `news`; none after a part of a character that is yet to be completed."""
        self._tokens += len(news.ids)
        data = b"".join(self._vocabulary[token] for token in news.ids)
        text = self._decoder.decode(data, final=news.finish is not None)
        if not text and news.finish is None:
            return []
        answer: dict[str, Any] = {"index": 0, "finish_reason": news.finish}
        if self._ask.is_chat:
            answer["delta"] = {"role": "assistant", "content": text}
        else:
            answer["text"] = text
        return [self._head | {"choices": [answer]}]

    def end(self) -> list[dict[str, Any]]:
        """The usage, if it was asked for."""
        if not self._ask.include_usage:
            return []
        prompt = len(self._ask.ids)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": prompt + self._tokens,
        }
        return [self._head | {"choices": [], "usage": usage}]


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _watch(receive: Receive, running: Running) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    running.queue.put_nowait(None)


async def _start(send: Send, status: int, content_type: bytes) -> None:
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _reply(send: Send, status: int, value: dict[str, Any]) -> None:
    await _start(send, status, b"application/json")
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


async def _events(send: Send, values: list[dict[str, Any]], *, last: bool) -> None:
    frames = [f"data: {json.dumps(value)}\n\n" for value in values]
    if last:
        frames.append("data: [DONE]\n\n")
    if frames:
        body = "".join(frames).encode()
        await send({"type": "http.response.body", "body": body, "more_body": not last})


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=0, help="default: the library's choice")
    parser.add_argument("--cache-gb", type=int, default=2, help="size of the KV cache")
    parser.add_argument("--max-num-batched-tokens", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false")
    return parser.parse_args(argv)


async def serve(args: argparse.Namespace) -> None:
    """Load the model, then answer until a signal."""
    engine = Engine(OpenVino(args))
    config = uvicorn.Config(
        App(engine, args.model.stem),
        host=args.host,
        port=args.port,
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    async with asyncio.TaskGroup() as group:
        steps = group.create_task(engine.run())
        await uvicorn.Server(config).serve()
        steps.cancel()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(parse_args()))
