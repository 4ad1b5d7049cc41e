"""Reads the rest of a request's body before its answer ends.

An answer may be sent before the body was read, if that is too large or the key is wrong. The
connection is then closed, and closing one on which data still arrives resets it: the peer would
lose the answer. `GatewayServer` wraps every application with `reading_all`.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

MAX_UNREAD_BYTES = 64 * 1024 * 1024
UNREAD_TIMEOUT_S = 5.0


def reading_all(app: ASGIApp) -> ASGIApp:
    """`app`, whose answers end after the request's body, or after a bound on the rest of it."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        has_ended = _waits_to_send(scope["headers"])

        async def watched_receive() -> Any:
            nonlocal has_ended
            message: Any = await receive()
            has_ended |= not message.get("more_body")
            return message

        async def late_send(message: Any) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if is_last and not has_ended:
                await _discard(watched_receive)
            await send(message)

        await app(scope, watched_receive, late_send)

    return wrapped


def _waits_to_send(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the peer will send no body once it sees an answer."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)


async def _discard(receive: Receive) -> None:
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_TIMEOUT_S):
            while size <= MAX_UNREAD_BYTES:
                message: Any = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
