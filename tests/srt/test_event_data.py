"""Lines of event streams, wherever the chunks are cut."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from srt.client.http.event_lines import event_lines

STREAM = "data: one\u2028é\r\n\ndata: two\n\nlast".encode()
LINES = ["data: one\u2028é", "data: two", "last"]


class Chunks(httpx2.AsyncByteStream):
    def __init__(self, size: int) -> None:
        self._size = size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(STREAM), self._size):
            yield STREAM[start : start + self._size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_chunks_may_end_anywhere(size: int) -> None:
    response = httpx2.Response(200, stream=Chunks(size))
    assert [line.decode() async for line in event_lines(response)] == LINES
