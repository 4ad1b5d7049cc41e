"""A queue of jobs that is fair to those who ask: each asker has a lane, and lanes take turns.

Who runs least goes first, and among those who run alike the one whose turn was longest ago: a
flood of one asker's jobs delays only that asker. A job of several askers stands in the lanes of
all, and the lane whose turn comes first counts.
"""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Turns(Generic[Job]):
    """Jobs that wait, in a lane for each asker; a lane is in order of arrival."""

    def __init__(self) -> None:
        self._lanes: dict[bytes, dict[Job, None]] = {}  # those served longest ago come first

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Job]:
        """Each job once."""
        return iter(dict.fromkeys(job for lane in self._lanes.values() for job in lane))

    def __contains__(self, job: Job) -> bool:
        return any(job in lane for lane in self._lanes.values())

    def lane(self, asker: bytes) -> list[Job]:
        """What waits for an asker."""
        return list(self._lanes.get(asker, ()))

    def askers(self) -> set[bytes]:
        """Those for whom something waits."""
        return set(self._lanes)

    def add(self, job: Job, asker: bytes) -> None:
        """Add a job at the end of a lane, unless it is in it."""
        self._lanes.setdefault(asker, {})[job] = None

    def remove(self, job: Job) -> list[bytes]:
        """Take a job out of all lanes; returns their askers."""
        askers = [asker for asker, lane in self._lanes.items() if job in lane]
        for asker in askers:
            del self._lanes[asker][job]
            if not self._lanes[asker]:
                del self._lanes[asker]
        return askers

    def next_asker(self, running: Mapping[bytes, int]) -> bytes:
        """Whose turn it is; `running` counts the jobs that run for each. Some job waits."""
        return min(self._lanes, key=lambda asker: running.get(asker, 0))

    def pop(self, asker: bytes) -> tuple[Job, list[bytes]]:
        """The first job of an asker, who has had a turn with it, and all who ask for it."""
        lane = self._lanes.pop(asker)
        self._lanes[asker] = lane
        job = next(iter(lane))
        return job, self.remove(job)
