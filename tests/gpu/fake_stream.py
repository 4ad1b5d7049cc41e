"""A device's queue of work on a CPU: what is queued runs in order, at once or, while the queue is
held, later. What works only because the device has been quick enough fails here."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from scheduler_proc.attention.staging import Staging

_Op = Callable[[], object]


class Stream:
    """A device's queue. Kernels run at once with what was queued before them, unless it is held."""

    def __init__(self) -> None:
        self.waits = 0  # synchronisations that found work undone
        self._waiting: deque[_Op] = deque()
        self._done = 0
        self.is_held = False
        self._recording: list[_Op] | None = None

    def copy(self, op: _Op) -> None:
        """Queue what runs at the latest with the next kernel."""
        assert self._recording is None, "plans cannot be recorded"
        self._waiting.append(op)

    def launch(self, op: _Op) -> None:
        """Queue a kernel."""
        if self._recording is not None:
            self._recording.append(op)
            return
        self._waiting.append(op)
        if not self.is_held:
            self.run()

    def run(self, upto: int | None = None) -> None:
        """Run what is queued, or the first part of it."""
        upto = self._done + len(self._waiting) if upto is None else upto
        while self._done < upto:
            self._waiting.popleft()()
            self._done += 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing runs inside, except by `run` or a synchronisation; all has run after it."""
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False
            self.run()

    @contextmanager
    def recorded(self) -> Iterator["Graph"]:
        """Kernels go into a graph and do not run."""
        graph = Graph(self, [])
        self._recording = graph.ops
        try:
            yield graph
        finally:
            self._recording = None

    def mark(self) -> "Mark":
        """An event after all that is queued."""
        return Mark(self, self._done + len(self._waiting))


class Graph(NamedTuple):
    """Recorded kernels."""

    stream: Stream
    ops: list[_Op]

    def replay(self) -> None:
        """Queue them once more."""
        for op in self.ops:
            self.stream.launch(op)


class Mark(NamedTuple):
    """An event."""

    stream: Stream
    upto: int

    def synchronize(self) -> None:
        """Wait until the work before it is done."""
        if self.stream._done < self.upto:
            self.stream.waits += 1
            self.stream.run(self.upto)


STREAM = Stream()


class QueuedStaging(Staging):
    """Sends arrays through the stream. Unless that is held they are there at once: operations of
    torch's that follow are not queued, as they would be on a GPU."""

    def copy(self, to: torch.Tensor, host: torch.Tensor) -> None:
        """See Staging.copy."""
        if STREAM.is_held:
            STREAM.copy(lambda: to.copy_(host))
        else:
            to.copy_(host)

    def mark(self) -> Mark:
        """See Staging.mark."""
        return STREAM.mark()
