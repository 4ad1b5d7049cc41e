"""Who may pass whom in the queue: above all the class `latency` of hints, which passes all that
waits of its caller, however long that has.

The front lets few requests of a caller into the class at once, so others keep most of the rows.
That alone does not bound how many pass: a new one may come as soon as one has ended. So after
`MOST_PASSES` of the class that were admitted while others waited, one of the others is first. Who
waits is passed by at most `MOST_PASSES` of the class for each of the others that goes before it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, filterfalse

from scheduler_proc.core.queueing.lanes import Lane
from scheduler_proc.core.requests.request import Req

MOST_PASSES = 16


def is_latency(req: Req) -> bool:
    """Whether it has the class `latency`, within its caller's share."""
    hints = req.wish.hints
    return hints is not None and hints.perf == "latency"


def is_throughput(req: Req) -> bool:
    """Whether it has the class `throughput`, which gives way to the class `latency`."""
    hints = req.wish.hints
    return hints is not None and hints.perf == "throughput"


def target_s(req: Req) -> float:
    """Its target for the time from one of its tokens to the next; infinite if it has none."""
    hints = req.wish.hints
    return math.inf if hints is None or not hints.tpot_ms else hints.tpot_ms / 1e3


class Overtaking:
    """Who may pass whom in one queue: no req one of its caller that came more than `max_wait_s`
    before it, apart from those of the class `latency`, if the policy `has_classes`. `waiting` are
    these, by handle; `paced` those that were admitted with a target for their tokens, and may have
    ended or gone back since."""

    def __init__(self, max_wait_s: float, has_classes: bool) -> None:
        self.max_wait_s, self.has_classes = max_wait_s, has_classes
        self.waiting: dict[int, Req] = {}
        self.paced: dict[int, Req] = {}
        self._counts = Counter[str]()  # of the waiting ones, by caller
        self._passes: dict[str, int] = {}  # by caller, since another of its reqs was admitted

    def add(self, req: Req) -> None:
        """It waits."""
        if self.has_classes and is_latency(req):
            self.waiting[req.handle] = req
            self._counts[req.wish.caller] += 1

    def waits_of_others(self, caller: str) -> bool:
        """Whether the class waits of another caller than this one."""
        return bool(self._counts.keys() - {caller})

    def remove(self, req: Req, lane: Lane) -> None:
        """It has been admitted or has ended, and left this lane."""
        is_one, caller = self.waiting.pop(req.handle, None) is not None, req.wish.caller
        if is_one:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]
        if req.finish is None and self.has_classes and target_s(req) < math.inf:
            self.paced[req.handle] = req
        if len(lane) == self._counts[caller] or (not is_one and req.finish is None):
            self._passes.pop(caller, None)
        elif is_one and req.finish is None:
            self._passes[caller] = self._passes.get(caller, 0) + 1

    def may_hurry(self, req: Req, lane: Lane) -> bool:
        """Whether a req that comes into this lane is to pass others there by its hints. Few are:
        each caller has a share."""
        hints = req.wish.hints
        if not (self.has_classes and hints is not None and hints.is_urgent):
            return False
        return is_latency(req) or req.arrival_s <= lane.latest_s(self.max_wait_s)

    def order(self, resumed: Sequence[Req], windows: Callable[[], Iterator[Req]]) -> Iterator[Req]:
        """The `resumed` reqs, which were admitted before, and those of the `windows` in the
        policy's order, in which the class is first: the class, then others that were admitted
        before, then the rest. It is read while reqs go."""
        if not self.waiting:
            yield from resumed
            yield from windows()
            return
        ones = [req for req in resumed if req.handle in self.waiting]
        before = [req for req in resumed if req.handle not in self.waiting]
        turns = self._turns(chain(before, filterfalse(is_latency, windows())))
        yield from turns
        yield from ones
        before = [req for req in before if req not in turns]
        for req in windows():
            if before and not is_latency(req):
                yield from before
                before = []
            if req not in turns:
                yield req
        yield from before

    def _turns(self, others: Iterable[Req]) -> list[Req]:
        """Of these, the first of each caller of whom the class has passed as many as it may."""
        due, found = {c for c, count in self._passes.items() if count >= MOST_PASSES}, list[Req]()
        for req in others if due else ():
            if req.wish.caller in due:
                due.remove(req.wish.caller)
                found.append(req)
                if not due:
                    break
        return found
