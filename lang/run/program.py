"""One run of a function: what its states share, and how it ends.

Every state of a run registers here while it has work, so that a run can be waited for, cancelled
and limited in time as a whole. A run inside another run's function ends with that run.
"""

import contextvars
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from lang import loop
from lang.backends.base import Backend
from lang.backends.config import backend_of
from lang.backends.sampling import Sampling, derived_seed
from lang.backends.speculating import Store
from lang.chat_template import ChatTemplate
from lang.errors import CancelledError, LangError
from lang.logs.address import Path, Step
from lang.logs.journal import Journal, Models
from lang.logs.reports.report import ended
from lang.logs.reports.waits import NO_CALLS, Calls, Waits
from lang.run.shared import SharedAnswers
from srt import forked

if TYPE_CHECKING:
    from asyncio import TimerHandle

current: contextvars.ContextVar["Program | None"] = contextvars.ContextVar("program", default=None)

os.register_at_fork(after_in_child=lambda: current.set(None))


class Busy(Protocol):
    """Something that has work to do in a run."""

    def cancel(self, error: BaseException) -> None:
        """End its work; called on the loop's thread."""


class Place(NamedTuple):
    """Where a run stands: the batch's row, the steps to it from the outermost run, the logs of that
    one, if it has any, of a compiled program, answers that equal calls share, and what was written
    ahead by API speculation."""

    row: int = 0
    path: Path = ()
    journal: Journal | None = None
    shared: SharedAnswers | None = None
    ahead: Store | None = None

    def below(self, step: Step) -> "Place":
        """One step further."""
        return self._replace(path=(*self.path, step))


_NOWHERE = Place()


