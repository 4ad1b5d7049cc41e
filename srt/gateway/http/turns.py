"""Long work of the gateway, taking turns with all other work of its loop."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

MAX_TURN_S = 0.005
SLICE_CHARS = 4096

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
