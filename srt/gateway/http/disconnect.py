"""Ends a piece of work when its client disconnects.

Every handler that waits for tokens runs inside `while_connected`, so an abandoned request is
cancelled at once; neither the work nor the watch outlives the call.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from srt.gateway.errors import ClientDisconnected

T = TypeVar("T")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; ClientDisconnected, with `work` cancelled, if the client leaves.

    The request's body must have been read: until then `receive` delivers it.
    """
    task = asyncio.current_task()
    assert task is not None
    watcher = asyncio.ensure_future(_disconnected(receive))
    has_left = False

    def leave(_: object) -> None:
        nonlocal has_left
        has_left = True
        task.cancel()

    watcher.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.cancelling() == 1:  # by nobody else
            raise ClientDisconnected from None
        raise
    finally:
        if has_left:
            task.uncancel()
        watcher.remove_done_callback(leave)
        watcher.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
