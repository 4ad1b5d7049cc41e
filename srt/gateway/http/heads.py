"""Limits on a request's head, checked before the application sees it.

A proxy in front of the server may read a request with both Content-Length and Transfer-Encoding
differently: it is refused and the connection closed. The number of header fields is bounded. HEAD
is answered like GET, without the body, which the server's protocol leaves out.
"""

from typing import Any

from starlette.types import ASGIApp, Receive, Send

from srt.gateway.errors import failure
from srt.wire.errors import RequestError

MAX_HEADERS = 256
MAX_HEAD_BYTES = 32 * 1024
_FRAMINGS = {b"content-length", b"transfer-encoding"}
_BOTH = "a request must not have both Content-Length and Transfer-Encoding"


def checking_heads(app: ASGIApp) -> ASGIApp:
    """`app` after the checks."""

    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        headers, answer = scope["headers"], app
        if len(headers) > MAX_HEADERS:
            answer = _refusal(f"a request has at most {MAX_HEADERS} header fields")
        elif {name for name, _ in headers} >= _FRAMINGS:
            answer = _refusal(_BOTH)
        elif scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await answer(scope, receive, send)

    return wrapped


def _refusal(reason: str) -> ASGIApp:
    """The answer 400, after which the connection is closed."""
    return failure(RequestError(reason), {"connection": "close"})
