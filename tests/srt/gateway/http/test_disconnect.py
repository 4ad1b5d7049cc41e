"""What ends with its client, and what does not."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from srt.gateway.errors import ClientDisconnected
from srt.gateway.http.disconnect import while_connected


def leaving(gone: asyncio.Event) -> Callable[[], Awaitable[Any]]:
    """The `receive` of a client that leaves when `gone` is set."""

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


@pytest.mark.parametrize("turns", range(4))
async def test_leaving_while_the_work_ends_cancels_nothing_after_it(turns: int) -> None:
    gone, done = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        await done.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        return "done"

    def both() -> None:
        gone.set()
        done.set()

    asyncio.get_running_loop().call_later(0.01, both)
    with suppress(ClientDisconnected):
        assert await while_connected(leaving(gone), work()) == "done"
    await asyncio.sleep(0.01)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_timeout_inside_the_work_is_not_mistaken_for_the_client() -> None:
    gone = asyncio.Event()

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        try:
            async with asyncio.timeout(0.0):
                gone.set()
                await asyncio.sleep(5)
        except TimeoutError:
            await asyncio.sleep(5)

    with pytest.raises(ClientDisconnected):
        await while_connected(leaving(gone), work())


async def test_another_cancel_counts_more_than_the_client() -> None:
    gone, ended = asyncio.Event(), []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ended.append(True)

    task = asyncio.ensure_future(while_connected(leaving(gone), work()))
    await asyncio.sleep(0.01)
    gone.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
