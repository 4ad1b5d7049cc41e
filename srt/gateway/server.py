"""Runs the gateway's application with uvicorn inside a loop that somebody else owns.

uvicorn's own signal handling is off: the launcher decides when to stop. Two gaps of uvicorn are
closed here: a connection must deliver the head of a request within HEAD_TIMEOUT_S (uvicorn waits
for ever), and `stop` bounds how long it waits for streams. Not closed: the number of connections
is bounded by the process's file limit only, and a peer that reads a response slowly holds its
request until it disconnects.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import h11
import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from srt.errors import ConfigError
from srt.listener import BACKLOG, bind_listener, url_of

HEAD_TIMEOUT_S = 30.0
KEEP_ALIVE_S = 30
STREAM_GRACE_S = 1.0  # the supervisor has drained before; it kills after two


class HeadTimeoutProtocol(H11Protocol):
    """h11, but a peer that starts a request and does not finish its head is dropped."""

    head_timeout_s = HEAD_TIMEOUT_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_head_timer()  # from here on it is uvicorn's keep-alive timer's turn

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class GatewayServer:
    """One listening server. `start` binds and serves; `stop` ends it within a bound."""

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        stream_grace_s: float = STREAM_GRACE_S,
    ) -> None:
        """`sock`, if given, is a bound socket that replaces host and port; 0 is any port."""
        self._host, self._port, self._sock = host, port, sock
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            app,
            http=HeadTimeoutProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stream_grace_s,  # type: ignore[arg-type]
        )
        self._server = _Uvicorn(config)

    @property
    def port(self) -> int:
        """The bound port."""
        assert self._sock is not None, "not started"
        port: int = self._sock.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where clients find the server."""
        assert self._sock is not None, "not started"
        return url_of(self._sock)

    async def start(self) -> None:
        """Bind and listen; returns when connections are taken. Raises ConfigError."""
        if self._sock is None:
            self._sock = bind_listener(self._host, self._port)
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._sock]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ConfigError("the HTTP server ended before it listened")
            await asyncio.sleep(0.005)

    async def wait(self) -> None:
        """Until the server has ended."""
        assert self._task is not None, "not started"
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Take no more connections, give streams their grace, then cut them. Idempotent."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.shield(self._task)


async def serve(app: ASGIApp, host: str, port: int) -> GatewayServer:
    """A started server for `app`."""
    server = GatewayServer(app, host, port)
    await server.start()
    return server
