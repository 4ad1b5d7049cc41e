"""Connections as one transport: each request has one of its own while it runs.

httpcore looks at all connections of a pool when a request begins and when it ends, and at the
socket of each idle one. With some thirty side by side that takes as long as all else that a client
does; so each pool here is of one connection, and the idle ones are a stack.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

MAX_IDLE = 64
ONE = httpx.Limits(max_connections=None, max_keepalive_connections=1)


class HttpConnections(httpx.AsyncBaseTransport):
    """Gives each request the transport that was used last and is idle, or one that `make` makes.

    Up to `MAX_IDLE` of them keep their connections for later requests.
    """

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._make = make
        self._idle: list[httpx.AsyncBaseTransport] = []
        self._active: set[httpx.AsyncBaseTransport] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        transport = self._idle.pop() if self._idle else self._make()
        self._active.add(transport)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await self._release(transport)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Body(response.stream, lambda: self._release(transport))
        return response

    async def _release(self, transport: httpx.AsyncBaseTransport) -> None:
        if transport not in self._active:  # closed meanwhile
            return
        self._active.remove(transport)
        if len(self._idle) < MAX_IDLE:
            self._idle.append(transport)
        else:
            await transport.aclose()

    async def aclose(self) -> None:
        transports = [*self._idle, *self._active]
        self._idle.clear()
        self._active.clear()
        for transport in transports:
            await transport.aclose()


class _Body(httpx.AsyncByteStream):
    """A response's body, whose end gives its connection back, once."""

    def __init__(
        self, stream: httpx.AsyncByteStream, release: Callable[[], Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._release = release
        self._is_open = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if self._is_open:
                self._is_open = False
                await self._release()
