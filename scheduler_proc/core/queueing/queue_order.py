"""The orders in which the reqs of one window of the queue are admitted. An order is kept up to date
as reqs come and go and their matches change, and is always the one that a full sort would give.

`dfs-weight` is a walk over those nodes of the tree where matches end. The others keep their entries
sorted.
"""

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.match_trackers import Watchers
from scheduler_proc.memory.tree_node import TreeNode

MATCH_GRAIN = 16  # matches are compared in this many parts of a prompt
MOST_TOGETHER = 512  # entries of a long order that one more may move
POLICIES = ("lpm", "dfs-weight", "fcfs", "random", "app")
LATENCY_TURN = 0
_CLASSES = {"latency": LATENCY_TURN, "": 1, "throughput": 2}  # of hints, by their turn

# Of a req with hints: its class, when it is due, its application, its depth and group, and then as
# in `LongestPrefixFirst`: gain, negative, and handle.
_Hinted = tuple[int, float, str, int, str, int, int]
_Entry = TypeVar("_Entry", int, tuple[int, int], _Hinted)
_last = itemgetter(-1)


class _Sorted(Generic[_Entry]):
    """Sorted entries, in parts: of a hundred thousand, one comes or goes at little cost."""

    def __init__(self, entries: Sequence[_Entry] = ()) -> None:
        self._parts: list[list[_Entry]] = []  # none of them empty
        for first in range(0, len(entries), MOST_TOGETHER):
            self._parts.append(list(entries[first : first + MOST_TOGETHER]))

    def add(self, entry: _Entry) -> None:
        if not self._parts:
            self._parts.append([])
        number = self._part_of(entry)
        part = self._parts[number]
        insort(part, entry)
        if len(part) > MOST_TOGETHER:
            half = len(part) // 2
            self._parts[number : number + 1] = part[:half], part[half:]

    def remove(self, entry: _Entry) -> None:
        number = self._part_of(entry)
        part = self._parts[number]
        del part[bisect_left(part, entry)]
        if not part:
            del self._parts[number]

    def __iter__(self) -> Iterator[_Entry]:
        """All entries; some may come and go meanwhile. Copies no more than are read."""
        number, first = 0, 0
        while number < len(self._parts):
            part = self._parts[number][first:]
            yield from part
            number = bisect_right(self._parts, part[-1], key=_last)
            if number < len(self._parts):
                first = bisect_right(self._parts[number], part[-1])

    def _part_of(self, entry: _Entry) -> int:
        """The number of the part that has the entry, or would have it."""
        if len(self._parts) == 1:
            return 0
        return min(bisect_left(self._parts, entry, key=_last), len(self._parts) - 1)


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
        self._sorted = _Sorted[tuple[int, int]]()  # gain, negative, and handle
        self._keys: dict[int, tuple[int, int]] = {}  # by handle

    def add(self, req: Req) -> None:
        key = self._keys[req.handle] = -_gain(req), req.handle
        self._sorted.add(key)

    def remove(self, req: Req) -> None:
        self._sorted.remove(self._keys.pop(req.handle))

    def moved(self, req: Req) -> None:
        self.remove(req)
        self.add(req)

    def handles(self) -> Iterable[int]:
        return map(itemgetter(1), self._sorted)


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
        self._sorted = _Sorted[int]()

    def add(self, req: Req) -> None:
        self._sorted.add(req.handle)

    def remove(self, req: Req) -> None:
        self._sorted.remove(req.handle)

    def moved(self, req: Req) -> None:
        pass

    def handles(self) -> Iterable[int]:
        return self._sorted


class ByApplication:
    """What hints ask for: classes by their turn; in one, by the time when it is due, which is
    `max_wait_s` after its application came or sooner; of an application the deepest first, and
    groups together; last, the longest match as in `LongestPrefixFirst`.

    The reqs without hints are as one application of the middle class, which came when the oldest of
    them that waits did: among each other they are in the order of `LongestPrefixFirst`, and until
    the first req with hints comes nothing else is done.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._plain = LongestPrefixFirst()
        self._plain_reqs: dict[int, Req] = {}  # by handle
        self._oldest: _Sorted[int] | None = None  # their handles; None until a req has hints
        self._hinted = _Sorted[_Hinted]()
        self._keys: dict[int, _Hinted] = {}  # by handle

    def add(self, req: Req) -> None:
        hints = req.wish.hints
        if hints is None:
            self._plain.add(req)
            self._plain_reqs[req.handle] = req
            if self._oldest is not None:
                self._oldest.add(req.handle)
            return
        if self._oldest is None:
            self._oldest = _Sorted(sorted(self._plain_reqs))
        due_s = (hints.arrival_s or req.arrival_s) + self._max_wait_s
        due_s = min(due_s, hints.due_s or due_s)
        of_app = hints.app, -hints.depth, hints.group
        key = (_CLASSES[hints.perf], due_s, *of_app, -_gain(req), req.handle)
        self._keys[req.handle] = key
        self._hinted.add(key)

    def remove(self, req: Req) -> None:
        if req.wish.hints is None:
            self._plain.remove(req)
            del self._plain_reqs[req.handle]
            if self._oldest is not None:
                self._oldest.remove(req.handle)
        else:
            self._hinted.remove(self._keys.pop(req.handle))

    def moved(self, req: Req) -> None:
        if req.wish.hints is None:
            self._plain.moved(req)
        else:
            self.remove(req)
            self.add(req)

    def handles(self) -> Iterable[int]:
        return self._merged() if self._keys else self._plain.handles()

    def _merged(self) -> Iterator[int]:
        is_passed = False
        for key in self._hinted:
            if not is_passed and self._are_plain_before(key):
                is_passed = True
                yield from self._plain.handles()
            yield key[-1]
        if not is_passed:
            yield from self._plain.handles()

    def _are_plain_before(self, key: _Hinted) -> bool:
        """Whether those without hints come before the req with this key."""
        oldest = next(iter(self._oldest or ()), None)
        if oldest is None:
            return False
        due_s = self._plain_reqs[oldest].arrival_s + self._max_wait_s
        return (_CLASSES[""], due_s) < key[:2]


class AtRandom(ByArrival):
    """A new random order at each look."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def handles(self) -> Iterable[int]:
        handles = list(self._sorted)
        return self._rng.sample(handles, len(handles))


def _gain(req: Req) -> int:
    """Its match in tokens, without what is too little to count."""
    length = req.cursor.length
    return length - length % max(1, req.tokens.known_len // MATCH_GRAIN)


def order_of(policy: str, watchers: Watchers, rng: random.Random, max_wait_s: float) -> Order:
    """A new, empty order. Raises KeyError if there is no such policy."""
    makers: dict[str, Callable[[], Order]] = {
        "lpm": LongestPrefixFirst,
        "dfs-weight": lambda: DepthFirstByWeight(watchers),
        "fcfs": ByArrival,
        "random": lambda: AtRandom(rng),
        "app": lambda: ByApplication(max_wait_s),
    }
    return makers[policy]()


def hint_turn(policy: str) -> Callable[[Req], int]:
    """The class of a req's hints by its turn; that of no class where the policy does not read
    hints."""
    if policy != "app":
        return lambda req: _CLASSES[""]
    return lambda req: _CLASSES["" if req.wish.hints is None else req.wish.hints.perf]


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
