"""The waiting reqs of one caller. `WaitingQueue` has a lane for each."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from scheduler_proc.core.requests.request import Req


@dataclass(slots=True, eq=False)
class Lane:
    """The reqs of one caller, by handle, each part in order of arrival. The first window is
    `window` and `hurried`."""

    resumed: dict[int, Req] = field(default_factory=dict)  # those that have been admitted before
    window: OrderedDict[int, Req] = field(default_factory=OrderedDict)  # the oldest of the others
    hurried: dict[int, Req] = field(default_factory=dict)  # urgent ones, that may have passed older
    later: OrderedDict[int, Req] = field(default_factory=OrderedDict)  # the rest of them
    untracked: dict[int, Req] = field(default_factory=dict)  # of the rest: come since the look

    def __len__(self) -> int:
        return len(self.resumed) + len(self.window) + len(self.hurried) + len(self.later)

    def in_order(self) -> Iterator[Req]:
        """All of them, in order of arrival."""
        parts = (self.resumed, self.window, self.hurried, self.later)
        reqs = chain.from_iterable(part.values() for part in parts)
        yield from sorted(reqs, key=lambda req: req.handle)

    def in_window(self) -> Iterable[Req]:
        """The reqs of the first window, those that have passed older ones last."""
        return chain(self.window.values(), self.hurried.values())

    def next_later(self, first: int, most: int) -> list[Req]:
        """Of those after the first window, up to `most` from the number `first` on, the oldest
        first."""
        return list(islice(self.later.values(), first, first + most))

    def oldest(self) -> Req | None:
        """Of those that have not been admitted before, the one that came first."""
        parts = (self.window, self.hurried, self.later)
        heads = [next(iter(reqs.values())) for reqs in parts if reqs]
        return min(heads, key=lambda req: req.handle, default=None)

    def latest_s(self, max_wait_s: float) -> float:
        """When the last one can have come that is of the first window. Of one that has none, which
        begins with who comes next, that is as late as can be."""
        oldest = self.oldest()
        return math.inf if oldest is None else oldest.arrival_s + max_wait_s

    def remove(self, req: Req) -> None:
        """Forget a req, which is of this lane."""
        self.untracked.pop(req.handle, None)
        parts = (self.window, self.hurried, self.later, self.resumed)
        del next(reqs for reqs in parts if req.handle in reqs)[req.handle]


class Lanes(dict[str, Lane]):
    """Those of all callers whose reqs wait, by caller; none is empty."""

    total = 0  # reqs

    def add(self, caller: str) -> Lane:
        """The lane for a req that comes."""
        self.total += 1
        return self.setdefault(caller, Lane())

    def remove(self, req: Req) -> None:
        """Forget a req, which is in its caller's."""
        self.total -= 1
        lane = self[req.wish.caller]
        lane.remove(req)
        if len(lane) == 0:
            del self[req.wish.caller]
