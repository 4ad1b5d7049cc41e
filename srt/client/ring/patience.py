"""Waits with a limit that a loop which stood still does not use up."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

TICK_S = 0.5
T = TypeVar("T")


async def within(timeout_s: float, awaitable: Awaitable[T], tick_s: float = TICK_S) -> T:
    """The result of `awaitable`, which is cancelled with this call, within a limit that counts only
    the time in which this loop runs.

    A loop that stood still (a blocking call, a suspended process) finds its timers expired before
    it has read what arrived meanwhile: a plain time-out would blame its own pause on the other
    side.

    Raises TimeoutError after `timeout_s`. A tick in which the loop stood still for a tick or more
    does not count, but the whole wait has at most twice the limit's ticks.
    """
    future = asyncio.ensure_future(awaitable)
    left_s, ticks = timeout_s, 0
    try:
        while not future.done():
            if left_s <= 0 or ticks * tick_s > 2 * (timeout_s + tick_s):
                raise TimeoutError
            length_s, began = min(tick_s, left_s), time.monotonic()
            await asyncio.wait([future], timeout=length_s)
            ticks += 1
            if time.monotonic() - began < length_s + tick_s:
                left_s -= length_s
        return await future
    finally:
        if not future.done():
            future.cancel()
            await asyncio.gather(future, return_exceptions=True)
