"""Whose tokens the tree holds, and so which leaf is evicted next.

A token belongs to the caller who used it last. A full pool gives up first what belongs to callers
above their share of the tree's tokens, which is that of their weight among the callers who have
used the tree lately; of all that these have, the leaf that was used least recently. Where they have
nothing that is not locked, and while there is one caller, that is plain LRU.

Each caller has a heap of leaves. It is lazy: an entry counts if the node names this heap as its
own, which it does from when it becomes an evictable leaf, and it is checked when it comes up
(`last_access` only grows, so a stale entry comes up too early, never too late). The first entries
of those above their share are in a heap too, lazy in the same way. Who is above is seen at each
eviction, or among many callers at one of many, so that its cost does not grow with them.
"""

import math
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from scheduler_proc.memory.tree_node import TreeNode

LATELY = 4096  # uses of the tree since a caller's last, after which it has no share
MOST_STALE = 64  # entries of a heap that do not count, and no more than there are nodes
SEEN_PER_EVICTION = 16  # callers, on average

_Entry = tuple[int, int, TreeNode]  # last_access, uid, leaf


class Owners:
    """The callers of one tree. `tokens` and `nodes`: how many belong to each; none has 0."""

    def __init__(self) -> None:
        self.tokens = Counter[str]()
        self.nodes = Counter[str]()
        self._heaps: dict[str, list[_Entry]] = {}
        self._weights: dict[str, float] = {}  # of those who used the tree lately, the last one last
        self._used: dict[str, int] = {}  # the number of their last use; in the same order
        self._uses = 0
        self._shares: dict[str, float] = {}  # in tokens, of those that were above it when last seen
        self._tops: list[tuple[int, int, str]] = []  # a heap: the first entries of these, by caller
        self._evictions = math.inf  # since then

    def use(self, caller: str, weight: float) -> None:
        """The caller uses the tree; `weight` is its share from now on."""
        self._uses += 1
        self._used.pop(caller, None)
        self._weights.pop(caller, None)
        self._used[caller], self._weights[caller] = self._uses, weight
        while self._uses - self._used[first := next(iter(self._used))] > LATELY:
            del self._used[first], self._weights[first]

    def add(self, node: TreeNode) -> None:
        """A node has come into the tree."""
        self.nodes[node.owner] += 1
        self.tokens[node.owner] += len(node.key)

    def remove(self, node: TreeNode) -> None:
        """It has left."""
        owner = node.owner
        self.nodes[owner] -= 1
        self.tokens[owner] -= len(node.key)
        if self.nodes[owner] == 0:
            del self.nodes[owner], self.tokens[owner]
            self._heaps.pop(owner, None)

    def take(self, node: TreeNode, caller: str) -> None:
        """A node of the tree belongs to this caller from now on."""
        if node.owner == caller:
            return
        self.remove(node)
        node.owner = caller
        self.add(node)
        if node.heap is not None:
            self.push(node)

    def push(self, node: TreeNode) -> None:
        """The node is an evictable leaf, or was when this was called before."""
        owner = node.owner
        if node.heap == owner:
            return
        node.heap = owner
        heap = self._heaps.setdefault(owner, [])
        if len(heap) > MOST_STALE + 2 * self.nodes[owner]:
            entries = {entry[1]: entry for entry in heap if entry[2].heap == owner}
            heap[:] = entries.values()
            heapify(heap)
        heappush(heap, (node.last_access, node.uid, node))
        if heap[0][2] is node and owner in self._shares:
            heappush(self._tops, (node.last_access, node.uid, owner))
            if len(self._tops) > MOST_STALE + 2 * len(self._shares):
                self._see({})
                self._evictions = math.inf

    def leaves(self) -> Iterator[TreeNode]:
        """The leaves in the order of eviction; each must be evicted, as a whole or its tail, before
        the next is asked for. Ends when nothing evictable is left."""
        self._evictions += 1
        if self._evictions * SEEN_PER_EVICTION > len(self.tokens):
            self._see(self.above_share())
        while (node := self._pop() or self._pop_anew()) is not None:
            yield node

    def above_share(self) -> dict[str, float]:
        """The shares, in tokens, of those callers that have more."""
        if len(self.tokens) <= 1:
            return dict.fromkeys(self.tokens, 0.0)
        weights = self._weights
        each = self.tokens.total() / (sum(weights.values()) or 1.0)
        shares = ((caller, each * weights.get(caller, 0.0)) for caller in self.tokens)
        return {caller: share for caller, share in shares if self.tokens[caller] > share}

    def _see(self, shares: dict[str, float]) -> None:
        """Evict from now on what these callers have above so many tokens."""
        tops = [(top, who) for who in shares if (top := self._top(who)) is not None]
        self._tops = [(last_access, uid, who) for (last_access, uid, _), who in tops]
        heapify(self._tops)
        self._shares, self._evictions = shares, 0

    def _pop_anew(self) -> TreeNode | None:
        """The next leaf, as of now: where nobody above its share has any, of all callers."""
        self._see(self.above_share())
        if (node := self._pop()) is None:
            self._see(dict.fromkeys(self.tokens, 0.0))
            node = self._pop()
            self._evictions = math.inf
        return node

    def _pop(self) -> TreeNode | None:
        """Take out the evictable leaf of those above their share that was used least recently; None
        if they have none."""
        tops = self._tops
        while tops:
            *at, caller = tops[0]
            is_above = self.tokens[caller] > self._shares.get(caller, math.inf)
            top = self._top(caller) if is_above else None
            if top is None:
                heappop(tops)
            elif [*top[:2]] != at:
                heapreplace(tops, (top[0], top[1], caller))
            else:
                heap = self._heaps[caller]
                _, _, node = heappop(heap)
                node.heap = None
                if heap:
                    heapreplace(tops, (heap[0][0], heap[0][1], caller))
                else:
                    heappop(tops)
                return node
        return None

    def _top(self, caller: str) -> _Entry | None:
        """The first entry of a heap that counts and holds; those before it are sorted in anew, or
        dropped."""
        heap = self._heaps.get(caller, [])
        while heap:
            last_access, _, node = entry = heap[0]
            if node.heap == caller and node.is_evictable and node.last_access == last_access:
                return entry
            heappop(heap)
            if node.heap == caller:
                node.heap = None
                if node.is_evictable:
                    self.push(node)
        return None
