"""The waiting queue and the order in which the scheduler tries to admit from it.

Policies: `lpm` longest cached prefix first, which on a batch is a depth-first visit of the radix
tree and so optimal; `dfs-weight` visits the tree by the number of waiting reqs below each branch;
`fcfs`; `random`. Whatever the policy:

* Reqs that have been admitted before (retracted ones) come first, oldest first.
* Nobody comes after a req that arrived more than `max_wait_s` later. The policy orders the reqs
  that arrived within `max_wait_s` of the oldest; then, of what is left, those within `max_wait_s`
  of the oldest of these; and so on. As the oldest is admitted, the next one's time begins: the
  bound moves with the queue, and a batch that came at once is the policy's as a whole, however long
  it waits.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain

from scheduler_proc.radix_cache import PrefixCache, TreeNode
from scheduler_proc.req import Req

MATCH_GRAIN = 16  # matches are told apart by so many parts of a prompt
POLICIES = ("lpm", "dfs-weight", "fcfs", "random")


class WaitingQueue:
    """Reqs that hold no memory. They arrive in order; retracted ones come back at any time."""

    def __init__(self, policy: str, max_wait_s: float, rng: random.Random) -> None:
        self._fresh: dict[int, Req] = {}  # by handle, in order of arrival
        self._resumed: dict[int, Req] = {}  # by handle: those that have been admitted before
        self._max_wait_s = max_wait_s
        self._rng = rng
        self._order: Callable[[list[Req]], list[Req]] = {
            "lpm": _longest_prefix_first,
            "dfs-weight": _depth_first_by_weight,
            "fcfs": lambda reqs: reqs,
            "random": lambda reqs: self._rng.sample(reqs, len(reqs)),
        }[policy]

    def __len__(self) -> int:
        return len(self._fresh) + len(self._resumed)

    def __iter__(self) -> Iterator[Req]:
        return chain(self._resumed.values(), self._fresh.values())

    def add(self, req: Req) -> None:
        (self._resumed if req.residency > 0 else self._fresh)[req.handle] = req

    def remove(self, req: Req) -> None:
        del (self._resumed if req.handle in self._resumed else self._fresh)[req.handle]

    def ordered(self, cache: PrefixCache) -> list[Req]:
        """All waiting reqs in the order of admission. Tells the cache what they have matched."""
        for req in self:
            cache.track(req.cursor, req.tokens, req.salt)
        order = sorted(self._resumed.values(), key=lambda req: req.handle)
        for window in self._windows():
            order += self._order(window)
        cache.want([req.cursor for req in order])
        return order

    def _windows(self) -> Iterator[list[Req]]:
        """The fresh reqs, cut where one came more than `max_wait_s` after the first of its part."""
        reqs = list(self._fresh.values())
        while reqs:
            latest = reqs[0].arrival_s + self._max_wait_s
            stop = bisect_right(reqs, latest, key=lambda req: req.arrival_s)
            yield reqs[:stop]
            reqs = reqs[stop:]


def _longest_prefix_first(reqs: list[Req]) -> list[Req]:
    """In order of arrival where the matches differ by little: a word that two prompts begin with
    saves nothing, and would let one pass the other all along the queue."""

    def gain(req: Req) -> int:
        return req.cursor.length - req.cursor.length % max(1, req.num_tokens // MATCH_GRAIN)

    return sorted(reqs, key=gain, reverse=True)


def _depth_first_by_weight(reqs: list[Req]) -> list[Req]:
    """Depth-first over the cached tree, at each node the branch with most waiting reqs first.

    A req's sort key is the sequence of (branch weight, branch) on its path, so comparing keys
    walks the tree. A req that ends at a node comes after those that go deeper: they hold it.
    """
    paths: dict[int, list[TreeNode]] = {}  # root first
    weights: dict[int, int] = {}
    for req in reqs:
        paths[req.handle] = list(req.cursor.path())[::-1]
        for node in paths[req.handle]:
            weights[node.uid] = weights.get(node.uid, 0) + 1

    def key(req: Req) -> tuple[tuple[int, int], ...]:
        steps = tuple((-weights[node.uid], node.uid) for node in paths[req.handle])
        return (*steps, (1, 0))

    return sorted(reqs, key=key)
