"""Which of the waiting constraints are compiled now: short ones do not wait behind long ones.

Nobody knows beforehand how long a compilation takes, so each begins in the quick lane. What is
still running after a quantum goes over to the long lane, if there is room in it; else it makes way
for the next that waits, and begins again in the long lane when its turn comes. Pure: the service
asks what to do, does it, and tells what has ended.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Job = TypeVar("Job")


@dataclass
class Changes(Generic[Job]):
    """What is to be done now: `stop` first."""

    stop: list[Job] = field(default_factory=list)
    start: list[Job] = field(default_factory=list)


class Lanes(Generic[Job]):
    """Jobs that wait or run. `slots` run at once, and one quick one more if all these are long."""

    def __init__(self, slots: int, quantum_s: float) -> None:
        self._slots = slots
        self._quantum_s = quantum_s
        self._new: deque[Job] = deque()
        self._put_off: deque[Job] = deque()
        self._quick: dict[Job, float] = {}  # when it began, in that order
        self._long: dict[Job, None] = {}

    @property
    def num_running(self) -> int:
        return len(self._quick) + len(self._long)

    @property
    def waiting(self) -> list[Job]:
        """Those that do not run."""
        return [*self._put_off, *self._new]

    def add(self, job: Job) -> None:
        """A new one, at the end of the queue."""
        self._new.append(job)

    def remove(self, job: Job) -> None:
        """It has ended, or is not wanted any more."""
        if job in self._quick:
            del self._quick[job]
        elif job in self._long:
            del self._long[job]
        elif job in self._new:
            self._new.remove(job)
        else:
            self._put_off.remove(job)

    def next_change_s(self) -> float | None:
        """When to ask again although nothing has happened: when the first quick job that stands
        in the way of others has had its quantum."""
        if not self._new or not self._quick:
            return None
        return next(iter(self._quick.values())) + self._quantum_s

    def changes(self, now: float) -> Changes[Job]:
        """What to stop and start at the time `now`; it counts as done."""
        made: Changes[Job] = Changes()
        overdue = [job for job, began in self._quick.items() if now >= began + self._quantum_s]
        while overdue and len(self._long) < self._slots:
            job = overdue.pop(0)
            del self._quick[job]
            self._long[job] = None
        while self._put_off and self.num_running < self._slots:
            job = self._put_off.popleft()
            self._long[job] = None
            made.start.append(job)
        while self._new:
            if self._quick and self.num_running >= self._slots:
                if not overdue:
                    break
                stopped = overdue.pop(0)
                del self._quick[stopped]
                self._put_off.append(stopped)
                made.stop.append(stopped)
            job = self._new.popleft()
            self._quick[job] = now
            made.start.append(job)
        return made
