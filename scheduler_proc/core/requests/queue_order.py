"""The orders in which the reqs of one window of the queue are admitted. An order is kept up to date
as reqs come and go and their matches change, and is always the one that a full sort would give.

`lpm` is kept as a sorted list. `dfs-weight` is a walk over those nodes of the tree where matches
end. `fcfs` and `random` keep nothing.
"""

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Protocol, TypeVar

from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.match_trackers import Watchers
from scheduler_proc.memory.tree_node import TreeNode

MATCH_GRAIN = 16  # matches are compared in this many parts of a prompt
PORTION = 128  # entries of a long order that are read at a time
POLICIES = ("lpm", "dfs-weight", "fcfs", "random")

_Entry = TypeVar("_Entry", int, tuple[int, int])


class Order(Protocol):
    """One policy's."""

    def add(self, req: Req) -> None:
        """It has come; its cursor is among the watchers of the tree."""

    def remove(self, req: Req) -> None:
        """It is gone."""

    def moved(self, req: Req) -> None:
        """Its match has changed."""

    def handles(self) -> Iterable[int]:
        """Those that were added, in order; those that are removed meanwhile may be left out."""


class LongestPrefixFirst:
    """Longest match first, but in order of arrival where matches differ by little: a shared word
    saves almost nothing, and must not let a req overtake the whole queue."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int]] = []  # gain, negative, and handle
        self._keys: dict[int, tuple[int, int]] = {}  # by handle

    def add(self, req: Req) -> None:
        length = req.cursor.length
        gain = length - length % max(1, req.tokens.known_len // MATCH_GRAIN)
        key = self._keys[req.handle] = -gain, req.handle
        insort(self._sorted, key)

    def remove(self, req: Req) -> None:
        del self._sorted[bisect_left(self._sorted, self._keys.pop(req.handle))]

    def moved(self, req: Req) -> None:
        self.remove(req)
        self.add(req)

    def handles(self) -> Iterable[int]:
        return map(itemgetter(1), _along(self._sorted))


class DepthFirstByWeight:
    """Depth-first over the cached tree, at each node the branch with most waiting reqs first, and
    after all branches the reqs that end at the node: the branches hold it. Reqs whose match has
    changed since it was looked for come last."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers

    def add(self, req: Req) -> None:
        pass  # it is among the watchers

    def remove(self, req: Req) -> None:
        pass

    def moved(self, req: Req) -> None:
        pass

    def handles(self) -> list[int]:
        ends: dict[int, list[int]] = {}  # by uid of the node where they end
        weights: dict[int, int] = {}
        branches: dict[int, list[TreeNode]] = {}  # by uid of the node above; 0 is all roots
        unmatched: list[int] = []
        for home, spots in self._watchers.spots():
            handles = sorted(chain.from_iterable(spot.handles for spot in spots))
            if isinstance(home, str):
                unmatched += handles
            else:
                ends[home] = handles
                end = spots[0].node
                assert end is not None
                _weigh(end, len(handles), weights, branches)
        order: list[int] = []
        todo: list[TreeNode | list[int]] = [sorted(unmatched)]
        todo += _heaviest_last(branches.get(0, []), weights)
        while todo:
            node = todo.pop()
            if isinstance(node, list):
                order += node
            else:
                todo.append(ends.get(node.uid, []))
                todo += _heaviest_last(branches.get(node.uid, []), weights)
        return order + sorted(cursor.handle for cursor in self._watchers.moved)


class ByArrival:
    """In order of arrival; keeps nothing else."""

    def __init__(self) -> None:
        self._sorted: list[int] = []

    def add(self, req: Req) -> None:
        insort(self._sorted, req.handle)

    def remove(self, req: Req) -> None:
        del self._sorted[bisect_left(self._sorted, req.handle)]

    def moved(self, req: Req) -> None:
        pass

    def handles(self) -> Iterable[int]:
        return _along(self._sorted)


class AtRandom(ByArrival):
    """A new random order at each look."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def handles(self) -> Iterable[int]:
        return self._rng.sample(self._sorted, len(self._sorted))


def order_of(policy: str, watchers: Watchers, rng: random.Random) -> Order:
    """A new, empty order. Raises KeyError if there is no such policy."""
    makers: dict[str, Callable[[], Order]] = {
        "lpm": LongestPrefixFirst,
        "dfs-weight": lambda: DepthFirstByWeight(watchers),
        "fcfs": ByArrival,
        "random": lambda: AtRandom(rng),
    }
    return makers[policy]()


def _along(entries: list[_Entry]) -> Iterator[_Entry]:
    """Sorted entries, of which some may be removed meanwhile: without a copy of a long list, of
    which a look needs the beginning."""
    at = 0
    while part := entries[at : at + PORTION]:
        yield from part
        at = bisect_right(entries, part[-1])


def _weigh(
    node: TreeNode, count: int, weights: dict[int, int], branches: dict[int, list[TreeNode]]
) -> None:
    """Count this many reqs at every node from here to the root, and list these nodes by parent."""
    while node.parent is not None:
        parent = node.parent
        if node.uid not in weights:
            weights[node.uid] = 0
            branches.setdefault(0 if parent.is_root else parent.uid, []).append(node)
        weights[node.uid] += count
        node = parent


def _heaviest_last(nodes: list[TreeNode], weights: dict[int, int]) -> list[TreeNode]:
    return sorted(nodes, key=lambda node: (-weights[node.uid], node.uid), reverse=True)
