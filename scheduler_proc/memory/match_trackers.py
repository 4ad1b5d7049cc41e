"""Finds the waiting reqs whose match a change of the radix tree may change, without looking at the
others.

The tree owns one and reports its changes. The queue adds the cursors of reqs after matching them,
and takes those that must be matched again. Invariant: an added cursor is stored at the place where
its match ends, by the token that would lengthen it, or is among those that moved.
"""

from collections.abc import Iterator

import numpy as np

from scheduler_proc.media.spans import NO_SPANS, EdgeKey, Spans
from scheduler_proc.memory.tree_node import TreeNode

NO_TOKEN = -1  # follows a match that is the whole prompt

# Of a node by its uid, or of matches of length 0 by their salt.
Home = int | str


class Cursor:
    """Where a waiting req's match ended, so that the next look at it costs O(1), not O(length).

    Valid as long as its node is in the tree, whose tokens then begin with the match: an edge may be
    split or grow, but one that loses its tail becomes another node. `track` checks that.
    """

    __slots__ = ("handle", "length", "next_token", "node", "spot")

    def __init__(self, handle: int = -1) -> None:
        """`handle` is that of its req."""
        self.handle = handle
        self.node: TreeNode | None = None
        self.length = 0
        self.spot: Spot | None = None  # among the watchers, if it is one
        self.next_token: EdgeKey = NO_TOKEN

    def current(self) -> TreeNode | None:
        """The node on whose edge the match ends now; None if the match has to begin anew."""
        node = self.node if self.spot is None else self.spot.node
        if node is None or node.parent is None:
            return None
        while self.length <= node.start and node.parent is not None:
            node = node.parent  # split off since
        return node

    def path(self) -> Iterator[TreeNode]:
        """The nodes of the match, from its end up to the root (excluded)."""
        node = self.node
        while node is not None and node.parent is not None:
            yield node
            node = node.parent


class Spot:
    """A place where matches end: `length` tokens from the root, on the edge of a node or at a root.
    `groups` are the cursors by their next token. They need not know their nodes themselves: where
    an edge is split there may be thousands of them."""

    __slots__ = ("_handles", "groups", "home", "length", "node")

    def __init__(self, home: Home, length: int, node: TreeNode | None) -> None:
        self.home = home
        self.length = length
        self.node = node
        self.groups: dict[EdgeKey, dict[Cursor, None]] = {}
        self._handles: list[int] | None = None  # None: not known since the last change

    @property
    def handles(self) -> list[int]:
        """Those of the cursors, sorted."""
        if self._handles is None:
            self._handles = sorted(cursor.handle for cursor in self)
        return self._handles

    def add(self, cursor: Cursor) -> None:
        self._handles = None
        self.groups.setdefault(cursor.next_token, {})[cursor] = None

    def remove(self, cursor: Cursor) -> None:
        self._handles = None
        group = self.groups[cursor.next_token]
        del group[cursor]
        if not group:
            del self.groups[cursor.next_token]

    def take(self, token: EdgeKey) -> list[Cursor]:
        """Remove the group of `token`; returns its cursors."""
        self._handles = None
        return list(self.groups.pop(token, ()))

    def __iter__(self) -> Iterator[Cursor]:
        for group in self.groups.values():
            yield from group


class Watchers:
    """Cursors by place, and those that have moved."""

    def __init__(self) -> None:
        self._homes: dict[Home, dict[int, Spot]] = {}  # spots by length
        self.moved: dict[Cursor, None] = {}  # the last of them is the next to be taken

    def add(self, cursor: Cursor, tokens: np.ndarray, salt: str, spans: Spans = NO_SPANS) -> None:
        """From now on, `cursor` is reported if the match of `tokens` may have changed."""
        node, length = cursor.node, cursor.length
        home: Home = salt if node is None or node.parent is None else node.uid
        spots = self._homes.setdefault(home, {})
        if length not in spots:
            spots[length] = Spot(home, length, node)
        cursor.spot = spots[length]
        cursor.next_token = spans.key(tokens, length) if length < len(tokens) else NO_TOKEN
        cursor.spot.add(cursor)

    def remove(self, cursor: Cursor) -> None:
        """From now on, `cursor` is not reported."""
        self.moved.pop(cursor, None)
        spot = cursor.spot
        if spot is None:
            return
        cursor.node, cursor.spot = spot.node, None
        spot.remove(cursor)
        self._drop_if_empty(spot)

    def take_moved(self, most: int) -> list[Cursor]:
        """Up to `most` of the cursors that must be tracked and added again, those that have moved
        last first."""
        return [self.moved.popitem()[0] for _ in range(min(most, len(self.moved)))]

    def spots(self) -> Iterator[tuple[Home, list[Spot]]]:
        """All places, by home."""
        for home, spots in self._homes.items():
            yield home, list(spots.values())

    # ---- changes of the tree -------------------------------------------------------------------

    def lengthened(self, home: Home, length: int, token: EdgeKey) -> None:
        """After `length` tokens there is a `token` now, or an item, that was not there."""
        spot = self._homes.get(home, {}).get(length)
        if spot is not None and token in spot.groups:
            self._move(spot.take(token), spot.node)
            self._drop_if_empty(spot)

    def split(self, node: TreeNode, upper: TreeNode) -> None:
        """The beginning of the edge to `node` is now the edge to `upper`."""
        spots = self._homes.get(node.uid)
        if spots is None:
            return
        for length in [length for length in spots if length <= upper.end]:
            spot = spots.pop(length)
            spot.home, spot.node = upper.uid, upper
            self._homes.setdefault(upper.uid, {})[length] = spot
        if not spots:
            del self._homes[node.uid]

    def removed(self, node: TreeNode) -> None:
        """The edge to `node` is gone."""
        for spot in self._homes.pop(node.uid, {}).values():
            self._move(list(spot), spot.node)

    def _move(self, cursors: list[Cursor], node: TreeNode | None) -> None:
        for cursor in reversed(cursors):
            cursor.node, cursor.spot = node, None
            self.moved[cursor] = None

    def _drop_if_empty(self, spot: Spot) -> None:
        if spot.groups:
            return
        spots = self._homes[spot.home]
        del spots[spot.length]
        if not spots:
            del self._homes[spot.home]
