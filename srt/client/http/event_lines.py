"""The lines of a stream of server-sent events that is read with httpx2.

Used by the HTTP client and by the language's back ends.
"""

from collections.abc import AsyncGenerator

import httpx2


async def event_lines(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """Lines as they arrive, without line ends and without empty lines. Only a newline ends one:
    httpx2's own splitting also takes U+2028 and the like, which JSON may hold unescaped."""
    parts: list[bytes] = []  # of a line: joined once, so that a long one takes linear time
    async for chunk in response.aiter_bytes():
        *lines, rest = chunk.split(b"\n")
        if parts and lines:
            lines[0] = b"".join((*parts, lines[0]))
            parts.clear()
        for line in filter(None, lines):
            yield line.removesuffix(b"\r")
        if rest:
            parts.append(rest)
    if rest := b"".join(parts):
        yield rest
