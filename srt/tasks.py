"""Several calls at once, as one: none outlives another's failure, or the end of their caller.

A call that is ended closes its request in what is left of it. So it is cancelled once, and waited
for: a second cancel would break the close off, and leave the request at work on the server.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order. Raises the first failure, after the other calls have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first
