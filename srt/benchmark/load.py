"""Runs a workload against a server's streaming /v1/completions and records every request."""

import asyncio
import time
import zlib
from array import array
from collections.abc import AsyncIterator, Mapping, MutableSequence, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any

import httpx2
import msgspec
from msgspec import Struct, field

from srt.benchmark.event_stream import CONNECT_TIMEOUT_S, EventClient, StreamError
from srt.benchmark.loops import ends_in_loop
from srt.benchmark.text import Source
from srt.benchmark.workloads import Node, Workload

PROBES, PROBE_TOKENS = 3, 400  # texts differ in how many tokens a word has
# What a chat's delta may bring besides `content`; the names of thoughts differ between servers.
_OTHER_PIECES = ("reasoning_content", "reasoning", "tool_calls")
NO_FIELDS: Mapping[str, Any] = {}
_CONTROL_TIMEOUT_S = 60.0
_FLUSH_S = 5.0  # for which the server waits until it is idle
_ROOTS_AT_ONCE = 1024


class Record(Struct):
    """One request. Times are `time.perf_counter()` seconds; `chunk_times` has one per chunk of
    text, be it thoughts, an answer or a call of a tool. `cached_tokens` is None when the server
    does not report it. `loops` of the requests of a workload whose answers end in one."""

    started: float
    ended: float = 0.0
    chunk_times: MutableSequence[float] = field(default_factory=lambda: array("d"))
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    error: str | None = None
    prompt: str = ""
    loops: bool = False

    @property
    def token_s(self) -> float | None:
        """Of each token after the first (TPOT); None of a text that came in one piece."""
        if self.completion_tokens < 2 or len(self.chunk_times) < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.completion_tokens - 1)


class Run(Struct):
    """A finished workload; `cpu_s` is this process's own CPU time during it. `unfinished` requests
    were in flight when it was interrupted."""

    records: list[Record]
    wall_s: float
    cpu_s: float
    unfinished: int = 0


