"""Who may have ended an earlier scheduler: the requests that ran when it was lost. Each of them is
tried alone, so that one that ends every scheduler is found, and harms nobody else.

A trial lasts from a suspect's entry into memory to its first decode: all that had been computed for
it is computed again, and one step more, which may be the one that was not reported. Its steps have
no other row, and each is planned when the one before is committed. Those who are no suspects have
steps in between.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.steps.step import Row
from srt.ring.crash_file import Name

MAX_CLEARED = 1024  # that are remembered


class Trials:
    """The core has one. `suspects` are those that have not passed yet, `cleared` those that have,
    or have ended, the latest last. Both are replaced, never changed, so any thread may read them.
    """

    def __init__(self) -> None:
        self.suspects: frozenset[Name] = frozenset()
        self.cleared: list[Name] = []
        self.at: Name | None = None  # whose trial went on, or was the next, at the last plan
        self._present: dict[int, Req] = {}  # by handle, in order of arrival

    def suspect(self, names: Iterable[Name]) -> None:
        """Try these requests when they come."""
        self.suspects |= frozenset(names)
        self.cleared = [name for name in self.cleared if name not in self.suspects]

    def clear(self) -> None:
        """Forget all suspects: none of them will come."""
        self.suspects, self.cleared, self.at = frozenset(), [], None
        self._present.clear()

    @property
    def next(self) -> Req | None:
        """Whose trial goes on, or is the next to begin."""
        if not self._present:
            return None
        running = (req for req in self._present.values() if req.residency is not None)
        return next(running, None) or next(iter(self._present.values()))

    def is_suspect(self, req: Req) -> bool:
        """Whether its trial is still to come, or goes on."""
        return req.handle in self._present

    def add(self, req: Req) -> None:
        """A req has come. A suspect's tokens are not held back: if it ends its scheduler at its
        next step, its next trial is to reach the same one."""
        if req.key in self.suspects:
            self._present[req.handle] = req
            req.wish = replace(req.wish, is_watched=True)

    def passed(self, rows: Iterable[Row]) -> None:
        """Rows have been committed."""
        for row in rows if self._present else ():
            if row.is_decode and row.samples:
                self.remove(row.req)

    def remove(self, req: Req) -> None:
        """A req has passed or ended."""
        if self._present.pop(req.handle, None) is not None:
            self.forget(req.key)

    def forget(self, name: Name) -> None:
        """A request has passed or ended, or was refused when it came."""
        if name in self.suspects:
            self.suspects -= {name}
            self.cleared = [*self.cleared, name][-MAX_CLEARED:]
