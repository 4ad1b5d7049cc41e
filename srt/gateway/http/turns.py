"""Long work of the gateway, taking turns with all other work of its loop."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from typing import TypeVar

MAX_TURN_S = 0.005
SLICE_CHARS = 4096
PING_S = 10.0  # a client gets a sign of life as often while its prompt is computed

T = TypeVar("T")


async def next_turn(began: float) -> float:
    """Called between pieces of work that takes long: other work gets a turn if this one's, which
    `began` then (time.monotonic()), has been long enough. When the present turn began."""
    if time.monotonic() - began <= MAX_TURN_S:
        return began
    await asyncio.sleep(0)
    return time.monotonic()


async def in_turns(items: Iterable[T]) -> list[T]:
    """All of `items`, which take time to make; the loop gets a turn every MAX_TURN_S."""
    made, began = [], time.monotonic()
    for item in items:
        made.append(item)
        began = await next_turn(began)
    return made


def slices(text: str, final: bool) -> Iterator[tuple[str, bool]]:
    """`text`, whether it is the `final` piece of an answer or not, in slices between which a
    parser can yield: at least one, each with whether it is the answer's last."""
    starts = range(0, max(len(text), 1), SLICE_CHARS)
    for i in starts:
        yield text[i : i + SLICE_CHARS], final and i == starts[-1]


async def with_pauses(items: AsyncIterator[T], pause_s: float) -> AsyncGenerator[T | None, None]:
    """`items`, and None each time that the first has not come for `pause_s`. The others need no
    task of their own, and do not take as long."""
    first = asyncio.ensure_future(anext(items, None))
    try:
        while not (await asyncio.wait({first}, timeout=pause_s))[0]:
            yield None
        item = first.result()
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    if item is not None:
        yield item
        async for item in items:
            yield item
