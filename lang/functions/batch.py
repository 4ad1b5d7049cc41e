"""`run_batch`: many runs of one function, a limited number at a time, in order.

Each run keeps its slot until all its states are idle, so `num_threads` also bounds the requests
in flight. Leaving the results early ends every run that has begun.
"""

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from lang import loop
from lang.backends.config import global_config
from lang.functions.prepared import Logs, Prepared
from lang.functions.runs import Run, holding_thread
from lang.functions.tracer import constant_prefix, text_of
from lang.logs.log import Log
from lang.state.state import ProgramState
from srt import forked
from srt.offline.progress import progress_bar
from srt.wire.errors import check_process

MIN_PREFIX_CHARS = 64  # a shorter prefix is not worth a request
MIN_AUTO_THREADS = 96
AUTO_THREADS_PER_CPU = 16

Arguments = tuple[int, tuple, dict[str, Any]]  # called with the row's number


class Options(NamedTuple):
    """How a batch is run; see `SglFunction.run_batch`."""

    log: Log | str | Path | None
    num_threads: int | str
    progress_bar: bool
    cache_prefix: bool | None


class Batch:
    """An iterator over the states of a batch, which starts when the first one is asked for. Its
    runs are `prepared` but for the arguments in `calls`."""

    def __init__(self, prepared: Prepared, calls: Sequence[Arguments], options: Options) -> None:
        self._prepared, self._calls, self._options = prepared, calls, options
        self._num_threads = _threads(options.num_threads, len(calls))
        self._live: set[ProgramState] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self.is_over = False  # for its log
        self._states = self._run()
        forked.renew_in_children(self, Batch._begin_in_child)

    def _begin_in_child(self) -> None:
        """The runs are the parent's, whose threads are not there."""
        self._lock = threading.Lock()
        forked.leave(self._states)
        self._states = _of_another_process(os.getppid())

    def __iter__(self) -> Iterator[ProgramState]:
        return self

    def __next__(self) -> ProgramState:
        return next(self._states)

    def close(self) -> None:
        """End every run that has begun, and begin no other."""
        self._states.close()

    def _run(self) -> Generator[ProgramState, None, None]:
        if not self._calls:
            return
        place = Logs(self._options.log).place(self._prepared.place, self)
        self._prepared = self._prepared._replace(place=place)
        self._send_prefix()
        bar = progress_bar(len(self._calls), "programs", shown=self._options.progress_bar)
        is_async = inspect.iscoroutinefunction(self._prepared.function)
        run = self._async_runs if is_async else self._thread_runs
        try:
            for state in run():
                bar.update()
                yield state
        finally:
            self._stop()
            self.is_over = True
            if place.journal is not None:
                place.journal.end(self)
            bar.close()

    def _send_prefix(self) -> None:
        wanted = self._options.cache_prefix
        if wanted is None:
            wanted = global_config.enable_precache_with_tracing
        if not wanted or len(self._calls) < 2:
            return
        backend = self._prepared.backend
        parts = constant_prefix(self._prepared.function, self._prepared.kwargs)
        prefix = loop.call(text_of(parts, backend)) if parts else ""
        if len(prefix) >= MIN_PREFIX_CHARS:
            loop.call(backend.prefetch(prefix))

    # ---- plain functions -----------------------------------------------------------------------

    def _thread_runs(self) -> Iterator[ProgramState]:
        pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="lang-batch")
        try:
            yield from _in_order(
                lambda call: pool.submit(
                    contextvars.copy_context().run, holding_thread, lambda: self._one(call)
                ),
                self._calls,
                2 * self._num_threads,
            )
        finally:
            self._stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def _one(self, call: Arguments) -> ProgramState:
        begun = self._begin(call)
        with contextlib.suppress(Exception):  # the run keeps it, and `error()` returns it
            begun.perform()
        loop.wait(begun.state.program.idle())
        self._end(begun.state)
        return begun.state

    # ---- async def functions -------------------------------------------------------------------

    def _async_runs(self) -> Iterator[ProgramState]:
        slots = asyncio.Semaphore(self._num_threads)
        yield from _in_order(
            lambda call: loop.submit(self._one_async(call, slots)),
            self._calls,
            4 * self._num_threads,
        )

    async def _one_async(self, call: Arguments, slots: asyncio.Semaphore) -> ProgramState:
        async with slots:
            begun = self._begin(call)
            with contextlib.suppress(Exception):  # the run keeps it, and `error()` returns it
                await begun.perform_async()
            await begun.rest()
            self._end(begun.state)
            return begun.state

    # ---- beginning and ending ------------------------------------------------------------------

    def _begin(self, call: Arguments) -> Run:
        number, args, kwargs = call
        given = {**self._prepared.kwargs, **kwargs}
        begun = self._prepared._replace(args=args, kwargs=given).row(number).run()
        with self._lock:
            self._live.add(begun.state)
            stopped = self._stopped
        if stopped:
            begun.state.program.cancel()
        return begun

    def _end(self, state: ProgramState) -> None:
        with self._lock:
            self._live.discard(state)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            live = list(self._live)
        for state in live:
            state.cancel()


def _of_another_process(pid: int) -> Generator[ProgramState, None, None]:
    check_process(pid, "batch")
    yield from ()


def in_rows(states: Batch, order: Sequence[int]) -> Generator[ProgramState, None, None]:
    """The states of a batch that began in this order, in the order of the rows; closing it ends the
    batch."""
    early: dict[int, ProgramState] = {}
    try:
        row = 0
        for number, state in zip(order, states, strict=True):
            early[number] = state
            while row in early:
                yield early.pop(row)
                row += 1
    finally:
        states.close()


def _in_order(
    begin: Callable[[Arguments], "Future[ProgramState]"], calls: Sequence[Arguments], window: int
) -> Iterator[ProgramState]:
    """Results in order; at most `window` calls have begun and are not yet given out."""
    futures: deque[Future[ProgramState]] = deque()
    rest = iter(calls)
    try:
        while True:
            while len(futures) < window and (call := next(rest, None)) is not None:
                futures.append(begin(call))
            if not futures:
                return
            loop.wait(futures[0])
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


def _threads(asked: int | str, size: int) -> int:
    if asked == "auto":
        asked = max(MIN_AUTO_THREADS, AUTO_THREADS_PER_CPU * (os.cpu_count() or 1))
    if not isinstance(asked, int) or asked < 1:
        raise ValueError(f"num_threads must be 'auto' or a positive number, not {asked!r}")
    return max(1, min(asked, size))
