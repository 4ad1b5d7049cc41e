"""`Client` over a server's HTTP API, for programs that have no way to the ring's sockets.

Submitted requests stream: the response's head is how the server says "admitted". `complete` is for
callers who need only the result, and takes a third of the client's CPU time. This transport hears
no ring events.
"""

import asyncio
import os
import uuid
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2
import msgspec

from srt import forked
from srt.client.generation import (
    GenerateOutput,
    PromptRequest,
    Request,
    ScoreOutput,
    ScoreRequest,
    TokenizeRequest,
    require_single,
)
from srt.client.http.answers import error_of, parse_score, parse_whole
from srt.client.http.bodies import (
    check_tenant,
    generate_body,
    ring_names,
    score_body,
    tokenize_body,
)
from srt.client.http.connections import ONE, HttpConnections, checked_transport
from srt.client.http.generation import HttpGeneration, HttpSamples
from srt.client.http.programs import HttpPrograms
from srt.tasks import all_of
from srt.wire.errors import ConfigError, RingError, check_process, renaming
from srt.wire.ring_state import RingEvent

CONNECT_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 30.0
# The longest silence of a server that should answer at once, and of one that computes or is busy.
CALL_TIMEOUT_S = 60.0
SILENCE_TIMEOUT_S = 600.0
TOKEN_TIMEOUT_S = 1.0  # more for each token of an answer that comes as a whole
UNBOUNDED_INTERVAL = 64  # tokens between two signs that an unbounded answer goes on