class Program:
    """A run. `defaults` are the sampling arguments of all its gens; `streaming` gens grow.

    Without a `backend` it takes the default one when it first needs it.
    """

    def __init__(
        self,
        backend: Backend | None,
        defaults: Sampling,
        *,
        streaming: bool = False,
        place: Place = _NOWHERE,
    ) -> None:
        self._backend = backend
        self.place = place
        self.defaults = defaults
        self.streaming = streaming
        self.template: ChatTemplate | None = None
        self.returns: Callable[[], Any] | None = None  # finds the type that the function returns
        self.name = ""  # of the function
        self.waits = Waits()  # what the function knows
        self.ended_by: BaseException | None = None
        self.body_error: BaseException | None = None
        self.body_done: Future[None] = Future()
        self.numbers = itertools.count()  # of what its first state does, and of runs inside it
        self._models: Models | None = None
        self._lock = threading.Lock()
        self._busy: Counter[Busy] = Counter()
        self._idle: list[Future[None]] = []
        self._inner: weakref.WeakSet[Program] = weakref.WeakSet()
        self._timer: TimerHandle | None = None
        self._adopt(current.get())

    def _adopt(self, outer: "Program | None") -> None:
        self._outer = outer  # which its own outer run finds this one by
        if outer is not None:
            with outer._lock:
                outer._inner.add(self)
                self.ended_by = outer.ended_by
            self.waits.also(outer.waits.calls)

    @property
    def outermost(self) -> "Program":
        """The run that this one is inside of, at any depth; itself if there is none."""
        program = self
        while program._outer is not None:
            program = program._outer
        return program

    @property
    def backend(self) -> Backend:
        """Raises LangError if there is none."""
        return backend_of(None) if self._backend is None else self._backend

    def inner(self) -> tuple[Sampling, Place]:
        """The defaults of the next run inside this one, the same except for a seed of its own, and
        its place."""
        number = next(self.numbers)
        seed = derived_seed(self.defaults.seed, "run", number)
        place = self.place.below(Step("run", number))
        return msgspec.structs.replace(self.defaults, seed=seed), place

    async def fingerprint(self) -> str:
        """What tells the back end's model from others; asked for once."""
        if self._models is None:
            self._models = Models() if self.place.journal is None else self.place.journal.models
        return await self._models.fingerprint(self.backend)

    async def find_template(self) -> ChatTemplate:
        """The back end's chat template, asked for once."""
        if self.template is None:
            self.template = await self.backend.chat_template()
        return self.template

    # ---- who is at work ------------------------------------------------------------------------

    def begin_work(self, worker: Busy) -> None:
        """`worker` has something to do on the loop."""
        with self._lock:
            self._busy[worker] += 1

    def end_work(self, worker: Busy) -> None:
        """`worker` has done everything it was given."""
        with self._lock:
            # It may have been given more work, and have begun again, before it reported its end.
            self._busy[worker] -= 1
            if not self._busy[worker]:
                del self._busy[worker]
            waiters = self._idle if not self._busy else []
            if waiters:
                self._idle = []
        self._end_if_over()
        for waiter in waiters:
            waiter.set_result(None)

    def idle(self) -> "Future[None]":
        """Done as soon as no state has work."""
        future: Future[None] = Future()
        with self._lock:
            if self._busy:
                self._idle.append(future)
                return future
        future.set_result(None)
        return future

    async def all_idle(self) -> None:
        """Wait until no state of this run and of those inside it has work."""
        await loop.arrival(self.idle())
        with self._lock:
            inner = list(self._inner)
        for each in inner:
            await each.all_idle()

    def end_body(self, error: BaseException | None = None) -> None:
        """The function has returned, or raised `error`."""
        self.body_error = error
        if not self.body_done.done():
            self.body_done.set_result(None)
        self._end_if_over()

    @property
    def is_over(self) -> bool:
        """Whether neither the function nor any state has anything left to do."""
        return self.body_done.done() and not self._busy

    # ---- the end -------------------------------------------------------------------------------

    def limit(self, timeout_s: float | None) -> None:
        """End the run after `timeout_s` unless it is over by then."""
        if timeout_s is None:
            return
        error = TimeoutError(f"the program took longer than timeout_s={timeout_s}")
        background = loop.background_loop()

        def start() -> None:
            if not self.is_over:
                self._timer = background.call_later(timeout_s, self.cancel, error)

        background.call_soon_threadsafe(start)

    def _end_if_over(self) -> None:
        if not self.is_over:
            return
        ended(self)
        if self.place.journal is not None:
            self.place.journal.end(self)
        ahead = self.place.ahead
        if ahead is not None and (self._outer is None or self._outer.place.ahead is not ahead):
            ahead.end()
        timer, self._timer = self._timer, None
        if timer is not None:
            loop.background_loop().call_soon_threadsafe(timer.cancel)

    def cancel(self, error: BaseException | None = None) -> None:
        """End all states, and the runs inside this one: requests are aborted, waits raise.

        Runs that have ended do not change.
        """
        error = error or CancelledError("the program was cancelled")
        with self._lock:
            if not self.is_over and self.ended_by is None:
                self.ended_by = error
            busy, inner = list(self._busy), list(self._inner)
        for worker in busy:
            loop.background_loop().call_soon_threadsafe(worker.cancel, error)
        for each in inner:
            each.cancel(error)


class _LostError(LangError):
    """The run is another process's."""


def begin_in_child(program: Program) -> LangError | None:
    """In a child of a fork, end the parent's run there unless it is over. Returns what its states
    have failed with, None if they have not."""
    program._lock = threading.Lock()  # a thread of the parent may hold the old one
    forked.unlock(program.body_done)
    if not program.is_over:
        what = f"the run goes on in process {os.getppid()}, which this one was forked from"
        lost = _LostError(f"{what}: read its states there, or run the program here")
        program.ended_by = program.body_error = lost
        forked.leave(program._timer, list(program._busy), program._idle)
        program._timer, program._idle = None, []
        program._busy.clear()
        if not program.body_done.done():
            program.body_done = Future()
            program.body_done.set_result(None)
    return program.ended_by if isinstance(program.ended_by, _LostError) else None


@contextmanager
def running(program: Program) -> Iterator[None]:
    """A context: runs that start inside it belong to `program`."""
    token = current.set(program)
    try:
        yield
    finally:
        current.reset(token)


def know(calls: Calls) -> None:
    """The function that runs here knows what these have made."""
    if calls and (program := current.get()) is not None:
        program.waits.also(calls)


def known() -> Calls:
    """What the function that runs here knows."""
    program = current.get()
    return NO_CALLS if program is None else program.waits.calls
