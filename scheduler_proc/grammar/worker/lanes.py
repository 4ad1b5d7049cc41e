"""Which of the waiting constraints are compiled now: short ones do not wait for long ones, nor
one asker's for another's.

Nobody knows beforehand how long a compilation takes, so each begins in the quick lane. What is
still running after a quantum goes over to the long lane, if there is room in it; else it makes way
for the next that waits, and begins again in the long lane when its turn comes. Askers take turns
in both; an asker with nothing running takes the newest slot of the one with most, if those are
several. Pure: the service asks what to do, does it, and reports what has ended.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from srt.fair_queue import FairQueue

Job = TypeVar("Job")


@dataclass
class Changes(Generic[Job]):
    """What is to be done now: `stop` first."""

    stop: list[Job] = field(default_factory=list)
    start: list[Job] = field(default_factory=list)


@dataclass
class _Run:
    """When a job began, and who asks for it; the first of these has had a turn for it."""

    began: float
    askers: list[bytes]


class Lanes(Generic[Job]):
    """Jobs that wait or run. `slots` run at once, and one quick one more if all these are long."""

    def __init__(self, slots: int, quantum_s: float) -> None:
        self._slots = slots
        self._quantum_s = quantum_s
        self._new: FairQueue[bytes, Job] = FairQueue()
        self._put_off: FairQueue[bytes, Job] = FairQueue()
        self._runs: dict[Job, _Run] = {}  # in the order in which they began
        self._long: set[Job] = set()

    @property
    def num_running(self) -> int:
        return len(self._runs)

    @property
    def waiting(self) -> list[Job]:
        """The jobs that wait."""
        return [*self._put_off, *self._new]

    def waiting_for(self, asker: bytes) -> list[Job]:
        """One asker's jobs that wait, the newest last."""
        return [*self._put_off.lane(asker), *self._new.lane(asker)]

    def add(self, job: Job, asker: bytes = b"") -> None:
        """A new one, at the end of its asker's queue; or one more who asks for it."""
        if job in self._runs:
            self._join(self._runs[job], asker)
        elif job in self._put_off:
            self._put_off.add(asker, job)
        else:
            self._new.add(asker, job)

    def remove(self, job: Job) -> None:
        """Remove a job that has ended or is not wanted any more."""
        if self._runs.pop(job, None) is not None:
            self._long.discard(job)
        else:
            self._new.remove(job)
            self._put_off.remove(job)

    def next_change_s(self) -> float | None:
        """When to ask again even if nothing happens until then: when the first quick job that
        keeps others waiting has had its quantum."""
        quick = self._quick()
        if not self._new or not quick:
            return None
        return self._runs[quick[0]].began + self._quantum_s

    def changes(self, now: float) -> Changes[Job]:
        """What to stop and start at the time `now`; it is taken as done."""
        made: Changes[Job] = Changes()
        overdue = [j for j in self._quick() if now >= self._runs[j].began + self._quantum_s]
        while overdue and len(self._long) < self._slots:
            self._long.add(overdue.pop(0))
        self._start_put_off(now, made)
        self._start_new(now, overdue, made)
        self._start_put_off(now, made)  # jobs that just made way, if their askers have no others
        return made

    def _start_put_off(self, now: float, made: Changes[Job]) -> None:
        """Start jobs where the long lane has room, or one asker has more of it than another."""
        while self._put_off:
            asker = self._next_asker(self._put_off)
            if self.num_running >= self._slots:
                surplus = self._surplus(asker, self._long)
                if surplus is None:
                    return
                self._stop(surplus, made)
            self._long.add(self._start(self._put_off, asker, now, made))

    def _start_new(self, now: float, overdue: list[Job], made: Changes[Job]) -> None:
        while self._new:
            asker = self._next_asker(self._new)
            if self._quick() and self.num_running >= self._slots:
                stopped = overdue.pop(0) if overdue else self._surplus(asker, self._runs)
                if stopped is None:
                    return
                self._stop(stopped, made)
            self._start(self._new, asker, now, made)

    def _quick(self) -> list[Job]:
        return [job for job in self._runs if job not in self._long]

    def _next_asker(self, queue: FairQueue[bytes, Job]) -> bytes:
        """Whose turn it is: of those for whom least runs, the one whose turn was longest ago."""
        shares = self._shares()
        return min(queue.askers, key=lambda asker: shares[asker])

    def _shares(self) -> Counter[bytes]:
        """How many jobs run for each asker."""
        return Counter(run.askers[0] for run in self._runs.values())

    def _surplus(self, asker: bytes, jobs: Iterable[Job]) -> Job | None:
        """The newest of these running jobs that is of whoever has most, if those are several and
        `asker` has none."""
        shares = self._shares()
        most = max(shares.values(), default=0)
        if shares[asker] or most < 2:
            return None
        among = set(jobs)
        of_most = [
            job for job, run in self._runs.items() if job in among and shares[run.askers[0]] == most
        ]
        return of_most[-1] if of_most else None

    def _join(self, run: _Run, asker: bytes) -> None:
        """One more asks for the job, which counts for the asker for whom least runs."""
        if asker not in run.askers:
            run.askers.append(asker)
            shares = self._shares()
            run.askers.sort(key=lambda one: shares[one])

    def _stop(self, job: Job, made: Changes[Job]) -> None:
        for asker in self._runs.pop(job).askers:
            self._put_off.add(asker, job)
        self._long.discard(job)
        if job in made.start:
            made.start.remove(job)
        else:
            made.stop.append(job)

    def _start(
        self, queue: FairQueue[bytes, Job], asker: bytes, now: float, made: Changes[Job]
    ) -> Job:
        job = queue.pop(asker)
        self._runs[job] = _Run(now, [asker, *queue.remove(job)])
        made.start.append(job)
        return job
