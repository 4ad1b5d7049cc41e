"""The waiting queue and the order in which the scheduler tries to admit from it.

Policies (mission: cache-aware scheduling): `lpm` longest cached prefix first, which on a batch is
a depth-first visit of the radix tree and so optimal; `dfs-weight` visits the tree by the number of
waiting reqs below each branch; `fcfs`; `random`. Whatever the policy, a req that has waited longer
than `max_wait_s` goes before all that have not, oldest first: this bounds the wait that a stream
of better matches could otherwise cause.
"""

import random
from collections.abc import Callable, Iterator

from scheduler_proc.radix_cache import PrefixCache, TreeNode
from scheduler_proc.req import Req

POLICIES = ("lpm", "dfs-weight", "fcfs", "random")


class WaitingQueue:
    """Reqs that hold no memory, in arrival order; retracted reqs return to their old place."""

    def __init__(self, policy: str, max_wait_s: float, rng: random.Random) -> None:
        self._reqs: dict[int, Req] = {}  # by handle; sorted on demand
        self._max_wait_s = max_wait_s
        self._rng = rng
        self._order: Callable[[list[Req], PrefixCache], list[Req]] = {
            "lpm": _longest_prefix_first,
            "dfs-weight": _depth_first_by_weight,
            "fcfs": lambda reqs, cache: reqs,
            "random": lambda reqs, cache: self._rng.sample(reqs, len(reqs)),
        }[policy]

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs.values())

    def add(self, req: Req) -> None:
        self._reqs[req.handle] = req

    def remove(self, req: Req) -> None:
        del self._reqs[req.handle]

    def is_overdue(self, req: Req, now: float) -> bool:
        return now - req.arrival_s > self._max_wait_s

    def ordered(self, cache: PrefixCache, now: float) -> list[Req]:
        """All waiting reqs in the order of admission: overdue ones first, then by policy."""
        reqs = sorted(self._reqs.values(), key=lambda req: req.handle)
        overdue = [req for req in reqs if self.is_overdue(req, now)]
        others = [req for req in reqs if not self.is_overdue(req, now)]
        return overdue + self._order(others, cache)


def _longest_prefix_first(reqs: list[Req], cache: PrefixCache) -> list[Req]:
    lengths = {req.handle: cache.track(req.cursor, req.tokens, req.salt) for req in reqs}
    return sorted(reqs, key=lambda req: -lengths[req.handle])


def _depth_first_by_weight(reqs: list[Req], cache: PrefixCache) -> list[Req]:
    """Depth-first over the cached tree, at each node the branch with most waiting reqs first.

    A req's sort key is the sequence of (branch weight, branch) on its path, so comparing keys
    walks the tree. A req that ends at a node comes after those that go deeper: they hold it.
    """
    paths: dict[int, list[TreeNode]] = {}  # root first
    weights: dict[int, int] = {}
    for req in reqs:
        cache.track(req.cursor, req.tokens, req.salt)
        paths[req.handle] = list(req.cursor.path())[::-1]
        for node in paths[req.handle]:
            weights[node.uid] = weights.get(node.uid, 0) + 1

    def key(req: Req) -> tuple[tuple[int, int], ...]:
        steps = tuple((-weights[node.uid], node.uid) for node in paths[req.handle])
        return (*steps, (1, 0))

    return sorted(reqs, key=key)
