"""Several calls at once: none of them outlives its owner, and no failure is lost.

A cancelled call closes its request while it unwinds. So it is cancelled once, and awaited: a
second cancel would interrupt the closing, and leave the request running on the server.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
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


class TaskSet:
    """Tasks that are started one by one, for as long as their owner lives.

    `on_failure` gets the error of each that fails, which is a defect of the owner.
    """

    def __init__(self, on_failure: Callable[[BaseException], object]) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `call` beside the others. It may be cancelled by itself."""
        task = asyncio.get_running_loop().create_task(call)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def one_ends(self) -> None:
        """Wait until one of those that are running now has ended."""
        await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """End all of them, and those that they start meanwhile."""
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)
