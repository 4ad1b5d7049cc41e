"""Connections as one transport: each request has one of its own while it runs.

httpcore looks at all connections of a pool when a request begins and when it ends, and at the
socket of each idle one. With some thirty side by side that takes as long as all else that a client
does; so each pool here is of one connection, and the idle ones are a stack.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2

from srt.wire.errors import ConfigError

MAX_IDLE = 64
ONE = httpx2.Limits(max_connections=None, max_keepalive_connections=1)


def checked_transport(given: httpx2.AsyncBaseTransport | None) -> httpx2.AsyncBaseTransport | None:
    """What a program gave as `transport`. Raises ConfigError if it is another library's: httpx2's
    have the same methods, but exchange requests and responses of other classes."""
    if given is None or isinstance(given, httpx2.AsyncBaseTransport):
        return given
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    raise ConfigError(f"transport must be one of httpx2's, the successor of httpx, not a {kind}")


class HttpConnections(httpx2.AsyncBaseTransport):
    """Gives each request the transport that was used last and is idle, or one that `make` makes.

    Up to `MAX_IDLE` of them keep their connections for later requests.
    """

    def __init__(self, make: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._make = make
        self._idle: list[httpx2.AsyncBaseTransport] = []
        self._active: set[httpx2.AsyncBaseTransport] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        transport = self._idle.pop() if self._idle else self._make()
        self._active.add(transport)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await self._release(transport)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, lambda: self._release(transport))
        return response

    async def _release(self, transport: httpx2.AsyncBaseTransport) -> None:
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


class _Body(httpx2.AsyncByteStream):
    """A response's body, whose end gives its connection back, once."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, release: Callable[[], Awaitable[None]]
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
