"""Requests that a server has admitted over HTTP, and their streams.

A request for one completion is read by whoever iterates over it. The samples of a request share
one stream, so a task of its own reads it and gives each sample its part; a slow reader of one
sample sees fewer, larger snapshots and does not hold up the others.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from srt.client.event_lines import event_lines
from srt.client.generation import GenerateOutput
from srt.client.http_answers import Parse, error_from
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import sample_rid

Abort = Callable[[str], Awaitable[None]]

_DATA = b"data: "
_CUT = "the server closed the stream before the end"
_STRANGE = "the server sent an event that cannot be read"


class HttpGeneration:
    """A request that the server has admitted. To be read by one task at a time."""

    def __init__(self, response: httpx.Response, rid: str, parse: Parse) -> None:
        self._response = response
        self._events = _payloads(response)
        self._parse = parse
        self._last = _nothing_yet(response, rid)

    @property
    def rid(self) -> str:
        """The request's id, as it was sent."""
        return self._last.rid

    @property
    def prompt_tokens(self) -> int:
        """From the response's head, or 0 until the first snapshot if the server tells not."""
        return self._last.prompt_tokens

    @property
    def opens_reasoning(self) -> bool:
        """Never told: the text comes as the model wrote it."""
        return False

    @property
    def closes_reasoning(self) -> bool:
        """Never told, as above."""
        return False

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        async for payload in self._events:
            last = self._last
            self._last = _parsed(self._parse, payload, [last]).get(0, last)
            # The finished snapshot is held until the stream ends: a chat's usage follows it.
            if self._last.finish is None and _is_news(self._last, last):
                yield self._last
        if self._last.finish is None:
            raise RingError(_CUT)
        yield self._last

    async def result(self) -> GenerateOutput:
        async for output in self:
            last = output
        return last

    async def aclose(self) -> None:
        await self._response.aclose()


class HttpSamples:
    """The samples of one request, and the task that reads their stream. `abort` ends one by its
    rid; when all have been closed, the stream is."""

    def __init__(
        self, response: httpx.Response, rid: str, count: int, parse: Parse, abort: Abort
    ) -> None:
        self._response = response
        self._parse = parse
        self._abort = abort
        self.generations = [
            HttpSample(self, _nothing_yet(response, sample_rid(rid, i))) for i in range(count)
        ]
        self._reader = asyncio.ensure_future(self._read())

    @property
    def is_running(self) -> bool:
        """Whether the stream is still being read."""
        return not self._reader.done()

    async def _read(self) -> None:
        error: RequestError = RingError(_CUT)
        try:
            async for payload in _payloads(self._response):
                last = [generation.last for generation in self.generations]
                for index, output in _parsed(self._parse, payload, last).items():
                    self.generations[index].take(output)
        except RequestError as failure:
            error = failure
        finally:
            self._fail(error)

    def _fail(self, error: RequestError) -> None:
        for generation in self.generations:
            generation.fail(error)

    async def on_close(self, sample: "HttpSample") -> None:
        """A reader has left a sample that was running."""
        if all(generation.has_ended for generation in self.generations):
            await self.close()
        else:
            with suppress(RequestError):  # it is gone already, or the server is
                await self._abort(sample.rid)

    async def close(self) -> None:
        """End whatever is still running."""
        self._fail(RingError("the client was closed"))
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._response.aclose()


class HttpSample:
    """One sample, by what has been read of it."""

    def __init__(self, samples: HttpSamples, nothing_yet: GenerateOutput) -> None:
        self._samples = samples
        self._rid = nothing_yet.rid
        self.last = nothing_yet
        self._error: RequestError | None = None
        self._changed = asyncio.Event()
        self._read_chars = 0

    @property
    def rid(self) -> str:
        return self._rid

    @property
    def prompt_tokens(self) -> int:
        """From the response's head, or 0 until the first snapshot if the server tells not."""
        return self.last.prompt_tokens

    @property
    def opens_reasoning(self) -> bool:
        """Never told: the text comes as the model wrote it."""
        return False

    @property
    def closes_reasoning(self) -> bool:
        """Never told, as above."""
        return False

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.last.finish is not None or self._error is not None

    def take(self, output: GenerateOutput) -> None:
        """What is known of it now."""
        if not self.has_ended and _is_news(output, self.last):
            self._changed.set()
        if self._error is None:
            self.last = msgspec.structs.replace(output, rid=self._rid)

    def fail(self, error: RequestError) -> None:
        """Nothing more will come."""
        if not self.has_ended:
            self._error = error
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        try:
            ended = False
            while not ended:
                await self._until_changed()
                ended = self.has_ended
                yield self._snapshot()
        finally:
            await self.aclose()

    async def result(self) -> GenerateOutput:
        try:
            while not self.has_ended:
                await self._until_changed()
            return self._snapshot()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Abort it unless it has ended."""
        if not self.has_ended:
            self.fail(RequestError("the request was closed by its reader"))
            await self._samples.on_close(self)

    async def _until_changed(self) -> None:
        if not self.has_ended:
            await self._changed.wait()
        self._changed.clear()

    def _snapshot(self) -> GenerateOutput:
        """What is known, or the error that ended it."""
        if self._error is not None:
            raise self._error.copy()
        text = self.last.text
        delta, self._read_chars = text[self._read_chars :], len(text)
        return msgspec.structs.replace(self.last, delta=delta)


def _nothing_yet(response: httpx.Response, rid: str) -> GenerateOutput:
    return GenerateOutput(
        rid=rid,
        text="",
        delta="",
        output_ids=[],
        prompt_tokens=int(response.headers.get("srt-prompt-tokens", 0)),
        cached_tokens=0,
        completion_tokens=0,
    )


def _is_news(now: GenerateOutput, last: GenerateOutput) -> bool:
    """A jump may add text without adding tokens; a token may add no text."""
    has_ended = now.finish is not None
    has_more = now.completion_tokens > last.completion_tokens or len(now.text) > len(last.text)
    return has_ended or has_more


async def _payloads(response: httpx.Response) -> AsyncIterator[Any]:
    """The JSON of each event. Raises the error that an event says, RingError if there are no more
    before the end."""
    try:
        async for line in event_lines(response):
            if line == b"data: [DONE]":
                return
            if line.startswith(_DATA):
                payload = msgspec.json.decode(line[len(_DATA) :])
                if "error" in payload:
                    raise error_from(payload["error"], 500)
                yield payload
    except (httpx.HTTPError, httpx.StreamError) as exc:
        raise RingError(f"lost the server: {str(exc) or type(exc).__name__}") from exc
    except msgspec.DecodeError as exc:
        raise RingError(_STRANGE) from exc
    finally:
        await response.aclose()


def _parsed(parse: Parse, payload: Any, last: list[GenerateOutput]) -> dict[int, GenerateOutput]:
    """What an event says. Raises RingError for one that no server of ours sends."""
    try:
        return parse(payload, last)
    except (LookupError, TypeError, AttributeError) as exc:
        raise RingError(_STRANGE) from exc
