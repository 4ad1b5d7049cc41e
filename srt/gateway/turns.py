"""Long work of the gateway in turns with everything else that its loop has to do."""

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

MAX_TURN_S = 0.005

T = TypeVar("T")


async def in_turns(items: Iterable[T]) -> list[T]:
    """All of `items`, which take time to make; the loop has a turn every MAX_TURN_S."""
    found = []
    started = time.monotonic()
    for item in items:
        found.append(item)
        if time.monotonic() - started > MAX_TURN_S:
            await asyncio.sleep(0)
            started = time.monotonic()
    return found
