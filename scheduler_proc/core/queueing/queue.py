"""The waiting queue and the order in which the scheduler tries to admit from it.

Policies: `lpm` longest cached prefix first, which on a batch is a depth-first visit of the radix
tree and so optimal; `dfs-weight` visits the tree by the number of waiting reqs below each branch;
`fcfs`; `random`; `app` by applications, as hints name them. Whatever the policy:

* Reqs that have been admitted before (retracted, or begun by a scheduler that was lost) come first,
  oldest first.
* Callers with credit left come before those without (`Credits`). Of each caller, and so of all
  while only one waits:
* No req comes after one that arrived more than `max_wait_s` later. The policy orders the reqs
  that arrived within `max_wait_s` of the oldest; then, of what is left, those within `max_wait_s`
  of the oldest of these; and so on. As the oldest is admitted, the next one's time begins: the
  bound moves with the queue, and a batch that came at once is the policy's as a whole, however long
  it waits. Only the class `latency` of the policy `app` passes all others (`Overtaking`).

A look costs what has changed since the one before: the first window's order is kept, and the tree
says whose match has changed. Later windows are ordered when they are reached. Of a long queue a
look takes over only so many changes, and the looks after it the rest: until then some reqs have the
places of their matches before, or are still behind the window; what its hints call urgent is not.

Of callers with classes or priorities, `Classes` says which req takes a turn that the queue gives.
Each caller has windows of its own; the first ones of all have one order, which a look reads again
as often as it refills credit. So a caller's credit ends in the midst of a look, and to pass over
its reqs costs a little for each.
"""

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import chain, islice

from scheduler_proc.core.queueing.classes import Classes
from scheduler_proc.core.queueing.lanes import Lane, Lanes
from scheduler_proc.core.queueing.overtaking import Overtaking
from scheduler_proc.core.queueing.queue_order import (
    LongestPrefixFirst,
    Order,
    hint_turn,
    order_of,
)
from scheduler_proc.core.requests.request import Req
from scheduler_proc.fairness.credits import Credits
from scheduler_proc.memory.match_trackers import Cursor, Watchers
from scheduler_proc.memory.radix_cache import RadixCache

RENEWALS = 16  # of the marks in the cache, while the queue changes as a whole
MOST_LATER = 256  # reqs after the first window that a look reaches and that are not admitted
MATCHED, MARKED = 64, 128  # reqs at a look, so that it takes one or two milliseconds


