"""Runs the functions of programs: plain ones in threads, `async def` ones on a loop.

`start` uses a bounded pool of the process; a function that is started from inside of another one
that holds a thread gets a thread of its own, so that nobody waits for a thread that waits for him.
"""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lang import loop
from lang.errors import CancelledError
from lang.program import running
from lang.state import ProgramState

MAX_BODIES = 64

_holds_thread: contextvars.ContextVar[bool] = contextvars.ContextVar("holds_thread", default=False)
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None

Function = Callable[..., Any]


def run_plain(state: ProgramState, function: Function, args: tuple, kwargs: dict[str, Any]) -> None:
    """Run `function(state, ...)` here. Whatever it raises ends the run and is raised."""
    with running(state.program):
        try:
            state.ret_value = function(state, *args, **kwargs)
        except BaseException as error:
            _end_badly(state, error)
            raise
    _end_well(state)


async def run_async(
    state: ProgramState, function: Function, args: tuple, kwargs: dict[str, Any]
) -> None:
    """`run_plain` for an `async def` function, on the loop of the caller."""
    with running(state.program):
        try:
            state.ret_value = await function(state, *args, **kwargs)
        except BaseException as error:
            _end_badly(state, error)
            raise
    _end_well(state)


def _end_well(state: ProgramState) -> None:
    state.program.end_body()
    state._worker.notify()


def _end_badly(state: ProgramState, error: BaseException) -> None:
    """Nobody will use what the states still do."""
    kept = error if isinstance(error, Exception) else CancelledError("the program was interrupted")
    state.program.end_body(kept)
    if not state.program.is_over:
        state.program.cancel(kept.__cause__ if kept.__cause__ is not None else kept)
    state._worker.notify()


def start(function: Callable[[], None]) -> "Future[None]":
    """Run `function` in a thread; the future has its end."""
    context = contextvars.copy_context()
    if _holds_thread.get():
        return _own_thread(context, function)
    return _shared_pool().submit(context.run, holding_thread, function)


def holding_thread(function: Callable[[], Any]) -> Any:
    """Call `function`; runs that it starts know that it holds a thread."""
    token = _holds_thread.set(True)
    try:
        return function()
    finally:
        _holds_thread.reset(token)


def _own_thread(context: contextvars.Context, function: Callable[[], None]) -> "Future[None]":
    future: Future[None] = Future()

    def work() -> None:
        try:
            context.run(holding_thread, function)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=work, name="lang-inner", daemon=True).start()
    return future


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MAX_BODIES, thread_name_prefix="lang-body")
        return _pool


async def run_in_thread(state: ProgramState, function: Callable[[], None]) -> None:
    """`start`, and wait; being cancelled ends the run."""
    future = start(function)
    try:
        await loop.arrival(future)
    except BaseException:
        future.cancel()
        state.program.cancel()
        raise
    future.result()
