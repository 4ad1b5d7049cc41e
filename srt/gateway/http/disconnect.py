"""Ends a piece of work when its client disconnects.

Every handler that waits for tokens runs inside `while_connected`, so an abandoned request is
cancelled at once; the work does not outlive the call, and nothing is cancelled after it.
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
    cancels, has_left = task.cancelling(), False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        # Not in a callback, which would still run after the watch has been cancelled below.
        has_left = True
        task.cancel()

    watcher = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.cancelling() == cancels + 1:  # by nobody else
            raise ClientDisconnected from None
        raise
    finally:
        if has_left:
            task.uncancel()
        watcher.cancel()
