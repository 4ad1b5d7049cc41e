"""A limit on waiting does not count pauses of the waiting loop."""

import asyncio
import os
import time
from contextlib import suppress

import pytest

from srt.client.ring.patience import within

TICK_S = 0.02


async def test_a_result_in_time() -> None:
    assert await within(5.0, asyncio.sleep(0.01, "done")) == "done"


async def test_a_limit_may_be_infinite() -> None:
    assert await within(float("inf"), asyncio.sleep(0.01, "done")) == "done"


async def test_an_error_passes_through() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, KeyError("x"))
    with pytest.raises(KeyError):
        await within(5.0, future)


async def test_silence_ends_the_wait_and_what_was_waited_for() -> None:
    future = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await within(0.05, future, TICK_S)
    assert future.cancelled()


@pytest.mark.parametrize("pauses", [1, 3])
async def test_the_loops_own_pauses_do_not_count(pauses: int) -> None:
    """What came during a pause is still read."""
    loop, (read_end, write_end) = asyncio.get_running_loop(), os.pipe()
    heard = loop.create_future()

    def hear() -> None:
        if not heard.done():
            heard.set_result(os.read(read_end, 1))

    loop.add_reader(read_end, hear)
    waiting = asyncio.ensure_future(within(0.3, heard, TICK_S))
    for i in range(pauses):
        await asyncio.sleep(0)
        if i == pauses - 1:
            os.write(write_end, b"x")
        time.sleep(0.5)
    assert await waiting == b"x"
    loop.remove_reader(read_end)
    os.close(read_end)
    os.close(write_end)


async def test_pauses_without_end_do_not_wait_for_ever() -> None:
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(0.05, future, TICK_S))
    while not waiting.done():
        time.sleep(3 * TICK_S)
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await waiting


async def test_being_cancelled_cancels_what_is_waited_for() -> None:
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(5.0, future))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert future.cancelled()


async def test_being_cancelled_after_the_limit_is_no_timeout() -> None:
    ending = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(5.0)
        finally:
            ending.set()
            await asyncio.sleep(5.0)

    waiting = asyncio.ensure_future(within(0.01, slow(), TICK_S))
    await ending.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_result_despite_the_limit_counts() -> None:
    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5.0)
        return "done"

    assert await within(0.01, stubborn(), TICK_S) == "done"
