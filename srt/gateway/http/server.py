"""Runs the gateway's application with uvicorn inside a loop that the caller owns.

uvicorn's own signal handling is off: the launcher decides when to stop. Bounds that uvicorn lacks
are added here: a connection must deliver the head of a request within HEAD_TIMEOUT_S (uvicorn waits
for ever), and the rest of a body after its answer; a peer that reads hardly anything for
WRITE_STALL_S is cut off, which ends its request; the number of connections is bounded (see
`places`), and so are heads (see `checking_heads`), whose lines must end as HTTP says (see
`framing`); arrived data is parsed in slices, so that many small chunks hold nobody up; log lines
about a connection name its peer; `stop` bounds how long it waits for streams.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from srt.args import Network
from srt.callers.names import network_of
from srt.gateway.errors import (
    RETRY_AFTER,
    UNSUPPORTED_MEDIA_TYPE,
    encoded_error,
    error_body,
    failure,
)
from srt.gateway.http.chunks import writing_chunks
from srt.gateway.http.framing import StrictBuffer
from srt.gateway.http.places import Places
from srt.gateway.http.unread import reading_all
from srt.gateway.limits.proxies import naming_callers
from srt.ring.listener import BACKLOG, url_of
from srt.wire.errors import (
    BAD_REQUEST,
    UNAVAILABLE,
    ConfigError,
    ErrorInfo,
    RequestError,
    quoted,
)

log = logging.getLogger(__name__)
Headers = Sequence[tuple[bytes, bytes]]

MAX_CONNECTIONS = 2048
MAX_HEADERS = 256
MAX_HEAD_BYTES = 32 * 1024
PROBES = frozenset({"/health", "/ready", "/metrics"})  # are still served when all places are taken
HEAD_TIMEOUT_S = 30.0
REFUSED_TIMEOUT_S = 2.0  # for the head of a request that is refused
WRITE_STALL_S = 60.0
MIN_TAKEN_BYTES = 16384  # that a peer must read in WRITE_STALL_S while a write is blocked
KEEP_ALIVE_S = 30
CLOSE_S = 2.0  # for the rest of a write when a connection must make room
SLICE_BYTES = 8192  # may be 1400 chunks of one byte
DATE_INTERVAL_S = 1.0
CLOSING_LOOK_S = 0.005
STREAM_GRACE_S = 1.0  # the supervisor drains before this, and kills after two
_FRAMINGS = {b"content-length", b"transfer-encoding"}
_ENCODING = b"content-encoding"
_BOTH = "a request must not have both Content-Length and Transfer-Encoding"


class _PeersLog(logging.LoggerAdapter[logging.Logger]):
    """uvicorn's log, with the peer in each line about a connection, and with the reason if its
    framing was refused."""

    def __init__(self, logger: logging.Logger, peer: str, buffer: StrictBuffer) -> None:
        super().__init__(logger)
        self._peer, self._buffer = peer, buffer

    @property
    def level(self) -> int:  # uvicorn asks for it
        return self.logger.level

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        reason = self._buffer.refusal
        return f"{self._peer}: {msg}{reason and f' ({reason})'}", kwargs


class BoundedProtocol(H11Protocol):
    """h11 with bounds on connections, on the time for a head, and on writes that block."""

    head_timeout_s = HEAD_TIMEOUT_S
    write_stall_s = WRITE_STALL_S
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, places: Places, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places = places
        self._arrived = bytearray()
        self.conn._receive_buffer = self._buffer = StrictBuffer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host, port = self.client or ("an unknown peer", 0)
        self.peer = network_of(host)
        named = _PeersLog(self.logger, f"{host} port {port}", self._buffer)
        self.logger = named  # type: ignore[assignment]
        if not self._places.enter(self):
            self.app = probes_only(self.app)
            self.head_timeout_s = REFUSED_TIMEOUT_S
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        has_turn = bool(self._arrived)
        self._arrived += data
        if not has_turn:
            self._parse()

    def _parse(self) -> None:
        """Parse a slice of what has arrived; the rest after others have had their turn."""
        slice_ = bytes(self._arrived[:SLICE_BYTES])
        del self._arrived[:SLICE_BYTES]
        if self.transport.is_closing():
            self._arrived.clear()
            return
        super().data_received(slice_)
        self._watch_head()
        self._watch_place()
        if self._arrived:
            self.transport.pause_reading()
            self.loop.call_soon(self._parse)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    @property
    def is_answering(self) -> bool:
        """Whether a part of an answer has still to be made, or to leave."""
        is_made = self.cycle is None or self.cycle.response_complete
        return not is_made or self.transport.get_write_buffer_size() > 0

    def close_idle(self) -> None:
        self.transport.close()  # when all is written: a peer that reads nothing keeps it open
        self.loop.call_later(CLOSE_S, self.transport.abort)

    def _watch_place(self) -> None:
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._places.waits(self)
        else:
            self._places.works(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        self._places.leave(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_head_timer()  # from here on uvicorn's keep-alive timer bounds it
        if self._owes_body():
            self._watch_head()
        self._watch_place()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_write()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _watch_write(self) -> None:
        """While a write is blocked nothing is added to the buffer: its size shows what was read."""
        self._stop_write_timer()
        size = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.write_stall_s, self._check_write, size)

    def _check_write(self, size: int) -> None:
        if size - self.transport.get_write_buffer_size() < MIN_TAKEN_BYTES:
            self.transport.abort()
        else:
            self._watch_write()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a request to change the protocol is answered as if it had not asked."""

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # it has its answer
            self.transport.close()
            return
        info = ErrorInfo(BAD_REQUEST, self._buffer.refusal or msg)
        body = msgspec.json.encode(error_body(info))
        headers = [("content-type", "application/json"), ("connection", "close")]
        head = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE and not self._owes_body():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _owes_body(self) -> bool:
        """Whether only the rest of a body is missing, which nobody waits for."""
        is_answered = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        return is_answered and self.conn.their_state is h11.SEND_BODY

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def probes_only(app: ASGIApp) -> ASGIApp:
    """`app` for a connection above the bound: 503 for all but probes."""
    refuse = reading_all(refuse_request)

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = app if scope["path"] in PROBES else refuse
        await chosen(scope, receive, send)

    return wrapped


