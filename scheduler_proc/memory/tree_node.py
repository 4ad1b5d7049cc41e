"""A node of the radix tree, for all that change the tree or walk its paths, and what calls of the
tree return."""

from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from scheduler_proc.media.spans import EdgeKey

NO_SLOTS = np.empty(0, np.int32)


class TreeNode(Struct, gc=False, eq=False):
    """The edge from `parent` to here (`key`, `slots`: int32 [n]) and what hangs below it.

    The parent reaches it by `edge`: its first token, or the digest of the item whose span begins
    with it. No span begins later on an edge.

    `end` is the length of the prefix that ends here, so the edge covers [start, end) of it.
    `hashes` are those of the blocks that end on the edge, if anybody asks for them.

    The garbage collector does not look at nodes, of which there may be a million, nor at dicts of
    them: a node has to leave its parent to be freed.
    """

    uid: int
    parent: "TreeNode | None"
    edge: EdgeKey
    key: np.ndarray
    slots: np.ndarray
    end: int = 0
    children: "dict[EdgeKey, TreeNode]" = field(default_factory=dict)  # the latest used comes last
    hashes: tuple[bytes, ...] = ()
    lock_ref: int = 0
    matched: int = 0  # prompts that have gone through it, for those who watch
    last_access: int = 0
    owner: str = ""  # the caller who used it last
    heap: str | None = None  # the caller in whose heap of leaves its entry is, perhaps a stale one

    def __post_init__(self) -> None:
        self.end = len(self.key) + (0 if self.parent is None else self.parent.end)

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def is_evictable(self) -> bool:
        """Whether it is a leaf of a tree, not locked."""
        return self.lock_ref == 0 and not self.children and self.parent is not None

    @property
    def start(self) -> int:
        return self.end - len(self.key)


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
