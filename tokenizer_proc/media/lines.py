"""Work that callers wait for, in turns: of each caller, one piece is done at a time."""

from collections import deque
from typing import Generic, TypeVar

from tokenizer_proc.queueing.turns import Caller

Job = TypeVar("Job")


class Lines(Generic[Job]):
    """A line for each caller; callers are in the order of their turns."""

    def __init__(self) -> None:
        self._waiting: dict[Caller, deque[Job]] = {}
        self._busy: set[Caller] = set()

    def add(self, caller: Caller, job: Job) -> None:
        """At the end of the caller's line."""
        self._waiting.setdefault(caller, deque()).append(job)

    def take(self) -> tuple[Caller, Job] | None:
        """The next job, of a caller who is busy until `done`; None if there is none now."""
        caller = next((c for c in self._waiting if c not in self._busy), None)
        if caller is None:
            return None
        line = self._waiting.pop(caller)
        job = line.popleft()
        if line:
            self._waiting[caller] = line  # to the end
        self._busy.add(caller)
        return caller, job

    def done(self, caller: Caller) -> None:
        """The caller's job has ended."""
        self._busy.discard(caller)

    def clear(self) -> None:
        """Forget what waits. What is being done keeps its caller's turn until its end."""
        self._waiting.clear()