class WaitingQueue:
    """Reqs that hold no memory. They arrive in order; those that were admitted before come back at
    any time. All of their callers have an account among the `credits`."""

    def __init__(
        self,
        policy: str,
        max_wait_s: float,
        rng: random.Random,
        cache: RadixCache,
        credits: Credits,
    ) -> None:
        self._order_of = partial(order_of, policy, rng=rng, max_wait_s=max_wait_s)
        self.overtaking = Overtaking(max_wait_s, has_classes=policy == "app")
        self._cache = cache
        self.credits = credits
        self.classes = Classes(self._order_in_class(policy), hint_turn(policy), max_wait_s, cache)
        self._lanes = Lanes()
        self._window: dict[int, Req] = {}  # those in the windows of all, by handle
        self._order = self._order_of(cache.watchers)  # of these
        self._changes = 0  # since the marking of all that is wanted in the cache began
        self._marking: Iterator[None] | None = None  # what is left of it

    def __len__(self) -> int:
        return self._lanes.total

    def __iter__(self) -> Iterator[Req]:
        lanes = self._lanes.values()
        windows = chain.from_iterable(lane.in_window() for lane in lanes)
        later = chain.from_iterable(lane.later.values() for lane in lanes)
        return chain(self._resumed(), windows, later)

    @property
    def callers(self) -> Collection[str]:
        """Those whose reqs wait."""
        return self._lanes.keys()

    def oldest_s(self, caller: str) -> float:
        """When the first of a waiting caller's reqs came that have not been admitted before; that
        of the others, if there are none."""
        lane = self._lanes[caller]
        return (lane.oldest() or next(iter(lane.resumed.values()))).arrival_s

    def has_first(self, caller: str) -> bool:
        """Whether reqs of other callers wait that may go before one of this caller which has been
        admitted before: others such, or the class `latency`."""
        if self.overtaking.waits_of_others(caller):
            return True
        return any(lane.resumed for name, lane in self._lanes.items() if name != caller)

    def add(self, req: Req) -> None:
        self._changes += 1
        self.overtaking.add(req)
        lane = self._lanes.add(req.wish.caller)
        self.classes.add(req, lane.in_order())
        if req.is_admitted or req.is_resumed:
            lane.resumed[req.handle] = req
        elif self.overtaking.may_hurry(req, lane):
            lane.hurried[req.handle] = req
            self._enter_window(req)  # however many are to be taken over before it
            self._cache.also_want(req.cursor)
        else:
            lane.later[req.handle] = lane.untracked[req.handle] = req

    def remove(self, req: Req) -> None:
        self._changes += 1
        if req.handle in self._window:
            del self._window[req.handle]
            self._order.remove(req)
            self._cache.watchers.remove(req.cursor)
        lane = self._lanes[req.wish.caller]
        self._lanes.remove(req)
        self.classes.remove(req)
        if len(self) == 0:
            self._marking = None
        self.overtaking.remove(req, lane)

    def ordered(self, now: float = 0.0, *, by_credit: bool = True) -> Iterable[Req]:
        """The waiting reqs in the order of admission: the first windows' as of `now`, those of
        later windows as of when they are reached. Reports to the cache what they have matched.
        Unless it is `by_credit`, callers' credit is neither looked at nor refilled."""
        self._refresh()
        resumed = sorted(self._resumed(), key=lambda req: req.handle)
        is_one = len(self._lanes) <= 1
        first = self.overtaking.order(resumed, self._in_windows)
        order: Iterable[Req] = chain(first, self._later_windows(self._lanes))
        if self._marking is None and self._changes * RENEWALS >= len(self):
            self._changes = 0
            later = [lane.next_later(0, MARKED) for lane in self._lanes.values()]
            marked: Iterable[Req] = chain(resumed, self._in_windows(), chain.from_iterable(later))
            if is_one and len(self) <= MARKED:
                order = marked = list(order)  # before edges are split where later matches end
            self._marking = self._cache.want(self._cursors(marked), at_once=0)
        if self._marking is not None and len(list(islice(self._marking, MARKED))) < MARKED:
            self._marking = None
        if is_one or not by_credit:
            return self.classes.in_turn(order, now)
        return self.classes.in_turn(
            self._by_credit(resumed), now, lambda caller: self.credits.left(caller) > 0.0
        )

    def _by_credit(self, resumed: list[Req]) -> Iterator[Req]:
        """The waiting reqs of callers with credit left, as of when they are reached; then, after a
        refill, of those who have some by it, and so on."""
        credits, passed = self.credits, set[int]()
        left = {caller: len(lane) for caller, lane in self._lanes.items()}  # not reached yet
        while left:
            able = credits.able(left)
            begun = set(able)
            lanes = [caller for caller in self._lanes if caller in able]  # a set has no order
            before = [req for req in resumed if req.wish.caller in able]
            first = self.overtaking.order(before, partial(self._in_windows, able))
            for req in chain(first, self._later_windows(lanes)):
                caller = req.wish.caller
                if caller not in able or req.handle in passed:
                    continue
                passed.add(req.handle)
                left[caller] -= 1
                yield req
                if credits.left(caller) <= 0.0:
                    able.discard(caller)
                    if not able:
                        break
            for caller in begun:  # of those who still have credit, nothing more can be reached
                if caller in able or left[caller] == 0:
                    del left[caller]

    def _resumed(self) -> Iterator[Req]:
        return chain.from_iterable(lane.resumed.values() for lane in self._lanes.values())

    def _in_windows(self, callers: Collection[str] | None = None) -> Iterator[Req]:
        """The reqs of the first windows in order, those that wait when they are reached; those of
        certain `callers` only, if these are given."""
        for handle in self._order.handles():
            if (req := self._window.get(handle)) is not None:
                if callers is None or req.wish.caller in callers:
                    yield req

    def _cursors(self, reqs: Iterable[Req]) -> Iterator[Cursor]:
        """Those of the reqs that still wait, just tracked."""
        for req in reqs:
            if req.residency is None and req.finish is None:
                if req.handle not in self._window or req.cursor.spot is None:
                    self._cache.track(*req.tracked)
                yield req.cursor

    def _refresh(self) -> None:
        """Bring matches and the first windows up to date, as far as one look does."""
        cache, seen = self._cache, [*self._resumed()]
        for req in seen:
            cache.track(*req.tracked)
        moved = cache.watchers.take_moved(MATCHED)
        self._changes += len(moved)
        for cursor in moved:
            req = self._window[cursor.handle]
            self._watch(req)
            self._order.moved(req)
            seen.append(req)
        left = MATCHED
        for number, lane in enumerate(self._lanes.values()):
            most = min(left, max(1, left // (len(self._lanes) - number)))
            left -= self._take_over(lane, most, seen)
        for req in seen:
            cache.also_want(req.cursor)

    def _take_over(self, lane: Lane, most: int, seen: list[Req]) -> int:
        """Move up to `most` reqs into the lane's window, or match those that stay after it; returns
        how many. Those that had not been matched are added to `seen`."""
        left, latest_s = most, lane.latest_s(self.overtaking.max_wait_s)
        while left > 0:
            first = next(iter(lane.later.values()), None)
            if first is None or first.arrival_s > latest_s:
                break
            del lane.later[first.handle]
            lane.window[first.handle] = first
            self._enter_window(first)
            if lane.untracked.pop(first.handle, None) is not None:
                seen.append(first)
            left -= 1
        while lane.untracked and left > 0:
            _, req = lane.untracked.popitem()
            self._cache.track(*req.tracked)
            seen.append(req)
            left -= 1
        return most - left

    def _order_in_class(self, policy: str) -> Callable[[], Order]:
        """Makes the order of some reqs that need not be among the watchers."""
        if policy == "dfs-weight":  # a walk over these
            return LongestPrefixFirst
        return lambda: self._order_of(Watchers())

    def _enter_window(self, req: Req) -> None:
        self._window[req.handle] = req
        self._watch(req)
        self._order.add(req)

    def _watch(self, req: Req) -> None:
        """Match a req of a first window, and hear of what changes its match."""
        tracked = req.tracked
        self._cache.track(*tracked)
        self._cache.watchers.add(*tracked)

    def _later_windows(self, callers: Iterable[str]) -> Iterator[Req]:
        """The reqs of these callers after their first windows, as of when they are reached."""
        for caller in list(callers):
            if (lane := self._lanes.get(caller)) is not None:
                yield from self._later_windows_of(lane)

    def _later_windows_of(self, lane: Lane) -> Iterator[Req]:
        """The reqs after the first window, window by window: a new one begins where a req came more
        than `max_wait_s` after the first of the window. Ends when `MOST_LATER` of them have been
        passed over."""
        passed = 0
        while passed < MOST_LATER and (reqs := lane.next_later(passed, MOST_LATER)):
            latest = reqs[0].arrival_s + self.overtaking.max_wait_s
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
            passed += sum(handle in lane.later for handle in handles)
