"""Limits on a request's head, checked before the application sees it.

A proxy in front of the server may read a request with both Content-Length and Transfer-Encoding
differently: it is refused and the connection closed. The number of header fields is bounded. HEAD
is answered like GET, without the body, which the server's protocol leaves out.
"""

from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Send

from srt.gateway.errors import error_body
from srt.wire.errors import BAD_REQUEST, ErrorInfo

MAX_HEADERS = 256
MAX_HEAD_BYTES = 32 * 1024
_FRAMINGS = {b"content-length", b"transfer-encoding"}
_BOTH = "a request must not have both Content-Length and Transfer-Encoding"


def checking_heads(app: ASGIApp) -> ASGIApp:
    """`app` after the checks."""

    async def wrapped(scope: Any, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            await _refuse(send, f"a request has at most {MAX_HEADERS} header fields")
        elif {name for name, _ in headers} >= _FRAMINGS:
            await _refuse(send, _BOTH)
        else:
            if scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}
            await app(scope, receive, send)

    return wrapped


async def _refuse(send: Send, reason: str) -> None:
    """Answer 400 and close the connection."""
    body = msgspec.json.encode(error_body(ErrorInfo(BAD_REQUEST, reason)))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
