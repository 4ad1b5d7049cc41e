"""Runs of programs' functions: plain ones in threads, `async def` ones on a loop.

`start` uses a bounded pool of the process; a function that is started inside another one that
holds a thread gets a thread of its own, so that no two wait for each other.
"""

import contextvars
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import NoneType, SimpleNamespace
from typing import Any, get_type_hints

from lang import loop
from lang.errors import CancelledError, original
from lang.logs.frontier import Reached
from lang.run.program import Program, running
from lang.run.source import closed_over
from lang.run.worker import Worker
from lang.state.state import ProgramState
from srt import forked

MAX_BODIES = 64

_holds_thread: contextvars.ContextVar[bool] = contextvars.ContextVar("holds_thread", default=False)
_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None

Function = Callable[..., Any]

# Annotations that say nothing of what a function returns.
_NOTHING = (None, NoneType, Any, "None", "Any", "typing.Any")


class Run:
    """One run of a function: its state, and the ways to perform it. An error of the function ends
    the run and is raised."""

    def __init__(
        self, function: Function, program: Program, args: tuple, kwargs: dict[str, Any]
    ) -> None:
        program.returns = returns_of(function)
        program.name = getattr(function, "__name__", "")
        self.state = ProgramState(Worker(program))
        self._is_async = inspect.iscoroutinefunction(function)
        self._call = partial(function, self.state, *args, **kwargs)

    def perform(self) -> None:
        """Run the function, plain or `async def`, in this thread."""
        if self._is_async:
            loop.call(self.perform_async())
        else:
            with self._ending():
                self.state.ret_value = self._call()

    async def perform_async(self) -> None:
        """Run an `async def` function on the caller's loop."""
        with self._ending():
            self.state.ret_value = await self._call()

    async def perform_beside(self) -> None:
        """Run the function on the caller's loop, or in a thread and wait; being cancelled ends the
        run."""
        if self._is_async:
            await self.perform_async()
            return
        future = _start(self.perform)
        try:
            await loop.arrival(future)
        except BaseException:
            future.cancel()
            self.state.program.cancel()
            raise
        future.result()

    def start(self) -> None:
        """Run the function beside the caller. What it raises is kept for the state's readers."""
        if self._is_async:
            loop.submit(self.perform_async())
        else:
            _start(self.perform)

    async def rest(self, *, with_inner: bool = False) -> None:
        """Wait until all states are idle, also those of runs inside it if they count; being
        cancelled ends the run."""
        try:
            program = self.state.program
            await (program.all_idle() if with_inner else loop.arrival(program.idle()))
        except BaseException:
            self.state.program.cancel()
            raise

    @contextmanager
    def _ending(self) -> Iterator[None]:
        state, program = self.state, self.state.program
        try:
            with running(program):
                yield
        except BaseException as error:
            is_plain = isinstance(error, Exception)
            kept = error if is_plain else CancelledError("the program was interrupted")
            program.end_body(kept)
            # Nobody will use the states' further work, unless other runs go on from here.
            if not program.is_over and not isinstance(original(error), Reached):
                program.cancel(kept.__cause__ if kept.__cause__ is not None else kept)
            raise
        else:
            program.end_body()
        finally:
            state._worker.notify()


def _start(function: Callable[[], None]) -> "Future[None]":
    """Run `function` in a thread; the future is done when it ends."""
    context = contextvars.copy_context()
    if _holds_thread.get():
        return loop.in_thread("lang-inner", partial(context.run, holding_thread, function))
    return _shared_pool().submit(context.run, holding_thread, function)


def holding_thread(function: Callable[[], Any]) -> Any:
    """Call `function`, and let the runs that it starts know that it holds a thread."""
    token = _holds_thread.set(True)
    try:
        return function()
    finally:
        _holds_thread.reset(token)


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MAX_BODIES, thread_name_prefix="lang-body")
        return _pool


def _begin_in_child() -> None:
    global _lock, _pool
    forked.leave(_pool)
    _lock, _pool = threading.Lock(), None
    _holds_thread.set(False)


os.register_at_fork(after_in_child=_begin_in_child)


def returns_of(function: Callable[..., Any]) -> Callable[[], Any] | None:
    """What finds the return type when a gen of it is performed; None without an annotation, or for
    one that says nothing."""
    try:
        annotation = getattr(function, "__annotations__", {}).get("return")
    except NameError:  # newer Pythons evaluate all annotations here
        annotation = "?"
    is_nothing = any(annotation is each or annotation == each for each in _NOTHING)
    return None if is_nothing else partial(_return_type, function)


def _return_type(function: Callable[..., Any]) -> Any:
    """The type; the names in it are looked up in the function's module and, if it uses them, in
    what encloses it. Raises TypeError for one that is not found."""
    inner = getattr(function, "__func__", function)
    try:
        own = SimpleNamespace(__annotations__={"return": inner.__annotations__["return"]})
        known, local = getattr(inner, "__globals__", {}), closed_over(inner)
        hints = get_type_hints(own, known, local, include_extras=True)
    except (NameError, AttributeError, ValueError, SyntaxError, TypeError) as error:
        name = getattr(function, "__name__", "the function")
        advice = "define it in the module, above the first run"
        raise TypeError(f"the return type of {name} cannot be found: {error}; {advice}") from error
    return hints["return"]
