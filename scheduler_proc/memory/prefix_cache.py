"""What the scheduler needs of a prefix cache, and the cache that keeps nothing.

The other implementation is `radix_cache`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from scheduler_proc.media.spans import NO_SPANS, Spans
from scheduler_proc.memory.block_hashes import BlockHashes
from scheduler_proc.memory.match_trackers import Cursor, Watchers
from scheduler_proc.memory.tree_node import TreeNode

NO_SLOTS = np.empty(0, np.int32)


class Match(NamedTuple):
    """A cached prefix: the node where it ends and its slots, int32 [length]."""

    node: TreeNode
    slots: np.ndarray

    @property
    def length(self) -> int:
        return len(self.slots)


class Inserted(NamedTuple):
    """What `insert` did: of the given tokens, the first `existing` were in the tree before.

    `slots` are the tree's slots for all of them: equal to the caller's from `existing` on, and the
    tree's own before. `owned` is how many of the slots now belong to the tree.
    """

    node: TreeNode
    existing: int
    owned: int
    slots: np.ndarray


class PrefixCache(Protocol):
    """What the scheduler needs of a prefix cache. `match_len`, `track` and `following` change
    nothing."""

    enabled: bool
    evictable_size: int
    protected_size: int
    evicted_total: int
    watchers: Watchers
    hashes: BlockHashes | None

    def match_len(self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS) -> int: ...
    def track(
        self, cursor: Cursor, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS
    ) -> int: ...
    def following(self, cursor: Cursor, most: int) -> np.ndarray: ...
    def match_prefix(
        self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS
    ) -> Match: ...
    def want(self, cursors: Sequence[Cursor]) -> None: ...
    def also_want(self, cursor: Cursor) -> None: ...
    def insert(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        salt: str = "",
        own: TreeNode | None = None,
        spans: Spans = NO_SPANS,
    ) -> Inserted: ...
    def inc_lock_ref(self, node: TreeNode) -> None: ...
    def dec_lock_ref(self, node: TreeNode) -> None: ...
    def evict(self, n: int) -> int: ...
    def nodes(self) -> Iterator[TreeNode]: ...
    def roots(self) -> list[TreeNode]: ...
    def unused(self, node: TreeNode) -> int: ...
    @property
    def clock(self) -> int: ...


class NoCache:
    """`--disable-radix-cache`: nothing is ever found or kept; reqs own and free their slots."""

    enabled = False

    def __init__(self) -> None:
        self.evictable_size = 0
        self.protected_size = 0
        self.evicted_total = 0
        self.watchers = Watchers()
        self.hashes: BlockHashes | None = None
        self._root = TreeNode(0, None, 0, NO_SLOTS, NO_SLOTS)

    def match_len(self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS) -> int:
        return 0

    def track(
        self, cursor: Cursor, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS
    ) -> int:
        return 0

    def following(self, cursor: Cursor, most: int) -> np.ndarray:
        return NO_SLOTS

    def match_prefix(self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS) -> Match:
        return Match(self._root, NO_SLOTS)

    def want(self, cursors: Sequence[Cursor]) -> None:
        pass

    def also_want(self, cursor: Cursor) -> None:
        pass

    def insert(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        salt: str = "",
        own: TreeNode | None = None,
        spans: Spans = NO_SPANS,
    ) -> Inserted:
        return Inserted(self._root, 0, 0, slots)

    def inc_lock_ref(self, node: TreeNode) -> None:
        pass

    def dec_lock_ref(self, node: TreeNode) -> None:
        pass

    def evict(self, n: int) -> int:
        return 0

    def nodes(self) -> Iterator[TreeNode]:
        return iter(())

    def roots(self) -> list[TreeNode]:
        return []

    def unused(self, node: TreeNode) -> int:
        return 0

    @property
    def clock(self) -> int:
        return 0
