"""The waiting queue and the order in which the scheduler tries to admit from it.

Policies: `lpm` longest cached prefix first, which on a batch is a depth-first visit of the radix
tree and so optimal; `dfs-weight` visits the tree by the number of waiting reqs below each branch;
`fcfs`; `random`. Whatever the policy:

* Reqs that have been admitted before (retracted, or begun by a scheduler that was lost) come first,
  oldest first.
* No req comes after one that arrived more than `max_wait_s` later. The policy orders the reqs
  that arrived within `max_wait_s` of the oldest; then, of what is left, those within `max_wait_s`
  of the oldest of these; and so on. As the oldest is admitted, the next one's time begins: the
  bound moves with the queue, and a batch that came at once is the policy's as a whole, however long
  it waits.

A look costs what has changed since the one before: the first window's order is kept, and the tree
says whose match has changed. Later windows are ordered when they are reached.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain

from scheduler_proc.core.requests.queue_order import order_of
from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.match_trackers import Watchers
from scheduler_proc.memory.radix_cache import RadixCache

RENEWALS = 16  # of the marks in the cache, while the queue changes as a whole


class WaitingQueue:
    """Reqs that hold no memory. They arrive in order; those that were admitted before come back at
    any time."""

    def __init__(
        self, policy: str, max_wait_s: float, rng: random.Random, cache: RadixCache
    ) -> None:
        self._policy = policy
        self._max_wait_s = max_wait_s
        self._rng = rng
        self._cache = cache
        self._resumed: dict[int, Req] = {}  # by handle: those that have been admitted before
        self._window: OrderedDict[int, Req] = OrderedDict()  # the oldest of the others, by handle
        self._later: OrderedDict[int, Req] = OrderedDict()  # the rest of them; by arrival, as above
        self._order = order_of(policy, cache.watchers, rng)
        self._untracked: dict[int, Req] = {}  # of the later ones: those that came since the look
        self._changes = 0  # since all that is wanted was marked in the cache

    def __len__(self) -> int:
        return len(self._resumed) + len(self._window) + len(self._later)

    def __iter__(self) -> Iterator[Req]:
        return chain(self._resumed.values(), self._window.values(), self._later.values())

    def add(self, req: Req) -> None:
        self._changes += 1
        if req.is_admitted or req.is_resumed:
            self._resumed[req.handle] = req
        else:
            self._later[req.handle] = self._untracked[req.handle] = req

    def remove(self, req: Req) -> None:
        self._changes += 1
        if req.handle in self._window:
            del self._window[req.handle]
            self._order.remove(req)
            self._cache.watchers.remove(req.cursor)
        elif req.handle in self._later:
            del self._later[req.handle]
            self._untracked.pop(req.handle, None)
        else:
            del self._resumed[req.handle]

    def ordered(self) -> Iterable[Req]:
        """All waiting reqs in the order of admission: the first window's as of now, those of later
        windows as of when they are reached. Reports to the cache what they have matched."""
        self._refresh()
        resumed = sorted(self._resumed.values(), key=lambda req: req.handle)
        first = map(self._window.__getitem__, self._order.handles())
        if self._changes * RENEWALS < len(self):
            return chain(resumed, first, self._later_windows())
        self._changes = 0
        order = [*resumed, *first, *self._later_windows()]
        self._cache.want([req.cursor for req in order])
        return order

    def _refresh(self) -> None:
        """Bring the matches and the first window up to date."""
        cache = self._cache
        seen = [*self._resumed.values(), *self._untracked.values()]
        self._untracked.clear()
        for req in seen:
            cache.track(*req.tracked)
        for cursor in cache.watchers.take_moved():
            self._changes += 1
            req = self._window[cursor.handle]
            self._order.remove(req)
            self._place(req)
            seen.append(req)
        while self._later:
            oldest = next(iter((self._window or self._later).values()))
            first = next(iter(self._later.values()))
            if first.arrival_s > oldest.arrival_s + self._max_wait_s:
                break
            del self._later[first.handle]
            self._window[first.handle] = first
            self._place(first)
        for req in seen:
            cache.also_want(req.cursor)

    def _place(self, req: Req) -> None:
        """Put a req of the first window into the order."""
        self._cache.track(*req.tracked)
        self._cache.watchers.add(*req.tracked)
        self._order.add(req)

    def _later_windows(self) -> Iterator[Req]:
        """The reqs after the first window, window by window: a new one begins where a req came more
        than `max_wait_s` after the first of the window."""
        reqs = list(self._later.values())
        while reqs:
            latest = reqs[0].arrival_s + self._max_wait_s
            window = {req.handle: req for req in reqs if req.arrival_s <= latest}
            watchers = Watchers()
            order = order_of(self._policy, watchers, self._rng)
            for req in window.values():
                self._cache.track(*req.tracked)
                watchers.add(*req.tracked)
                order.add(req)
            handles = list(order.handles())
            for req in window.values():
                watchers.remove(req.cursor)
            yield from (window[handle] for handle in handles)
            reqs = reqs[len(window) :]
