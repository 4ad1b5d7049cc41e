"""Server-sent events: their bytes, and the ASGI response that sends them.

The status of a stream is sent with its first event, so a refusal is never hidden in a 200, nor is
the failure of a request that had to give way to others' while it waited. Once it is sent, a failure
is one `{"error": ...}` event; every stream that ends by itself ends with `[DONE]`. The events of
/v1/responses and /v1/messages have names, and their own forms of both.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from srt.gateway.errors import ClientDisconnected, body_of, failure
from srt.gateway.http.disconnect import while_connected

DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
_encode = msgspec.json.Encoder().encode
Frames = Callable[[AsyncGenerator[Any, None]], AsyncGenerator[bytes, None]]


class Closable(Protocol):
    """What a stream must close at its end, however it ends."""

    async def aclose(self) -> None: ...


def event(payload: Any) -> bytes:
    """One event: `payload` as JSON in a single `data:` line."""
    return b"data: " + _encode(payload) + b"\n\n"


async def events(payloads: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """Frame `payloads`. A failure after the first of them becomes an error event; one before that
    is raised."""
    has_begun = False
    try:
        async with aclosing(payloads):
            async for payload in payloads:
                has_begun = True
                yield event(payload)
    except Exception as exc:
        if not has_begun:
            raise
        yield event(body_of(exc))
    yield DONE


async def named_events(payloads: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """Frame `payloads`, objects with a type, under the names of their types. The payloads
    themselves report failures and the end."""
    async with aclosing(payloads):
        async for payload in payloads:
            yield b"event: " + payload["type"].encode() + b"\n" + event(payload)


class EventStream:
    """An ASGI application that streams `payloads`, as `frames` writes them, and closes `owner`.
    What `frames` raises before the first frame is answered as an error, with its own status.

    `owner` is closed when the client disconnects, when the server cancels the response, and when
    the stream ends.
    """

    def __init__(
        self,
        payloads: AsyncGenerator[Any, None],
        owner: Closable,
        headers: Mapping[str, str] | None = None,
        frames: Frames = events,
    ) -> None:
        self._payloads = payloads
        self._owner = owner
        self._frames = frames
        self._headers = _HEADERS | dict(headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientDisconnected):
                await while_connected(receive, self._send_all(scope, receive, send))
        finally:
            await self._owner.aclose()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        async with aclosing(self._frames(self._payloads)) as frames:
            try:
                first = await anext(frames, b"")
            except Exception as exc:
                await failure(exc, scope=scope)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
