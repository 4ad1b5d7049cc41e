"""How the snapshots of several generations become one stream."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from srt.client.generation import GenerateOutput
from srt.gateway.batch import _merged
from tests.waiting import SOON_S


def snapshot(count: int) -> GenerateOutput:
    return GenerateOutput(1, 0, count, rid="r", output_ids=list(range(count)))


class Source:
    """Gives `count` snapshots, each after `delay_s`, and then raises `error`, if any."""

    def __init__(self, count: int, delay_s: float = 0.0, error: Exception | None = None) -> None:
        self._count, self._delay_s, self._error = count, delay_s, error
        self.has_ended = False

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        try:
            for i in range(self._count):
                await asyncio.sleep(self._delay_s)
                yield snapshot(i)
            if self._error is not None:
                raise self._error
        finally:
            self.has_ended = True


@pytest.mark.parametrize("counts", [[5], [0], [3, 0, 7], [4] * 20])
async def test_each_comes_once_and_in_order(counts: list[int]) -> None:
    sources = [Source(count, delay_s=0.001 * (i % 3)) for i, count in enumerate(counts)]
    got: list[list[int]] = [[] for _ in counts]
    async with asyncio.timeout(SOON_S), aclosing(_merged([aiter(s) for s in sources])) as merged:
        async for index, output in merged:
            got[index].append(output.completion_tokens)
    assert got == [list(range(count)) for count in counts]


async def test_the_quick_do_not_wait_for_the_slow() -> None:
    sources = [Source(1, delay_s=3600.0), Source(5)]
    async with asyncio.timeout(SOON_S), aclosing(_merged([aiter(s) for s in sources])) as merged:
        assert [(await anext(merged))[0] for _ in range(5)] == [1] * 5
    assert sources[0].has_ended


@pytest.mark.parametrize("others", [0, 2])
async def test_the_first_failure_ends_all(others: int) -> None:
    sources = [
        Source(2, error=ValueError("x")),
        *(Source(9, delay_s=3600.0) for _ in range(others)),
    ]
    merged = _merged([aiter(s) for s in sources])
    with pytest.raises(ValueError, match="x"):
        async with asyncio.timeout(SOON_S), aclosing(merged):
            _ = [index async for index, _ in merged]
    assert all(source.has_ended for source in sources)
