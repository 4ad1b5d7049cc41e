"""Performs one stream's primitives, in order, without a thread of its own.

`submit` never waits. A primitive is performed at once, in the caller's thread, if nothing is queued
before it; the waiting part of gens, selects and joins is done by one task on the background loop,
which exists only while there is work. `_owned` says that somebody performs the queue; only the
owner changes the stream. The queue of a fork's child opens when the fork has been performed.

After an error everything later is skipped: its variables fail with the first error, and barriers
pass. So every variable is settled in the end, whatever happens, and no wait can hang.
"""

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from lang import loop
from lang.errors import CancelledError
from lang.logs.reports.waits import Calls, Waits
from lang.run import marks
from lang.run.ir import Constant, Expr, ExprList, Part, Rest, Slots, known_text
from lang.run.program import Program, begin_in_child, known
from lang.run.source import place_of_caller
from lang.run.stream import Stream
from lang.run.variables import Slot
from srt import forked


class Barrier(Expr):
    """Passes when everything before it has been performed or skipped."""

    def leave(self, stream: Stream, slots: Slots) -> None:
        slots[0].settle(None)


@known_text.register
def _(expr: Barrier) -> str:
    return ""


class _Queued(NamedTuple):
    """A submitted primitive, the variables that it settles, what the function that gave it knew,
    its number, and its file and line."""

    expr: Expr
    slots: Slots
    known: Calls
    at: int = 0
    source: str = ""


_Begun = tuple[_Queued, Rest]