class LoadGenerator:
    """A closed-loop client of one server. Use it in `async with`."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        *,
        ignore_eos: bool = True,
        temperature: float = 0.0,
        seed: int = 0,
        timeout_s: float = 3600.0,
        keeps_texts: bool = True,
    ) -> None:
        """Above `temperature` 0, each request of a workload has a seed of its own, which `seed` and
        its place in the workload give. A request that takes longer than `timeout_s` has failed.
        Unless it `keeps_texts`, records are without prompts and answers."""
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._events = EventClient(self._url, self._headers)
        self._timeout_s, self._keeps_texts = timeout_s, keeps_texts
        # For requests that are not measured.
        self.http = httpx2.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            timeout=httpx2.Timeout(_CONTROL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,  # the requests that are measured go through no proxy either
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
        )
        self.was_interrupted = False
        self._seed = seed
        self._options: dict[str, Any] = {"temperature": temperature}
        if temperature > 0:
            self._options["top_p"] = 1  # servers have defaults of their own
        if ignore_eos:
            self._options["ignore_eos"] = True
        if model:
            self._options["model"] = model

    async def __aenter__(self) -> "LoadGenerator":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._events.close()
        await self.http.aclose()

    async def fill_model(self) -> None:
        """Ask the server for its model's name unless one was given."""
        if "model" not in self._options:
            models = (await self.http.get("/v1/models")).raise_for_status().json()["data"]
            if not models:
                raise RuntimeError("it names no model: give one")
            self._options["model"] = models[0]["id"]

    @property
    def model(self) -> str | None:
        """The name that is sent, once it is known."""
        name: str | None = self._options.get("model")
        return name

    async def tokens_per_word(self, source: Source) -> float:
        """How many tokens a word of `source` takes here. Raises RuntimeError if the probe fails."""
        tokens = words = 0
        for _ in range(PROBES):
            text = source.prompt(PROBE_TOKENS)
            record = await self.complete(text, 1)
            if record.error is not None:
                raise RuntimeError(f"the probe request failed: {record.error}")
            tokens += record.prompt_tokens
            words += source.words(text)
        return tokens / words

    async def flush_cache(self) -> bool:
        """Ask the server to empty its prefix cache; whether it did."""
        reply = await self.http.post(
            "/flush_cache", params={"timeout": f"{_FLUSH_S:g}"}, timeout=2 * _FLUSH_S
        )
        return reply.is_success

    async def run(self, workload: Workload, arrivals: Sequence[float] = ()) -> Run:
        """Run `workload` to its end; failed requests are recorded, their children skipped.

        `arrivals`, if any, are the times of its roots in s. If this is cancelled, the result is
        what there is by then.
        """
        slots = asyncio.Semaphore(workload.concurrency)
        records: list[Record] = []
        in_flight = 0

        async def visit(node: Node, before: str, place: str, group: asyncio.TaskGroup) -> None:
            nonlocal in_flight
            prompt = before + node.text
            if node.out_tokens:
                fields = self._seed_at(place) | node.fields
                async with slots:
                    in_flight += 1
                    record = await self.complete(prompt, node.out_tokens, fields)
                    in_flight -= 1
                records.append(record)
                answer = record.text
                record.loops = ends_in_loop(answer)
                if not self._keeps_texts:
                    record.text = record.prompt = ""
                if record.error is not None:
                    return
                prompt += answer
            for number, child in enumerate(node.children):
                group.create_task(visit(child, prompt, f"{place}.{number}", group))

        # Roots are made when it is their turn: there may be very many.
        places = asyncio.Semaphore(max(workload.concurrency, _ROOTS_AT_ONCE))
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(workload.roots)):
                    if arrivals:
                        await asyncio.sleep(wall + arrivals[number] - time.perf_counter())
                    await places.acquire()
                    place = f"{workload.name} {number}"
                    task = group.create_task(visit(workload.roots[number], "", place, group))
                    task.add_done_callback(lambda _: places.release())
        except asyncio.CancelledError:
            self.was_interrupted = True
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        return Run(records, wall_s, cpu_s, in_flight)

    def _seed_at(self, place: str) -> dict[str, Any]:
        """The seed of the request at a place of a workload, which every server gets."""
        if not self._options["temperature"]:
            return {}
        return {"seed": zlib.crc32(f"{self._seed} {place}".encode()) >> 1}

    async def complete(
        self, prompt: str, max_tokens: int, fields: Mapping[str, Any] = NO_FIELDS
    ) -> Record:
        """Send one request and read its stream. Never raises for a failed request. `messages` among
        the `fields` make it a chat, without the prompt."""
        record = Record(time.perf_counter(), prompt=prompt)
        is_chat = "messages" in fields
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        body = self._options | {
            **({} if is_chat else {"prompt": prompt}),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        events = self._events.post(path, msgspec.json.encode(body))
        try:
            async with asyncio.timeout(self._timeout_s) as limit, aclosing(events):
                await _read_stream(events, record)
        except (StreamError, ValueError, LookupError, TypeError, AttributeError) as exc:
            is_ours = isinstance(exc, StreamError)
            record.error = str(exc) if is_ours else f"an event that cannot be read: {exc!r}"
        except TimeoutError:
            what = "no answer" if limit.expired() else "no connection"
            seconds = self._timeout_s if limit.expired() else CONNECT_TIMEOUT_S
            record.error = f"{what} within {seconds:g} s"
        except OSError as exc:
            record.error = f"{type(exc).__name__}: {exc}"
        record.ended = time.perf_counter()
        return record


async def _read_stream(events: AsyncIterator[bytes], record: Record) -> None:
    has_usage = False
    async for data in events:
        if data == b"[DONE]":
            continue
        chunk = msgspec.json.decode(data)
        if error := chunk.get("error"):
            record.error = str(error)
            return
        for choice in chunk["choices"]:
            delta = choice if "text" in choice else choice["delta"] or {}
            text = delta.get("text") or delta.get("content") or ""
            if text or any(map(delta.get, _OTHER_PIECES)):
                record.chunk_times.append(time.perf_counter())
                record.text += text
        if usage := chunk.get("usage"):
            _read_usage(usage, record)
            has_usage = True
    if not has_usage:
        record.error = "the stream ended without usage"


def _read_usage(usage: dict[str, Any], record: Record) -> None:
    record.prompt_tokens = usage["prompt_tokens"]
    record.completion_tokens = usage["completion_tokens"]
    details = usage.get("prompt_tokens_details") or {}
    record.cached_tokens = details.get("cached_tokens")
