"""What callers hold of something that is bounded, and who gives way when all of it is taken.

For sessions, gets, bodies, waiting texts: whatever is held for a while and can be given up. (Where
jobs only wait for their turn, `srt.fair_queue` has the order.) Invariant: where every item may give
way, a caller that would have no more than an equal part of the bound, counting all callers that
hold something and itself, is never refused, whatever the others hold. Nobody gives way in vain, nor
to one who would have as much or more, so two callers never take turns in ending each other's.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, Literal, TypeVar

Holder = TypeVar("Holder")
Item = TypeVar("Item")

# Whose bound is reached: no one's, the caller's own, or that of the server.
Full = Literal["", "caller", "server"]


def newest_first(items: Collection[Item]) -> Iterable[Item]:
    """The order in which a caller's items give way: all, the newest first."""
    return reversed(list(items))


class Shares(Generic[Holder, Item]):
    """Items that callers hold, each of some units; `bound` units of all, `bound_of_one` of one.

    Without room, the caller that holds most gives way, item by item: `order` says, of one caller's
    items from the oldest to the newest, which ones may, and which first. Each is removed, and
    `give_way` is called with it, which must not take anything here, but may give back others. If it
    `takes_any`, an item that is above a bound by itself is taken while its caller, and all others,
    hold nothing. With `leaves_rest`, for what rarely gives way, a caller that holds something gets
    no more than what is left to the others: so there is a rest for the next one.
    """

    def __init__(
        self,
        bound: int,
        bound_of_one: int | None = None,
        *,
        give_way: Callable[[Item], object],
        order: Callable[[Collection[Item]], Iterable[Item]] = newest_first,
        takes_any: bool = False,
        leaves_rest: bool = False,
    ) -> None:
        self._bound = bound
        self._bound_of_one = bound if bound_of_one is None else bound_of_one
        self._give_way, self._order = give_way, order
        self._takes_any, self._leaves_rest = takes_any, leaves_rest
        self._items: dict[Holder, dict[Item, int]] = {}  # units, by item; without empty ones
        self._held: dict[Holder, int] = {}
        self._holders: dict[Item, Holder] = {}
        self.total = 0

    def __contains__(self, item: Item) -> bool:
        return item in self._holders

    def held(self, holder: Holder) -> int:
        """The units that a caller holds."""
        return self._held.get(holder, 0)

    def full(self, holder: Holder, more: int) -> Full:
        """Whose bound does not let a caller take `more` units, even if others give way."""
        mine = self.held(holder) + more
        if mine > self._bound_of_one and not (self._takes_any and mine == more):
            return "caller"
        if self._leaves_rest and more < mine > self._bound - self.total:
            return "caller"
        return "server" if self._leaving(holder, more) is None else ""

    def take(self, holder: Holder, item: Item, more: int = 1) -> Full:
        """Give a caller `more` units for an item, which it may hold already. Others give way where
        they must. If a bound does not allow it, nothing happens, and its name is returned."""
        full = self.full(holder, more)
        if full:
            return full
        for leaving in self._leaving(holder, more) or ():
            if leaving in self:  # it may have gone with one before it
                self.give_back(leaving)
                self._give_way(leaving)
        self._add(holder, item, more)
        return ""

    def put(self, holder: Holder, item: Item, units: int) -> None:
        """Count an item with this many units for this caller from now on, whatever the bounds and
        whoever held it before."""
        self.give_back(item)
        self._add(holder, item, units)

    def give_back(self, item: Item, units: int | None = None) -> None:
        """Give back all of an item, or some of its units. One that is not held, because it has
        given way, is ignored."""
        holder = self._holders.get(item)
        if holder is None:
            return
        items = self._items[holder]
        units = items[item] if units is None else units
        items[item] -= units
        self._held[holder] -= units
        self.total -= units
        if not items[item]:
            del items[item], self._holders[item]
        if not items:
            del self._items[holder], self._held[holder]

    def _add(self, holder: Holder, item: Item, more: int) -> None:
        items = self._items.setdefault(holder, {})
        items[item] = items.get(item, 0) + more
        self._holders[item] = holder
        self._held[holder] = self.held(holder) + more
        self.total += more

    def clear(self) -> None:
        """Give back everything."""
        self._items.clear()
        self._held.clear()
        self._holders.clear()
        self.total = 0

    def _leaving(self, holder: Holder, more: int) -> list[Item] | None:
        """The items of others that give way for `more` units; None if too few may."""
        mine, lacking = self.held(holder) + more, self.total + more - self._bound
        if lacking <= 0 or (self._takes_any and not self.total):
            return []
        others = [one for one in self._held if one != holder and self._held[one] > mine]
        largest = [(-self._held[one], number) for number, one in enumerate(others)]
        heapq.heapify(largest)
        orders: dict[int, Iterator[Item]] = {}
        leaving: list[Item] = []
        while lacking > 0 and largest and -largest[0][0] > mine:
            units, number = largest[0]
            items = self._items[others[number]]
            order = orders.setdefault(number, iter(self._order(items.keys())))
            item = next(order, None)
            if item is None:
                heapq.heappop(largest)
                continue
            leaving.append(item)
            lacking -= items[item]
            heapq.heapreplace(largest, (units + items[item], number))
        return leaving if lacking <= 0 else None
