"""The waiting queue and the order in which the scheduler tries to admit from it.

Policies: `lpm` longest cached prefix first, which on a batch is a depth-first visit of the radix
tree and so optimal; `dfs-weight` visits the tree by the number of waiting reqs below each branch;
`fcfs`; `random`; `app` by applications, as hints name them. Whatever the policy:

* Reqs that have been admitted before (retracted, or begun by a scheduler that was lost) come first,
  oldest first.
* No req comes after one that arrived more than `max_wait_s` later. The policy orders the reqs
  that arrived within `max_wait_s` of the oldest; then, of what is left, those within `max_wait_s`
  of the oldest of these; and so on. As the oldest is admitted, the next one's time begins: the
  bound moves with the queue, and a batch that came at once is the policy's as a whole, however long
  it waits.

A look costs what has changed since the one before: the first window's order is kept, and the tree
says whose match has changed. Later windows are ordered when they are reached. Of a long queue a
look takes over only so many changes, and the looks after it the rest: until then some reqs have the
places of their matches before, or are still behind the window; what its hints call urgent is not.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice

from scheduler_proc.core.requests.queue_order import ByApplication, order_of
from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.match_trackers import Cursor, Watchers
from scheduler_proc.memory.radix_cache import RadixCache

RENEWALS = 16  # of the marks in the cache, while the queue changes as a whole
MOST_LATER = 256  # reqs after the first window that a look reaches and that are not admitted
MATCHED, MARKED = 64, 128  # reqs at a look, so that it takes one or two milliseconds


class _Window(OrderedDict[int, Req]):
    """Reqs by handle, in order of arrival but for the `hurried`: urgent ones, which may have passed
    older ones that are to come in."""

    def __init__(self) -> None:
        super().__init__()
        self.hurried: dict[int, Req] = {}


class WaitingQueue:
    """Reqs that hold no memory. They arrive in order; those that were admitted before come back at
    any time."""

    def __init__(
        self, policy: str, max_wait_s: float, rng: random.Random, cache: RadixCache
    ) -> None:
        self._order_of = partial(order_of, policy, rng=rng, max_wait_s=max_wait_s)
        self._max_wait_s = max_wait_s
        self._cache = cache
        self._resumed: dict[int, Req] = {}  # by handle: those that have been admitted before
        self._window = _Window()  # the oldest of the others
        self._later: OrderedDict[int, Req] = OrderedDict()  # the rest of them; by arrival, as above
        self._order = self._order_of(cache.watchers)
        self._untracked: dict[int, Req] = {}  # of the later ones: those that came since the look
        self._changes = 0  # since the marking of all that is wanted in the cache began
        self._marking: Iterator[None] | None = None  # what is left of it

    def __len__(self) -> int:
        return len(self._resumed) + len(self._window) + len(self._later)

    def __iter__(self) -> Iterator[Req]:
        return chain(self._resumed.values(), self._window.values(), self._later.values())

    def add(self, req: Req) -> None:
        self._changes += 1
        if req.is_admitted or req.is_resumed:
            self._resumed[req.handle] = req
        elif self._is_urgent(req) and req.arrival_s <= self._latest_s():
            self._window.hurried[req.handle] = req
            self._enter_window(req)  # however many are to be taken over before it
            self._cache.also_want(req.cursor)
        else:
            self._later[req.handle] = self._untracked[req.handle] = req

    def remove(self, req: Req) -> None:
        self._changes += 1
        if req.handle in self._window:
            del self._window[req.handle]
            self._window.hurried.pop(req.handle, None)
            self._order.remove(req)
            self._cache.watchers.remove(req.cursor)
        elif req.handle in self._later:
            del self._later[req.handle]
            self._untracked.pop(req.handle, None)
        else:
            del self._resumed[req.handle]
        if len(self) == 0:
            self._marking = None

    def ordered(self) -> Iterable[Req]:
        """The waiting reqs in the order of admission: the first window's as of now, those of later
        windows as of when they are reached. Reports to the cache what they have matched."""
        self._refresh()
        resumed = sorted(self._resumed.values(), key=lambda req: req.handle)
        order: Iterable[Req] = chain(resumed, self._in_window(), self._later_windows())
        if self._marking is None and self._changes * RENEWALS >= len(self):
            self._changes = 0
            marked: Iterable[Req] = chain(resumed, self._in_window(), self._next_later(0, MARKED))
            if len(self) <= MARKED:
                order = marked = list(order)  # before edges are split where later matches end
            self._marking = self._cache.want(self._cursors(marked), at_once=0)
        if self._marking is not None and len(list(islice(self._marking, MARKED))) < MARKED:
            self._marking = None
        return order

    def _in_window(self) -> Iterator[Req]:
        """The reqs of the first window in order, those that wait when they are reached."""
        for handle in self._order.handles():
            if handle in self._window:
                yield self._window[handle]

    def _cursors(self, reqs: Iterable[Req]) -> Iterator[Cursor]:
        """Those of the reqs that still wait, just tracked."""
        for req in reqs:
            if req.residency is None and req.finish is None:
                if req.handle not in self._window or req.cursor.spot is None:
                    self._cache.track(*req.tracked)
                yield req.cursor

    def _next_later(self, first: int, most: int) -> list[Req]:
        """Of those after the first window, up to `most` from the number `first` on, the oldest
        first."""
        return list(islice(self._later.values(), first, first + most))

    def _refresh(self) -> None:
        """Bring matches and the first window up to date, as far as one look does."""
        cache, seen = self._cache, [*self._resumed.values()]
        for req in seen:
            cache.track(*req.tracked)
        moved = cache.watchers.take_moved(MATCHED)
        self._changes += len(moved)
        for cursor in moved:
            req = self._window[cursor.handle]
            self._watch(req)
            self._order.moved(req)
            seen.append(req)
        left, latest_s = MATCHED, self._latest_s()
        while left > 0:
            first = next(iter(self._later.values()), None)
            if first is None or first.arrival_s > latest_s:
                break
            del self._later[first.handle]
            self._enter_window(first)
            if self._untracked.pop(first.handle, None) is not None:
                seen.append(first)
            left -= 1
        while self._untracked and left > 0:
            _, req = self._untracked.popitem()
            cache.track(*req.tracked)
            seen.append(req)
            left -= 1
        for req in seen:
            cache.also_want(req.cursor)

    def _is_urgent(self, req: Req) -> bool:
        """Whether it is to pass others by its hints. Few are: each caller has a share."""
        hints = req.wish.hints
        return isinstance(self._order, ByApplication) and hints is not None and hints.is_urgent

    def _latest_s(self) -> float:
        """When the last one can have come that is of the first window. Of one that has none, which
        begins with who comes next, that is as late as can be."""
        window = (req for req in self._window.values() if req.handle not in self._window.hurried)
        heads = [*islice(window, 1), *islice(self._window.hurried.values(), 1)]
        heads += islice(self._later.values(), 1)
        oldest = min(heads, key=lambda req: req.handle, default=None)
        return math.inf if oldest is None else oldest.arrival_s + self._max_wait_s

    def _enter_window(self, req: Req) -> None:
        self._window[req.handle] = req
        self._watch(req)
        self._order.add(req)

    def _watch(self, req: Req) -> None:
        """Match a req of the first window, and hear of what changes its match."""
        tracked = req.tracked
        self._cache.track(*tracked)
        self._cache.watchers.add(*tracked)

    def _later_windows(self) -> Iterator[Req]:
        """The reqs after the first window, window by window: a new one begins where a req came more
        than `max_wait_s` after the first of the window. Ends when `MOST_LATER` of them have been
        passed over."""
        passed = 0
        while passed < MOST_LATER and (reqs := self._next_later(passed, MOST_LATER)):
            latest = reqs[0].arrival_s + self._max_wait_s
            window = {req.handle: req for req in reqs if req.arrival_s <= latest}
            watchers = Watchers()
            order = self._order_of(watchers)
            for req in window.values():
                self._cache.track(*req.tracked)
                watchers.add(*req.tracked)
                order.add(req)
            handles = list(order.handles())
            for req in window.values():
                watchers.remove(req.cursor)
            yield from (window[handle] for handle in handles)
            passed += sum(handle in self._later for handle in handles)
