"""The one event loop of the language, in a thread of its own, and ways to wait for work on it.

All back ends and workers of the process use it, so the language works in notebooks and inside any
other loop. Invariant: nothing blocks the loop's own thread; such a wait is an error.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from lang.errors import LangError
from srt import forked

T = TypeVar("T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop, which starts at its first use and ends with the process."""
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="lang", daemon=True)
            _thread.start()
        return _loop


def soon(callback: Callable[[], None]) -> None:
    """Call `callback` on the loop, from any thread."""
    if on_loop_thread():
        background_loop().call_soon(callback)
    else:
        background_loop().call_soon_threadsafe(callback)


def on_loop_thread() -> bool:
    """Whether this is the loop's own thread, where nothing may wait."""
    return threading.current_thread() is _thread


def submit(coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
    """Start a coroutine on the loop, from any thread. Cancelling the future cancels it."""
    return asyncio.run_coroutine_threadsafe(coroutine, background_loop())


def call(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it; an interrupt cancels it."""
    if on_loop_thread():
        coroutine.close()
        raise _would_deadlock()
    future = submit(coroutine)
    try:
        return future.result()
    finally:
        future.cancel()


def in_thread(name: str, function: Callable[[], T]) -> "Future[T]":
    """Call `function` in a thread of its own, which does not hold the process up."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nothing can cancel it: its thread goes on in any case

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def wait(future: "Future[Any]", timeout_s: float | None = None) -> None:
    """Wait until `future` is done or cancelled. Raises TimeoutError after `timeout_s`."""
    if future.done():
        return
    if on_loop_thread():
        raise _would_deadlock()
    try:
        future.exception(timeout_s)
    except concurrent.futures.CancelledError:
        pass
    except TimeoutError:
        raise TimeoutError(f"not there after {timeout_s} s") from None


async def arrival(future: "Future[Any]") -> None:
    """Wait until `future` is done, on any loop. Being cancelled leaves the future alone."""
    if future.done():
        return
    loop, here = asyncio.get_running_loop(), threading.current_thread()
    arrived = asyncio.Event()

    def wake(_: "Future[Any]") -> None:
        if threading.current_thread() is here:
            arrived.set()
            return
        with contextlib.suppress(RuntimeError):  # the waiting loop has been closed
            loop.call_soon_threadsafe(arrived.set)

    future.add_done_callback(wake)
    await arrived.wait()


def _begin_in_child() -> None:
    """The parent's loop is never closed: its epoll descriptor is the parent's too."""
    global _lock, _loop, _thread
    forked.leave(_loop)
    _lock, _loop, _thread = threading.Lock(), None, None


os.register_at_fork(after_in_child=_begin_in_child)


def _would_deadlock() -> LangError:
    return LangError(
        "an `async def` program must not block the loop it runs on: "
        "use `await s.get(name)`, `await s.wait()` and `await f.arun(...)`"
    )