async def refuse_request(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503 and close the connection."""
    error = RequestError("the server has too many connections", code=UNAVAILABLE, retryable=True)
    body = encoded_error(error, scope)
    headers = RETRY_AFTER | {"connection": "close"}
    await Response(body, 503, headers, "application/json")(scope, receive, send)


def checking_heads(app: ASGIApp) -> ASGIApp:
    """`app` after checks of a request's head.

    A proxy in front of the server may read a request with both Content-Length and Transfer-Encoding
    differently: it is refused and the connection closed. The number of header fields is bounded.
    A body with a coding is refused (415): nothing here decodes one. HEAD is answered like GET,
    without the body, which the server's protocol leaves out.
    """

    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        headers, answer = scope["headers"], app
        names = {name for name, _ in headers}
        if len(headers) > MAX_HEADERS:
            answer = _refusal(f"a request has at most {MAX_HEADERS} header fields", scope)
        elif names >= _FRAMINGS:
            answer = _refusal(_BOTH, scope)
        elif _ENCODING in names and _has_body(headers) and (coding := _coding_of(headers)):
            answer = _coded(coding, scope)
        elif scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await answer(scope, receive, send)

    return wrapped


def _refusal(reason: str, scope: Scope) -> ASGIApp:
    """The answer 400, after which the connection is closed."""
    return failure(RequestError(reason), {"connection": "close"}, scope)


def _has_body(headers: Headers) -> bool:
    """Whether a body follows that is not known to be empty."""
    lengths = (value for name, value in headers if name in _FRAMINGS)
    return any(value.strip(b"0") for value in lengths)


def _coding_of(headers: Headers) -> str:
    """The first coding of a body that is not `identity`; "" if there is none."""
    fields = (value for name, value in headers if name == _ENCODING)
    codings = (coding.strip() for coding in b",".join(fields).decode("latin-1").split(","))
    return next((coding for coding in codings if coding.lower() not in ("", "identity")), "")


def _coded(coding: str, scope: Scope) -> ASGIApp:
    """The answer 415."""
    reason = f"Content-Encoding {quoted(coding)} is not supported: send the body without a coding"
    error = RequestError(reason, code=UNSUPPORTED_MEDIA_TYPE)
    return failure(error, {"accept-encoding": "identity"}, scope)


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which is told to end; the original looks ten times a second whether to."""

    def __init__(self, config: uvicorn.Config, stream_grace_s: float) -> None:
        super().__init__(config)
        self._stream_grace_s = stream_grace_s
        self._end = asyncio.Event()

    def request_stop(self) -> None:
        self.should_exit = True
        self._end.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the date that answers have
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_INTERVAL_S):
                    await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        deadline = time.monotonic() + self._stream_grace_s
        while (state.connections or state.tasks) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(CLOSING_LOOK_S)
        if state.connections or state.tasks:
            log.warning("%d connections are cut", len(state.connections))
        for task in state.tasks:
            task.cancel(f"the server has stopped, {self._stream_grace_s:g} s ago")


class GatewayServer:
    """A server on a bound socket. `start` listens and serves; `stop` ends it within a bound."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        *,
        max_connections: int = MAX_CONNECTIONS,
        stream_grace_s: float = STREAM_GRACE_S,
        proxies: Sequence[Network] = (),
    ) -> None:
        self._sock = sock
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            writing_chunks(reading_all(checking_heads(naming_callers(app, proxies)))),
            http=partial(BoundedProtocol, places=Places(max_connections)),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = _Uvicorn(config, stream_grace_s)

    @property
    def port(self) -> int:
        """The bound port."""
        port: int = self._sock.getsockname()[1]
        return port

    @property
    def connections(self) -> Collection[Any]:
        """The open connections."""
        return self._server.server_state.connections

    @property
    def num_answering(self) -> int:
        """Connections with an answer on its way."""
        return sum(connection.is_answering for connection in self.connections)

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return url_of(self._sock)

    async def start(self) -> None:
        """Listen; returns when connections are taken. Raises ConfigError."""
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._sock]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ConfigError("the HTTP server ended before it listened")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Take no more connections, give streams their grace period, then cut them. Idempotent."""
        self._server.request_stop()
        if self._task is not None:
            await asyncio.shield(self._task)
