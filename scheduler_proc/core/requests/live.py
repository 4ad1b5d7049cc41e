"""The reqs that have not ended."""

from collections.abc import Collection

from scheduler_proc.core.requests.request import Req
from srt.ring.blame_file import Name


class LiveReqs:
    """Finds the reqs of one core that have not ended, wherever they are."""

    def __init__(self) -> None:
        self._by_name: dict[Name, Req] = {}
        self._timed: dict[int, Req] = {}  # by handle: those of them that have a deadline

    def add(self, req: Req) -> None:
        """A req has come."""
        self._by_name[req.key] = req
        if req.wish.deadline_s:
            self._timed[req.handle] = req

    def remove(self, req: Req) -> None:
        """A req has ended."""
        del self._by_name[req.key]
        self._timed.pop(req.handle, None)

    def find(self, name: Name) -> Req | None:
        """The req of this name; None if it has ended, or never came."""
        return self._by_name.get(name)

    def all(self) -> list[Req]:
        """All of them, in order of arrival."""
        return list(self._by_name.values())

    def with_handles(self, handles: Collection[int]) -> list[Req]:
        """Those with these handles, in order of arrival."""
        return [req for req in self._by_name.values() if req.handle in handles]

    def late(self, now: float) -> list[Req]:
        """Those whose time is over."""
        return [req for req in self._timed.values() if req.wish.deadline_s <= now]