class Worker:
    """The queue of one stream, its owner and its watchers. A child is closed until its fork opens
    it."""

    def __init__(self, program: Program, parent: "Worker | None" = None) -> None:
        me = weakref.proxy(self)  # no cycle: a state is freed with its last reference
        numbers = program.numbers if parent is None else itertools.count()
        self.stream = Stream(program, lambda: me.notify(), numbers)
        self.stream.position.upcoming = lambda most: me._upcoming(most)
        self.children: list[Worker] = []  # only in streaming runs, whose forks can be watched
        self._watched_by = parent if program.streaming else None
        self._lock = threading.Lock()
        self._queue: deque[_Queued] = deque()
        self._owned = False
        self._opened = parent is None
        self._task: asyncio.Task[None] | None = None
        self._waiting = False
        self._is_cancelled = False
        self._watchers: list[Future[None]] = []
        forked.renew_in_children(self, Worker._begin_in_child)

    def _begin_in_child(self) -> None:
        """A state of a run that is over can be read, and go on; any other is the parent's."""
        self._lock, self._watchers = threading.Lock(), []
        lost = begin_in_child(self.stream.program)
        for slot in {*self.stream.variables.values(), *(s for q in self._queue for s in q.slots)}:
            slot.begin_in_child(lost)
        if lost is not None:
            self.stream.fail(lost)
            forked.leave(self._task, self._queue)
            self._task, self._queue = None, deque()
            self._owned, self._opened, self._waiting = False, True, False

    # ---- submission ----------------------------------------------------------------------------

    def submit(self, part: Part, source: str | None = None) -> None:
        """Queue `part`; its variables can be waited for from now on. `source` is its file and line,
        by default those of the program's call."""
        if isinstance(part, str):
            part = ExprList([part]) if marks.has_mark(part) else Constant(part)
        if isinstance(part, ExprList):
            # Speculation sees what follows a gen only if that is there when it is performed.
            speculates = self.stream.program.place.ahead is not None
            with held(self) if speculates else contextlib.nullcontext():
                for each in part.parts:
                    self.submit(each, source)
            return
        self._queue_up(part, tuple(map(self.stream.variables.declare, part.names)), source)

    def ask(self, part: Expr) -> Slot:
        """Submit `part`, which writes one variable, without a name that others could read."""
        slot = Slot(type(part).__name__.lower(), self.stream.waits)
        self._queue_up(part, (slot,))
        return slot

    def _queue_up(self, part: Expr, slots: Slots, source: str | None = None) -> None:
        if count := part.num_steps:
            place = place_of_caller() if source is None else source
            self._push(_Queued(part, slots, known(), self.stream.position.step(count), place))
        else:
            self._push(_Queued(part, slots, known()))

    def barrier(self) -> "Future[Any]":
        """Done when everything submitted so far has been performed or skipped."""
        return self.ask(Barrier()).done

    def write(self, name: str, value: Any) -> None:
        """Set a variable at once; later gens of that name replace it."""
        slot = Slot(name, Waits(known()))
        slot.settle(value)
        self.stream.variables[name] = slot
        self.notify()

    def child(self) -> "Worker":
        """A worker that continues from here once it is opened."""
        made = Worker(self.stream.program, self)
        made.stream.variables.inherit(self.stream.variables)
        if self.stream.program.streaming:
            self.children.append(made)
        return made

    def open(self) -> None:
        """Start performing what has been submitted."""
        with self._lock:
            self._opened = self._owned = True
        self._go()

    def _push(self, queued: _Queued) -> None:
        with self._lock:
            self._queue.append(queued)
            if self._owned or not self._opened:
                return
            self._owned = True
        self._go()

    def _go(self) -> None:
        """Do the owner's work up to where it must wait; the loop does the rest."""
        begun = self._perform_immediate()
        if begun is not None:
            self.stream.program.begin_work(self)
            loop.soon(lambda: self._start(*begun))
        self.notify()

    def _start(self, queued: _Queued, rest: Rest) -> None:
        self._task = asyncio.ensure_future(self._work(queued, rest))

    def _upcoming(self, most: int) -> list[Expr]:
        """What has been submitted after what is being performed; so many at most."""
        with self._lock:
            return [queued.expr for queued in itertools.islice(self._queue, 1, most + 1)]

    # ---- watching ------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a fork's state already has the contents it begins with."""
        return self._opened

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to perform."""
        return self._opened and not self._owned

    def change(self) -> "Future[None]":
        """Done when there is more text, another variable, or an end, of this state or, if the run
        streams, of its forks. Get it before reading."""
        future: Future[None] = Future()
        with self._lock:
            self._watchers.append(future)
        return future

    def notify(self) -> None:
        """Wake those who watch."""
        if self._watchers:
            with self._lock:
                watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher.set_result(None)
        if self._watched_by is not None:
            self._watched_by.notify()

    # ---- the owner's side ----------------------------------------------------------------------

    def _perform_immediate(self) -> _Begun | None:
        """Perform all that need not wait. Returns what must wait, or None at the queue's end."""
        while True:
            with self._lock:
                if not self._queue:
                    self._owned = False
                    return None
                queued = self._queue[0]
            if self.stream.failure is None:
                self.stream.position.at, self.stream.position.source = queued.at, queued.source
                self.stream.waits.also(queued.known)
                try:
                    rest = queued.expr.perform(self.stream, queued.slots)
                    if rest is not None:
                        return queued, rest
                except Exception as error:
                    self.stream.fail(error)
            self._settle(queued)

    async def _work(self, queued: _Queued, rest: Rest) -> None:
        begun: _Begun | None = (queued, rest)
        try:
            while begun is not None:
                await self._finish(*begun)
                begun = self._perform_immediate()
        finally:
            self.stream.program.end_work(self)
            self.notify()

    async def _finish(self, queued: _Queued, rest: Rest) -> None:
        """Await the rest of a primitive. Whatever happens, its variables are settled."""
        self._waiting = True
        try:
            if self.stream.failure is None:
                await rest
        except asyncio.CancelledError:
            ended = self.stream.program.ended_by
            self.stream.fail(ended or CancelledError("the program was cancelled"))
        except Exception as error:
            self.stream.fail(error)
        self._waiting = False
        rest.close()  # Python warns of one that was never awaited
        self._settle(queued)

    def _settle(self, queued: _Queued) -> None:
        queued.expr.leave(self.stream, queued.slots)
        self._queue.popleft()  # only now: a child of a fork must know what is not settled
        self.notify()

    def cancel(self, error: BaseException) -> None:
        """End what is being performed; called on the loop's thread."""
        self.stream.fail(error)
        # A task that was cancelled before its first step would never settle anything, and a second
        # cancel would interrupt the closing of its request. One by a time limit does not count: it
        # may end only a part of what is performed.
        if self._waiting and self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()


@contextlib.contextmanager
def held(worker: Worker) -> Iterator[None]:
    """Inside the block, an idle worker only queues what it is given; after it, it begins."""
    with worker._lock:
        is_held = worker.is_idle
        if is_held:
            worker._opened = False
    try:
        yield
    finally:
        if is_held:
            worker.open()
