"""Writes the chunks of a streamed answer to the connection: h11, which has no state that they
change, takes fifty times as long for each. The head and the end of an answer are h11's."""

from typing import Any

from h11._writers import ChunkedWriter
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import RequestResponseCycle


def writing_chunks(app: ASGIApp) -> ASGIApp:
    """`app`, which uvicorn calls itself. Nothing else may stand between them."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
        is_chunked = False

        async def written(message: Any) -> None:
            nonlocal is_chunked
            if is_chunked and message.get("more_body") and not cycle.flow.write_paused:
                if message["body"] and not cycle.disconnected:
                    chunk = b"%x\r\n%b\r\n" % (len(message["body"]), message["body"])
                    cycle.transport.write(chunk)
                return
            await send(message)
            is_chunked = isinstance(cycle.conn._writer, ChunkedWriter)

        await app(scope, receive, written)

    return wrapped
