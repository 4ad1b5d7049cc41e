"""How many constraints may wait to be compiled, of all askers and of each, and who gives way."""

from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from srt.callers.shares import Shares

MAX_QUEUE = 1024
MAX_QUEUE_CHARS = 64 * 2**20
MAX_ASKER_QUEUE = 256
MAX_ASKER_CHARS = 16 * 2**20

Job = TypeVar("Job")


class QueueRoom(Generic[Job]):
    """The jobs that wait, and their characters. Without room a job of the asker that has most gives
    way, the first one in the `order` of its jobs, and must leave with `give_way`. A job of several
    askers counts for the one that has least, so that nobody loses a job for what others have."""

    def __init__(
        self,
        give_way: Callable[[Job], object],
        order: Callable[[Collection[Job]], Iterable[Job]],
    ) -> None:
        self._jobs: Shares[bytes, Job] = Shares(
            MAX_QUEUE, MAX_ASKER_QUEUE, give_way=give_way, order=order
        )
        self._chars: Shares[bytes, Job] = Shares(
            MAX_QUEUE_CHARS, MAX_ASKER_CHARS, give_way=give_way, order=order
        )
        self._askers: dict[Job, bytes] = {}

    def take(self, asker: bytes, job: Job, num_chars: int) -> bool:
        """Count a job that waits from now on; False, and nothing, if there is no room."""
        if self._jobs.full(asker, 1) or self._chars.full(asker, num_chars):
            return False
        self._jobs.take(asker, job)
        if self._chars.take(asker, job, num_chars):  # what gave way above was small
            self._chars.put(asker, job, num_chars)
        self._askers[job] = asker
        return True

    def put(self, asker: bytes, job: Job, num_chars: int) -> None:
        """Count a job that waits from now on, whatever the bounds: nobody gives way to it."""
        self._jobs.put(asker, job, 1)
        self._chars.put(asker, job, num_chars)
        self._askers[job] = asker

    def join(self, asker: bytes, job: Job, num_chars: int) -> None:
        """One more asks for a job."""
        present = self._askers.get(job)
        if present is not None and self._jobs.held(asker) + 1 < self._jobs.held(present):
            self.put(asker, job, num_chars)

    def give_back(self, job: Job) -> None:
        """A job waits no more. Others are ignored."""
        self._jobs.give_back(job)
        self._chars.give_back(job)
        self._askers.pop(job, None)
