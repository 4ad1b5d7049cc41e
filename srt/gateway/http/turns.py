"""Long work of the gateway, taking turns with all other work of its loop."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TypeVar

MAX_TURN_S = 0.005
SLICE_CHARS = 4096

T = TypeVar("T")


async def in_turns(items: Iterable[T]) -> list[T]:
    """All of `items`, which take time to make; the loop gets a turn every MAX_TURN_S."""
    return [item async for item in each_in_turn(items)]


async def each_in_turn(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """The same, one by one."""
    started = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - started > MAX_TURN_S:
            await asyncio.sleep(0)
            started = time.monotonic()


def slices(text: str, final: bool) -> Iterator[tuple[str, bool]]:
    """`text`, whether it is the `final` piece of an answer or not, in slices between which a
    parser can yield: at least one, each with whether it is the answer's last."""
    starts = range(0, max(len(text), 1), SLICE_CHARS)
    for i in starts:
        yield text[i : i + SLICE_CHARS], final and i == starts[-1]
