"""What a schedule could have reused at best: the offline optimum, and Belady's eviction.

Both look at the radix tree of all prompts. Its edges are cut wherever a prompt ends or branches
off, so that the same prompts use all tokens of an edge.
"""

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from bench.hit_rate.families import Prompt
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from scheduler_proc.memory.tree_node import TreeNode


class PromptTree:
    """The paths of some prompts through their common radix tree: `paths[i]` are the edges of the
    i-th prompt, the first tokens first; `lengths` are the edges' numbers of tokens."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        pool = TokenPool(sum(len(prompt) for prompt in prompts))
        tree = RadixCache(pool)
        for prompt in prompts:
            slots = pool.alloc(len(prompt))
            assert slots is not None
            tree.insert(prompt, slots)
        ends = [tree.match_prefix(prompt).node for prompt in prompts]  # cuts the edges
        self.paths = [_path(end) for end in ends]
        self.lengths = {node.uid: len(node.key) for node in tree.nodes()}

    @property
    def total(self) -> int:
        """Tokens of all prompts: what is computed without any reuse."""
        return sum(self.lengths[edge] for path in self.paths for edge in path)

    @property
    def distinct(self) -> int:
        """Tokens of all edges: the least that can be computed."""
        return sum(self.lengths.values())


def _path(node: TreeNode | None) -> list[int]:
    path = []
    while node is not None and node.parent is not None:
        path.append(node.uid)
        node = node.parent
    return path[::-1]


def belady_reuse(tree: PromptTree, events: Sequence[int], capacity: int, outputs: int) -> int:
    """Tokens that prompts would have found with Belady's eviction, under the same admissions.

    `events` are those of the run: `i` when the i-th prompt is admitted, `~i` when it has ended. In
    between, its tokens and `outputs` more are held; of the other tokens in a cache of `capacity`,
    those whose next use is furthest away are evicted first. Computing takes no time here.
    """
    return _Belady(tree, events, capacity, outputs).run()


class _Belady:
    def __init__(
        self, tree: PromptTree, events: Sequence[int], capacity: int, outputs: int
    ) -> None:
        self._lengths, self._paths = tree.lengths, tree.paths
        self._events = events
        self._free, self._outputs = capacity, outputs
        self._kept = dict.fromkeys(tree.lengths, 0)  # edge -> how many of its first tokens
        self._holders = dict.fromkeys(tree.lengths, 0)  # edge -> how many running prompts
        self._uses: dict[int, list[int]] = {
            edge: [] for edge in tree.lengths
        }  # the next at the end
        for at, event in reversed(list(enumerate(events))):
            for edge in self._paths[event] if event >= 0 else ():
                self._uses[edge].append(at)
        self._heap: list[tuple[float, int, int]] = []  # (-next use, -depth, edge)

    def run(self) -> int:
        hits = 0
        for event in self._events:
            if event >= 0:
                hits += self._admit(self._paths[event])
            else:
                self._end(self._paths[~event])
            self._evict()
        return hits

    def _admit(self, path: list[int]) -> int:
        hit = sum(self._kept[edge] for edge in path)  # no edge is kept without those above it
        for edge in path:
            self._free -= self._lengths[edge] - self._kept[edge]
            self._kept[edge] = self._lengths[edge]
            self._holders[edge] += 1
            self._uses[edge].pop()
        self._free -= self._outputs
        return hit

    def _end(self, path: list[int]) -> None:
        self._free += self._outputs
        for depth, edge in enumerate(path):
            self._holders[edge] -= 1
            heappush(self._heap, (-self._next_use(edge), -depth, edge))

    def _next_use(self, edge: int) -> float:
        return self._uses[edge][-1] if self._uses[edge] else math.inf

    def _evict(self) -> None:
        while self._free < 0 and self._heap:
            next_use, _, edge = entry = heappop(self._heap)
            if self._holders[edge] > 0 or -next_use != self._next_use(edge):
                continue  # another entry is added when it is given back
            gone = min(self._kept[edge], -self._free)
            self._kept[edge] -= gone
            self._free += gone
            if self._kept[edge] > 0:
                heappush(self._heap, entry)
