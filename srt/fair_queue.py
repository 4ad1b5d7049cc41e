"""Queues of jobs that are fair to those who ask: each asker has a lane, and lanes take turns.

A lane is in order of arrival. Lanes are in the order of their turns: one that has had a turn goes
to the end, so a flood of one asker's jobs delays each other asker by one job only. The user of a
`FairQueue` decides which lane has the next turn; in a `SerialQueue` it is the first one whose asker
has no job in progress, in a `SlotQueue` the first one whose asker leaves room to the next.
"""

from collections import Counter
from collections.abc import Callable, Iterator, KeysView
from typing import Generic, TypeVar

Asker = TypeVar("Asker")
Job = TypeVar("Job")


class FairQueue(Generic[Asker, Job]):
    """Jobs that wait, each once in a lane; a job of several askers stands in the lanes of all."""

    def __init__(self) -> None:
        self._lanes: dict[Asker, dict[Job, None]] = {}  # without empty ones

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Job]:
        """Each job once."""
        return iter(dict.fromkeys(job for lane in self._lanes.values() for job in lane))

    def __contains__(self, job: Job) -> bool:
        return any(job in lane for lane in self._lanes.values())

    @property
    def askers(self) -> KeysView[Asker]:
        """Those for whom a job waits, in the order of their turns."""
        return self._lanes.keys()

    def lane(self, asker: Asker) -> KeysView[Job]:
        """The jobs that wait for an asker."""
        return self._lanes.get(asker, {}).keys()

    def add(self, asker: Asker, job: Job) -> None:
        """Add a job at the end of a lane, unless it is in it."""
        self._lanes.setdefault(asker, {})[job] = None

    def pop(self, asker: Asker) -> Job:
        """Remove the first job of a lane, which has had a turn with it."""
        lane = self._lanes.pop(asker)
        job = next(iter(lane))
        del lane[job]
        if lane:
            self._lanes[asker] = lane
        return job

    def discard(self, asker: Asker, job: Job) -> bool:
        """Remove a job from one lane; returns whether it was there."""
        lane = self._lanes.get(asker, {})
        if job not in lane:
            return False
        del lane[job]
        if not lane:
            del self._lanes[asker]
        return True

    def remove(self, job: Job) -> list[Asker]:
        """Remove a job from all lanes; returns their askers, in the order of their turns."""
        return [asker for asker in list(self._lanes) if self.discard(asker, job)]

    def clear(self) -> None:
        """Remove all jobs."""
        self._lanes.clear()


class SerialQueue(FairQueue[Asker, Job]):
    """A fair queue that gives out one job of each asker at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.in_progress: dict[Asker, Job] = {}  # `clear` keeps these: their work goes on

    def take(self) -> tuple[Asker, Job] | None:
        """The next job, in progress until `done`, and its asker; None if no job may begin now."""
        asker = next((one for one in self._lanes if one not in self.in_progress), None)
        if asker is None:
            return None
        job = self.in_progress[asker] = self.pop(asker)
        return asker, job

    def done(self, asker: Asker) -> None:
        """The asker's job has ended."""
        self.in_progress.pop(asker, None)


class SlotQueue(FairQueue[Asker, Job]):
    """A fair queue that gives out jobs into `slots`, of which a job takes as many as `wanted` says.

    An asker takes at most `slots_of_one`, and no more than are left to the others. So one alone
    gets half of all, n of them an (n + 1)th each in the end, and the next one finds some. Those who
    have some wait for one who has none and wants more than are left. Who has none goes before it,
    but with no more jobs than there are slots, so that it does not wait for ever. A job that wants
    more than an asker may have takes all of these.
    """

    def __init__(
        self,
        slots: int,
        slots_of_one: int | None = None,
        wanted: Callable[[Job], int] = lambda job: 1,
    ) -> None:
        super().__init__()
        self._slots = slots
        self._slots_of_one = slots if slots_of_one is None else slots_of_one
        self._wanted = wanted
        self._taken: Counter[Asker] = Counter()
        # The jobs of each that went before the one that is waited for.
        self._passed: dict[Asker, Counter[Asker]] = {}

    def take(self) -> tuple[Asker, Job] | None:
        """The next job, in progress until `done`, and its asker; None if none may begin now."""
        left = self._slots - self._taken.total()
        passed: Counter[Asker] | None = None
        for asker, lane in self._lanes.items():
            taken, cost = self._taken[asker], self._cost(next(iter(lane)))
            if passed is not None and (taken or passed[asker] >= self._slots):
                continue
            if taken + cost <= min(left, self._slots_of_one):
                if passed is not None:
                    passed[asker] += 1
                self._passed.pop(asker, None)
                self._taken[asker] += cost
                return asker, self.pop(asker)
            if not taken and passed is None:
                passed = self._passed.get(asker, Counter())
                self._passed = {asker: passed}
        return None

    def done(self, asker: Asker, job: Job) -> None:
        """A job that was taken for the asker has ended."""
        self._taken[asker] -= self._cost(job)
        if not self._taken[asker]:
            del self._taken[asker]

    def _cost(self, job: Job) -> int:
        return min(self._wanted(job), self._slots_of_one, self._slots)
