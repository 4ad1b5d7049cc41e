"""What a stream of server-sent events says: the one reader of ours, for the clients, the language's
back ends and the benchmark.

Servers of models send JSON, each on one `data:` line, and nothing else that counts. httpx2's
`EventSource` reads all of the format, as text: it takes three times as long for each token, refuses
events above a bound that answers with log-probabilities pass, and insists on a content type that
not all servers send. httpx-sse is the same for httpx, which is not maintained.
"""

from collections.abc import AsyncGenerator, AsyncIterable

_DATA = b"data:"


class EventReader:
    """Takes the payloads of `data:` lines out of chunks that may end anywhere.

    Only a newline ends a line: JSON may hold U+2028 and the like unescaped.
    """

    def __init__(self) -> None:
        self._parts: list[
            bytes
        ] = []  # of a line: joined once, so that a long one takes linear time

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads whose lines end in this chunk."""
        *lines, rest = chunk.split(b"\n")
        if self._parts and lines:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
        if rest:
            self._parts.append(rest)
        return [line[len(_DATA) :].strip() for line in lines if line.startswith(_DATA)]


async def event_data(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Payloads as they arrive, and that of a last line without an end."""
    reader = EventReader()
    async for chunk in chunks:
        for data in reader.feed(chunk):
            yield data
    for data in reader.feed(b"\n"):
        yield data
