"""The HTTP below the OpenAI back end: posts, server-sent events, bounded retries, errors by name.

It uses httpx2 because the `openai` package is four times as slow to import, would be one more
dependency, and knows no fields but its own. Invariant: an exchange that is left early, by
cancellation or by closing the iterator, closes its connection, which tells such servers to abort.
"""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import msgspec

from lang.errors import FilterError
from srt import forked
from srt.client.http.connections import checked_transport
from srt.event_data import event_data
from srt.wire.errors import (
    BAD_REQUEST,
    CONTEXT_LENGTH,
    INTERNAL,
    NOT_FOUND,
    OVERLOADED,
    UNAUTHORIZED,
    UNAVAILABLE,
    RequestError,
    check_process,
)

CONNECT_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 256  # requests above this wait here, not at the server
FIRST_PAUSE_S = 0.5  # doubled with every retry, unless the server names a time
MAX_PAUSE_S = 60.0  # if the server asks for more, there is no retry
REQUEST_TIMEOUT = "request_timeout"
_CODES = {
    401: UNAUTHORIZED,
    403: UNAUTHORIZED,
    404: NOT_FOUND,
    408: REQUEST_TIMEOUT,
    429: OVERLOADED,
    529: OVERLOADED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}
_RETRIED = (OVERLOADED, UNAVAILABLE)
_SENT_AGAIN = (500, 529)  # besides; in a stream nothing is sent again
JITTER = 0.25  # of a pause that the server did not name: clients that failed together part
_Refusal = tuple[RequestError, float | None]  # and the pause in seconds that is asked for, if any


class OpenAIHttp:
    """Connections to one server. `timeout_s` bounds its silence, not a whole stream.

    A request is sent again, up to `max_retries` times, as long as nothing of an answer has come:
    the server cannot be reached, or it says 429, 500, 502, 503, 504 or 529. `query` is appended to
    each path. No message has one of `keys`. `transport` replaces the network in tests.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        max_retries: int,
        query: str = "",
        keys: Sequence[str] = (),
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._query, self._keys = query, keys
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        with forked.undivided():  # loading root certificates takes 60 ms
            verify = httpx2.create_ssl_context(verify=not self.base_url.startswith("http:"))
        self._http = httpx2.AsyncClient(
            headers=dict(headers),
            verify=verify,
            timeout=httpx2.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s), pool=None),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS),
            transport=checked_transport(transport),
        )

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The decoded answer. Raises RequestError."""
        response = await self._open(path, body)
        try:
            return _decoded(await response.aread())
        except httpx2.HTTPError as exc:
            raise self._lost(exc) from exc
        finally:
            await response.aclose()

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """The decoded events of a stream up to its `[DONE]`. Raises RequestError."""
        response = await self._open(path, body)
        try:
            async with aclosing(event_data(response.aiter_bytes())) as payloads:
                async for data in payloads:
                    if data == b"[DONE]":
                        return
                    yield _event(data, self._keys)
        except httpx2.HTTPError as exc:
            raise self._lost(exc) from exc
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close all connections; what is in flight fails. Does nothing in a child of the process
        that made them."""
        if os.getpid() == self._pid:
            await self._http.aclose()

    async def _open(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """A response whose status is good."""
        attempt = 0
        while True:
            answer = await self._attempt(path, body)
            if isinstance(answer, httpx2.Response):
                return answer
            error, asked = answer
            pause = FIRST_PAUSE_S * 2**attempt if asked is None else asked
            if asked is None:
                pause *= random.uniform(1 - JITTER, 1 + JITTER)
            if attempt == self._max_retries or not error.info.retryable or pause > MAX_PAUSE_S:
                raise error
            attempt += 1
            await asyncio.sleep(pause)

    async def _attempt(self, path: str, body: dict[str, Any]) -> "httpx2.Response | _Refusal":
        """A response whose status is good, or what the server said, or that it is not reached."""
        check_process(self._pid, "transport")
        try:
            request = self._http.build_request(
                "POST", self.base_url + path + self._query, json=body
            )
            response = await self._http.send(request, stream=True)
            return response if response.is_success else await _refusal(response, self._keys)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
            message = f"cannot reach {self.base_url}: {str(exc) or type(exc).__name__}"
            return RequestError(message, code=UNAVAILABLE, retryable=True), None
        except httpx2.HTTPError as exc:
            raise self._lost(exc) from exc

    def _lost(self, exc: httpx2.HTTPError) -> RequestError:
        """The error of a broken exchange. It may have caused costs, so it is not sent again."""
        if isinstance(exc, httpx2.TimeoutException):
            message = f"{self.base_url} was silent for {self._timeout_s:g} s"
            return RequestError(message, code=REQUEST_TIMEOUT, retryable=True)
        message = f"lost {self.base_url}: {str(exc) or type(exc).__name__}"
        return RequestError(message, code=UNAVAILABLE, retryable=True)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RequestError(f"the server's answer is not JSON: {exc}", code=INTERNAL) from exc


def _event(data: bytes, keys: Sequence[str]) -> Any:
    """One event. Raises the error that it carries, if it does."""
    event = _decoded(data)
    if isinstance(event, dict) and event.get("error"):
        raise _error(event["error"], int(event.get("status_code") or 500), keys)
    return event


async def _refusal(response: httpx2.Response, keys: Sequence[str]) -> _Refusal:
    try:
        data = await response.aread()
    except httpx2.HTTPError:
        data = b""
    finally:
        await response.aclose()
    try:
        detail = msgspec.json.decode(data)
        detail = detail.get("error", detail)
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        detail = data[:500].decode(errors="replace") or response.reason_phrase
    error = _error(detail, response.status_code, keys)
    return error, _pause(response.headers.get("retry-after"))


def _error(detail: Any, status: int, keys: Sequence[str]) -> RequestError:
    """The error of an OpenAI-style body: an object with `message`, `code`, `param`, or a text.
    Raises FilterError for a prompt that a filter refused."""
    fields = detail if isinstance(detail, dict) else {"message": detail}
    theirs = str(fields.get("code") or "")
    message = without_keys(str(fields.get("message") or f"HTTP {status}"), keys)
    if theirs in ("content_filter", "content_policy_violation"):
        raise FilterError(f"a filter refused the prompt: {message}", theirs)
    code = code_of(status)
    if theirs == CONTEXT_LENGTH:
        code = CONTEXT_LENGTH
    return RequestError(
        message,
        param=fields.get("param"),
        code=code,
        retryable=(code in _RETRIED or status in _SENT_AGAIN) and theirs != "insufficient_quota",
    )


def code_of(status: int) -> str:
    """The code of an error of this HTTP status."""
    return _CODES.get(status, INTERNAL if status >= 500 else BAD_REQUEST)


def without_keys(text: str, keys: Sequence[str]) -> str:
    """`text` without secrets, which servers repeat in messages about them."""
    for key in keys:
        text = text.replace(key, "***")
    return text


def _pause(retry_after: str | None) -> float | None:
    """The header's seconds or date, in seconds from now; None where it is missing or unreadable."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        when = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max((when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds(), 0.0)
