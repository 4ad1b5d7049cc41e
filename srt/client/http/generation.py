"""Requests that a server has admitted over HTTP, and their streams.

The reader of a single sample reads the stream. The samples of a request share one stream, so a
task reads it and gives each sample its part; a slow reader of one sample sees fewer, larger
snapshots and does not hold up the others.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import httpx2
import msgspec

from srt.client.generation import GenerateOutput
from srt.client.http.answers import error_from, joined, parse_output
from srt.client.snapshots import Snapshots
from srt.event_data import event_data
from srt.wire.errors import Names, RequestError, RingError
from srt.wire.messages import sample_rid

Abort = Callable[[str], Awaitable[None]]

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_CUT = "the server closed the stream before the end"
_STRANGE = "the server sent an event that cannot be read"


class HttpSamples:
    """The samples of one request, and their stream. `abort` ends one of several by its rid; when
    all have been closed, the stream is. `names` are the ring's by those of the body, for errors."""

    def __init__(
        self, response: httpx2.Response, rid: str, count: int, abort: Abort, names: Names
    ) -> None:
        self._response = response
        self._events = payloads_of(response)
        self._abort = abort
        self._names = names
        rids = [sample_rid(rid, i) for i in range(count)] if count > 1 else [rid]
        self.generations = [HttpGeneration(self, _nothing_yet(response, rid)) for rid in rids]
        self.reader = asyncio.ensure_future(self._read_all()) if count > 1 else None

    @property
    def is_running(self) -> bool:
        """Whether a task still reads the stream."""
        return self.reader is not None and not self.reader.done()

    async def _read_all(self) -> None:
        try:
            await self.read()
        finally:
            self._fail(RingError(_CUT))

    async def read(self, reader: "HttpGeneration | None" = None) -> None:
        """The stream until `reader` has news, or its end: then all samples have ended."""
        try:
            async for payload in self._events:
                generation, output = _parsed(payload, self.generations)
                generation.take(output)
                if reader is not None and reader.changed.is_set():
                    return reader.changed.clear()
            error: RequestError = RingError(_CUT)
        except RequestError as failure:
            error = failure if failure.info.param is None else failure.renamed(self._names)
        self._fail(error)
        await self._response.aclose()

    def _fail(self, error: RequestError) -> None:
        for generation in self.generations:
            generation.fail(error)

    async def on_leave(self, sample: "HttpGeneration") -> None:
        """A reader has left a sample that was still running."""
        if all(generation.has_ended for generation in self.generations):
            await self.close()
        else:
            with suppress(RequestError):  # it is gone already, or the server is
                await self._abort(sample.rid)

    async def close(self) -> None:
        """End whatever is still running."""
        self._fail(RingError("the client was closed"))
        if self.reader is not None:
            self.reader.cancel()
            await asyncio.gather(self.reader, return_exceptions=True)
        await self._response.aclose()


class HttpGeneration(Snapshots):
    """One sample that the server has admitted. A request's only one is to be read by one task at a
    time."""

    def __init__(self, samples: HttpSamples, nothing_yet: GenerateOutput) -> None:
        super().__init__(nothing_yet.rid)
        self.meta = nothing_yet
        self.last = nothing_yet
        self._samples = samples

    def take(self, output: GenerateOutput) -> None:
        """Take over what is known now."""
        if self.error is not None:
            return
        if self.finish is None and _is_news(output, self.last):
            self.wake()
        self.last = output
        self.text, self.finish = output.text, output.finish
        self.meta = output

    def known(self, delta: str) -> GenerateOutput:
        last = self.last
        if last.rid == self.rid and last.delta == delta:
            return last
        return msgspec.structs.replace(last, rid=self.rid, delta=delta)

    def until_changed(self) -> Coroutine[Any, Any, None]:
        is_shared = self._samples.reader is not None
        return super().until_changed() if is_shared else self._samples.read(self)

    async def complete(self) -> None:
        """Read the stream to its end; then the connection can be used again."""
        if self._samples.reader is None:
            await self._samples.read()

    async def leave(self) -> None:
        await self._samples.on_leave(self)


def _nothing_yet(response: httpx2.Response, rid: str) -> GenerateOutput:
    return GenerateOutput(rid=rid, prompt_tokens=int(response.headers.get("srt-prompt-tokens", 0)))


def _is_news(now: GenerateOutput, last: GenerateOutput) -> bool:
    """A jump may add text without adding tokens; a token may add no text."""
    has_ended = now.finish is not None
    has_more = now.completion_tokens > last.completion_tokens or len(now.text) > len(last.text)
    return has_ended or has_more


async def payloads_of(response: httpx2.Response) -> AsyncGenerator[Any, None]:
    """The JSON of each event. Raises the error that an event reports, RingError if the stream ends
    too early."""
    try:
        async for data in event_data(response.aiter_bytes()):
            if data == b"[DONE]":
                return
            payload = _decode(data)
            if "error" in payload:
                raise error_from(payload["error"], 500)
            yield payload
    except (httpx2.HTTPError, httpx2.StreamError) as exc:
        raise RingError(f"lost the server: {str(exc) or type(exc).__name__}") from exc
    except msgspec.DecodeError as exc:
        raise RingError(_STRANGE) from exc
    finally:
        await response.aclose()


def _parsed(
    payload: Any, generations: Sequence[HttpGeneration]
) -> tuple[HttpGeneration, GenerateOutput]:
    """The sample that an event is of, and what is known of it. Raises RingError for an event that
    none of our servers sends."""
    try:
        generation = generations[payload.get("index", 0)]
        return generation, joined(generation.last, parse_output(payload), payload["start"])
    except (LookupError, TypeError, AttributeError) as exc:
        raise RingError(_STRANGE) from exc