def is_here(url: str) -> bool:
    """Whether `url` is of this machine by its text, so that no proxy could reach it."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class HttpClient:
    """A client of the server at `url`. Close it with `close` or use it in `async with`.

    `transport` replaces the network (an ASGI application in tests).
    """

    ring: RingEvent | None = None  # this transport hears no events

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        transport = checked_transport(transport)
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/")
        # Loading root certificates, which plain HTTP does not need, holds a loop 60 ms: once.
        with forked.undivided():
            self._verify = httpx2.create_ssl_context(verify=not self.url.startswith("http:"))
        has_proxies = bool(getproxies()) and not is_here(self.url)
        try:
            self._http = httpx2.AsyncClient(
                base_url=self.url,
                verify=self._verify,
                headers=headers,
                timeout=_timeout(SILENCE_TIMEOUT_S),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=not is_here(self.url),
                # httpx2 itself finds the proxies that an environment names.
                transport=transport or (None if has_proxies else HttpConnections(self._connection)),
            )
        except (ImportError, ValueError) as error:
            raise ConfigError(f"the proxy that the environment names: {error}") from None
        self._samples: list[HttpSamples] = []
        self._pid: int | None = None  # of the process that has used it
        forked.renew_in_children(self, forked.leave)
        self.programs = HttpPrograms(self._call, self._stream)

    def _connection(self) -> httpx2.AsyncBaseTransport:
        return httpx2.AsyncHTTPTransport(verify=self._verify, limits=ONE)

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Does nothing: connections are made when they are needed."""

    async def close(self) -> None:
        """Close all connections; requests in flight are aborted by the server. Does nothing in a
        child of the process that has used the client."""
        if self._pid not in (None, os.getpid()):
            return  # the connections are those of the process that this one was forked from
        for samples in self._samples:
            await samples.close()
        await self._http.aclose()

    async def submit(self, request: Request) -> HttpGeneration:
        require_single(request)
        return (await self.submit_samples(request))[0]

    async def submit_samples(self, request: Request) -> list[HttpGeneration]:
        return await self._streamed(request)

    async def _streamed(
        self, request: Request, interval: int | None = None
    ) -> list[HttpGeneration]:
        """The samples of a request, with an event for each `interval` tokens (None: as the server
        has it)."""
        request.sampling.check_count()
        rid = uuid.uuid4().hex if request.rid is None else request.rid  # so that an abort names it
        request = msgspec.structs.replace(request, rid=rid)
        body = await _body(lambda: generate_body(request, interval), request)
        with renaming(ring_names(request)):
            response = await self._stream("/generate", **body)
        samples = HttpSamples(response, rid, request.sampling.n, self.abort, ring_names(request))
        self._samples = [s for s in (*self._samples, samples) if s.is_running]
        return samples.generations

    async def complete(self, request: Request) -> list[GenerateOutput]:
        """The finished samples of a request. A cancelled call ends them on the server."""
        tokens = request.sampling.max_new_tokens
        if tokens is None:  # only a stream shows that an unbounded answer goes on
            samples = await self._streamed(request, UNBOUNDED_INTERVAL)
            return await all_of(each.result() for each in samples)
        request.sampling.check_count()
        body = await _body(lambda: generate_body(request) | {"stream": False}, request)
        read_s = SILENCE_TIMEOUT_S + TOKEN_TIMEOUT_S * tokens
        with renaming(ring_names(request)):
            response = await self._call("POST", "/generate", read_s, **body)
        return parse_whole(response)

    async def _stream(self, path: str, **body: Any) -> httpx2.Response:
        url = _url_of(self.url, path)
        return await self._send(self._http.build_request("POST", url, **body), stream=True)

    async def _send(self, request: httpx2.Request, stream: bool = False) -> httpx2.Response:
        if self._http.is_closed:
            raise RingError("the client was closed")
        if self._pid is None:
            self._pid = os.getpid()
        check_process(self._pid, "client")
        try:
            response = await self._http.send(request, stream=stream)
            if response.is_success:
                return response
            try:
                await response.aread()
            finally:
                await response.aclose()
        except httpx2.HTTPError as exc:
            raise RingError(f"cannot reach {self.url}: {str(exc) or type(exc).__name__}") from exc
        raise error_of(response)

    async def _call(
        self, method: str, path: str, read_s: float | None = None, **options: Any
    ) -> httpx2.Response:
        options["timeout"] = _timeout(CALL_TIMEOUT_S if read_s is None else read_s)
        url = _url_of(self.url, path)
        return await self._send(self._http.build_request(method, url, **options))

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        with renaming(ring_names(request)):
            answer = await self._call("POST", "/tokenize", json=tokenize_body(request))
        ids: list[int] = answer.json()["tokens"]
        return ids

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        body = await _body(lambda: score_body(request), request)
        with renaming(ring_names(request)):
            answer = await self._call("POST", "/score_choices", SILENCE_TIMEOUT_S, **body)
        return parse_score(answer.json())

    async def abort(self, rid: str, tenant: str = "") -> None:
        check_tenant(tenant)
        await self._call("POST", "/abort_request", json={"rid": rid})

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        read_s = timeout_s + CALL_TIMEOUT_S
        await self._call("POST", "/flush_cache", read_s, params={"timeout": timeout_s})

    async def stats(self) -> dict[str, Any]:
        states = (await self._call("GET", "/server_info")).json().get("internal_states")
        if not states:
            raise RingError("the server's scheduler did not answer")
        stats: dict[str, Any] = states[0]
        return stats

    async def look(self) -> list[dict[str, Any]]:
        replicas: list[dict[str, Any]] = (await self._call("GET", "/tree")).json()["replicas"]
        return replicas


async def _body(make: Callable[[], dict[str, Any]], request: PromptRequest) -> dict[str, Any]:
    """What httpx2 needs for a body. One with files is large: a thread makes it."""
    if not request.media:
        return {"json": make()}
    content = await asyncio.to_thread(lambda: msgspec.json.encode(make()))
    return {"content": content, "headers": {"content-type": "application/json"}}


@lru_cache(maxsize=256)
def _url_of(server: str, path: str) -> httpx2.URL:
    """Parsed once: httpx2 would do so twice a request."""
    return httpx2.URL(server + path)


def _timeout(read_s: float) -> httpx2.Timeout:
    return httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S, write=WRITE_TIMEOUT_S, read=read_s)
