"""How long callbacks hold an asyncio loop, in CPU time of its thread."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Holds:
    """The longest hold so far, in seconds, and what it was."""

    longest_s = 0.0
    what = ""


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Holds]:
    """Watches every callback of asyncio's own loop while the block runs."""
    holds = Holds()
    original = asyncio.Handle._run

    def run(self: asyncio.Handle) -> Any:
        started = time.thread_time()
        original(self)
        held_s = time.thread_time() - started
        if held_s > holds.longest_s:
            holds.longest_s, holds.what = held_s, repr(self)[:300]

    asyncio.Handle._run = run  # type: ignore[method-assign]
    try:
        await asyncio.sleep(0)  # the current callback is not watched
        yield holds
        await asyncio.sleep(0)  # the current callback is watched, and has to end
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]
