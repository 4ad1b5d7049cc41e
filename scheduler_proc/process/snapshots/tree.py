"""The largest parts of the radix tree, for whoever watches it.

How many tokens hang below a node is not kept by the tree. A pass counts them from the leaves up and
keeps the nodes with most of them: each look goes on with it for so many nodes, so that it costs the
same however large the tree is. A tree of up to `PORTION` nodes is seen as it is; of a larger one
a look shows what the last pass has found, of what still exists, with locks and uses as of now.
"""

from heapq import heappush, heapreplace
from typing import NamedTuple

from scheduler_proc.memory.radix_cache import RadixCache
from scheduler_proc.memory.tree_node import TreeNode

SHOWN = 1000  # nodes of a look
PORTION = 2000  # nodes that a look goes on by


class NodeView(NamedTuple):
    """A node that is shown: its edge's `tokens` from position `start` of the prompt on, below the
    node `parent` (0: at the beginning). `locks` running requests hold it; `below` tokens
    are in it and all that hangs below it. `matched` counts how often a prompt has gone through it,
    and `unused` the matches of all prompts since then; -1 if a waiting request is going to.
    `space` is the same number for all nodes of one salt."""

    uid: int
    parent: int
    start: int
    tokens: int
    locks: int
    unused: int
    matched: int
    below: int
    space: int


class TreeView(NamedTuple):
    """The nodes with most tokens below them, those first. `tokens` are cached in all; `is_whole`
    says whether all nodes are shown."""

    nodes: list[NodeView]
    tokens: int
    is_whole: bool


class _Open:
    """A node of which not all children have been counted."""

    __slots__ = ("below", "children", "node")

    def __init__(self, node: TreeNode) -> None:
        self.node, self.below = node, len(node.key)
        self.children = list(node.children.values())


class _Pass:
    """One walk through the tree, from the leaves up. What changes behind it is missed."""

    def __init__(self, cache: RadixCache) -> None:
        self._roots = cache.roots()
        self._path: list[_Open] = []
        self._largest: list[tuple[int, int, TreeNode]] = []  # a heap: tokens below, uid
        self.count = 0

    def go_on(self, num_nodes: int) -> bool:
        """Count so many nodes more; whether these were the last."""
        path = self._path
        while num_nodes > 0:
            if not path:
                if not self._roots:
                    return True
                path.append(_Open(self._roots.pop()))
            top = path[-1]
            if top.children:
                path.append(_Open(top.children.pop()))
                continue
            path.pop()
            num_nodes -= 1
            if path:
                path[-1].below += top.below
                self._keep(top)
        return not path and not self._roots

    def _keep(self, counted: _Open) -> None:
        self.count += 1
        entry = counted.below, -counted.node.uid, counted.node
        if len(self._largest) < SHOWN:
            heappush(self._largest, entry)
        elif entry > self._largest[0]:
            heapreplace(self._largest, entry)

    def found(self) -> list[tuple[int, TreeNode]]:
        """The nodes with most tokens below them, those first. A node comes before its children."""
        return [(below, node) for below, _, node in sorted(self._largest, reverse=True)]


class TreeViews:
    """Looks at one cache. Called between changes of the tree."""

    def __init__(self, cache: RadixCache) -> None:
        self._cache = cache
        self._pass: _Pass | None = None
        self._found: list[tuple[int, TreeNode]] | None = None  # of the last whole pass
        self._count = 0  # nodes of it

    def look(self) -> TreeView:
        """What is known now."""
        going = self._pass or _Pass(self._cache)
        self._pass = going
        if going.go_on(PORTION):
            self._found, self._count, self._pass = going.found(), going.count, None
        is_first = self._found is None
        found = going.found() if self._found is None else self._found
        nodes = self._views(found)
        tokens = self._cache.evictable_size + self._cache.protected_size
        return TreeView(nodes, tokens, not is_first and len(nodes) == self._count)

    def shown(self, uid: int) -> TreeNode | None:
        """A node that may have been in a look, unless it has been evicted."""
        found = self._found or (self._pass.found() if self._pass else [])
        for _, node in found:
            if node.uid == uid and node.parent is not None:
                return node
        return None

    def _views(self, found: list[tuple[int, TreeNode]]) -> list[NodeView]:
        spaces: dict[int, int] = {}
        views = []
        for below, node in found:
            above = node.parent
            if above is None:  # evicted
                continue
            while above.parent is not None and above.uid not in spaces:
                above = above.parent
            parent = 0 if above.parent is None else above.uid
            spaces[node.uid] = space = spaces[parent] if parent else above.uid
            views.append(
                NodeView(
                    node.uid,
                    parent,
                    node.start,
                    len(node.key),
                    node.lock_ref,
                    self._cache.unused(node),
                    node.matched,
                    max(below, len(node.key)),
                    space,
                )
            )
        return views
