"""Payloads of event streams, wherever the chunks are cut."""

from collections.abc import AsyncIterator

import pytest

from srt.event_data import event_data

STREAM = ": ping\n\ndata: one\u2028é\r\n\nevent: x\ndata:two\n\ndata: last".encode()
PAYLOADS = ["one\u2028é", "two", "last"]


async def chunks(size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(STREAM), size):
        yield STREAM[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_chunks_may_end_anywhere(size: int) -> None:
    assert [data.decode() async for data in event_data(chunks(size))] == PAYLOADS
