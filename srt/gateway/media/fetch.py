"""Fetches pictures and videos over http(s), from hosts that the server's owner has allowed.

A host that is allowed today may point into the server's own network tomorrow. So the addresses of
its name are looked up once, those that are not public are left out, and the connection is made to
one of the rest: no second look-up can give another. Redirects are not followed, and no proxy of the
environment is used.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import h11

from srt.callers.shares import Shares
from srt.fair_queue import SlotQueue
from srt.gateway.limits.large_bodies import Room
from srt.gateway.media.urls import MAX_FILE_BYTES, PORTS, WebAddress, is_public
from srt.wire.errors import OVERLOADED, RequestError

FETCH_TIMEOUT_S = 10.0  # for all of it, the look-up included
MAX_FETCHES = 16  # at once
MAX_WAITING = 256
MAX_CALLER_WAITING = 128
MAX_ADDRESSES = 3  # of a host that are tried
MAX_HEAD_BYTES = 32 * 1024
_READ_BYTES = 16 * 1024  # between turns of others

_RESOLVERS = ThreadPoolExecutor(16, "resolver")

_Turn = asyncio.Future[None]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
# The IP addresses of a host and port.
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Connects to an IP address and port, with TLS for a host's name if there is one.
Connect = Callable[[str, int, str | None], Awaitable[Connection]]


class Resolver:
    """What the system's resolver says. It has threads of its own, and one for each host at most: a
    host whose look-ups hang keeps none that others wait for."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], Future[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        key = host, port
        found = self._running.get(key)
        if found is None:
            found = self._running[key] = _RESOLVERS.submit(_look_up, host, port)
            found.add_done_callback(lambda _: self._running.pop(key))  # maybe in its thread
        # Whoever stops waiting ends it for nobody else.
        return await asyncio.shield(asyncio.wrap_future(found))


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Connector:
    """Opens connections. The certificates of authorities are loaded once."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    async def __call__(self, address: str, port: int, tls_host: str | None) -> Connection:
        if tls_host is None:
            return await asyncio.open_connection(address, port)
        if self._context is None:  # reading them takes long
            self._context = await asyncio.to_thread(_tls_context)
        context = self._context
        return await asyncio.open_connection(address, port, ssl=context, server_hostname=tls_host)


def _tls_context() -> ssl.SSLContext:
    import httpx2  # takes a tenth of a second; few gateways fetch anything

    return httpx2.create_ssl_context(trust_env=False)


class Fetcher:
    """Fetches for all requests. Tests replace the resolver, the connections and the rule for
    addresses."""

    def __init__(
        self,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
        is_public: Callable[[str], bool] = is_public,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._resolve, self._connect = resolve or Resolver(), connect or Connector()
        self._is_public = is_public
        self._timeout_s = timeout_s
        self._turns: SlotQueue[str, _Turn] = SlotQueue(MAX_FETCHES)
        self._waiting: Shares[str, _Turn] = Shares(
            MAX_WAITING, MAX_CALLER_WAITING, give_way=self._give_way
        )

    async def fetch(self, address: WebAddress, caller: str, room: Room) -> bytes:
        """The file; `room` is taken for its bytes. Raises RequestError for the field ""."""
        try:
            async with asyncio.timeout(self._timeout_s), self._turn(caller):
                return await self._file(address, room)
        except TimeoutError:
            reason = f": could not be fetched within {self._timeout_s:g} s"
        except (OSError, UnicodeError, h11.ProtocolError):  # UnicodeError: of a host's name
            reason = ": could not be fetched from its host"
        raise RequestError(reason, at="", retryable=True) from None

    @asynccontextmanager
    async def _turn(self, caller: str) -> AsyncIterator[None]:
        """One of the fetches that may be made at once. Raises RequestError (429) if too many wait,
        or if this one gives way to another caller's."""
        turn: _Turn = asyncio.get_running_loop().create_future()
        self._turns.add(caller, turn)
        self._begin()
        try:
            if not turn.done():
                await self._wait(caller, turn)
            yield
        finally:
            if not self._turns.discard(caller, turn):
                self._turns.done(caller, turn)
            self._begin()

    async def _wait(self, caller: str, turn: _Turn) -> None:
        if self._waiting.take(caller, turn):
            raise _too_many()
        try:
            await turn
        finally:
            self._waiting.give_back(turn)

    def _begin(self) -> None:
        """Let those go on that may: a caller leaves places to the next."""
        while (taken := self._turns.take()) is not None:
            turn = taken[1]
            if not turn.done():  # its task may have been cancelled just now
                turn.set_result(None)

    def _give_way(self, turn: _Turn) -> None:
        if not turn.done():
            turn.set_exception(_too_many())

    async def _file(self, address: WebAddress, room: Room) -> bytes:
        reader, writer = await self._connection(address)
        try:
            return await _body(reader, writer, address, room)
        finally:
            writer.transport.abort()  # nothing is to be sent any more

    async def _connection(self, address: WebAddress) -> Connection:
        """A connection to one of the host's public addresses."""
        found = await self._resolve(address.host, address.port)
        public = [each for each in found if self._is_public(each)]
        if not public:
            reason = ": its host has no public address" if found else ": its host is not known"
            raise RequestError(reason, at="")
        tls_host = address.host if address.scheme == "https" else None
        *others, last = public[:MAX_ADDRESSES]
        for each in others:
            with suppress(OSError):
                return await self._connect(each, address.port, tls_host)
        return await self._connect(last, address.port, tls_host)


async def _body(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: WebAddress, room: Room
) -> bytes:
    """Ask for the file, and read the answer's body."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    writer.write(http.send(_request(address)) or b"")
    writer.write(http.send(h11.EndOfMessage()) or b"")
    data = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_READ_BYTES))
            await asyncio.sleep(0)  # what is there already is read without a pause
        elif isinstance(event, h11.Response):
            _check_head(event)
        elif isinstance(event, h11.Data):
            if len(data) + len(event.data) > MAX_FILE_BYTES:
                raise _too_long()
            room.take(len(event.data))
            data += event.data
        elif isinstance(event, h11.EndOfMessage):
            return bytes(data)
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("the connection ended")


def _request(address: WebAddress) -> h11.Request:
    port = "" if address.port == PORTS[address.scheme] else f":{address.port}"
    headers = [
        ("Host", f"{address.host}{port}"),
        ("Accept", "image/*, video/*, */*"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", "srt"),
        ("Connection", "close"),
    ]
    return h11.Request(method="GET", target=address.target, headers=headers)


def _check_head(response: h11.Response) -> None:
    """Raise RequestError unless the file follows, as it is."""
    if 300 <= response.status_code < 400:
        raise RequestError(": its host answers with a redirect, which is not followed", at="")
    if response.status_code != 200:
        raise RequestError(f": its host answers with status {response.status_code}", at="")
    headers = {bytes(name): bytes(value) for name, value in response.headers}
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RequestError(": its host sends it compressed, which was not asked for", at="")
    if int(headers.get(b"content-length", b"0")) > MAX_FILE_BYTES:
        raise _too_long()


def _too_many() -> RequestError:
    reason = ": too many files of this caller, or of all, are fetched at once"
    return RequestError(reason, at="", code=OVERLOADED, retryable=True)


def _too_long() -> RequestError:
    return RequestError(f" has more than {MAX_FILE_BYTES} bytes", at="")
