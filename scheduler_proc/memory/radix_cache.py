"""RadixAttention's prefix cache: a radix tree from token ids to the KV slots that hold them.

An edge is a run of token ids and carries as many slots; the pool's page is one token, so an edge
may be split anywhere and no KV is ever copied. The scheduler owns the tree and is its only caller.
Where the span of a picture begins, so does an edge, which its parent reaches by the item's digest:
two pictures' KV cannot be taken for one another's, whatever the placeholder ids in their spans.

Rules that the rest of the scheduler relies on:
* Only tokens whose KV has been computed are in the tree.
* A running req locks the node where its prefix ends; a lock counts on every node up to the root,
  so `node.lock_ref >= child.lock_ref` and nothing on a locked path is evicted.
* What is not locked is evictable, leaf by leaf: of callers above their share before others (see
  `Owners`); first what no waiting req has matched, the least recently used first; then what waiting
  reqs have matched, the last in the queue first. A leaf
  gives up its tail token by token, and its parent becomes a leaf once it has no children left.
* A childless node that nobody but the inserting req locks grows in place, so that a prompt that
  grows by a token per request is one edge, not a chain of nodes.
* Namespaces (`salt`) are separate trees that share the pool and the eviction order.

Time is a counter, not a clock, so that a recorded trace replays exactly. What a look at the queue
marks as wanted is stamped later than all uses until the next look.

Source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
arXiv 2312.07104, section 3.
"""

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

import numpy as np

from scheduler_proc.media.spans import NO_SPANS, EdgeKey, Spans
from scheduler_proc.memory.block_hashes import BlockHashes
from scheduler_proc.memory.match_trackers import Cursor, Watchers
from scheduler_proc.memory.owners import Owners
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.tree_node import NO_SLOTS, Inserted, Match, TreeNode

USES_PER_LOOK = 1 << 20  # more than there are while a sixteenth of the queue changes
MOST_WANTED = 1 << 20  # cursors whose order is kept when they are marked


class RadixCache:
    """The radix tree. `evictable_size + protected_size` is the number of cached tokens. If there
    are `hashes`, they are kept of all its blocks."""

    enabled = True

    def __init__(self, pool: TokenPool, hashes: BlockHashes | None = None) -> None:
        self._pool = pool
        self.hashes = hashes  # is told of every change
        self._roots: dict[str, TreeNode] = {}  # of the salts that have something cached
        self._salts: dict[int, str] = {}  # a root's uid -> its salt
        # Where a match in an empty tree ends.
        self._nowhere = TreeNode(0, None, 0, NO_SLOTS, NO_SLOTS)
        self.owners = Owners()
        self._clock = 0
        self._last_wanted = 0  # the latest stamp that `want` has given
        self._least_wanted = 0  # below all of those, above all uses since
        self._uids = 0
        self.evictable_size = 0
        self.protected_size = 0
        self.evicted_total = 0
        self.watchers = Watchers()

    def __del__(self) -> None:
        """Let the nodes go: the garbage collector does not know that parents and children hold each
        other."""
        for node in self.nodes():
            node.parent = None

    def match_len(self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS) -> int:
        """The length of the longest cached prefix of `tokens`. Changes nothing."""
        return self.track(Cursor(), tokens, salt, spans)

    def track(
        self, cursor: Cursor, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS
    ) -> int:
        """`match_len` for a caller that asks again and again: goes on where `cursor` stood."""
        node, matched = cursor.current(), cursor.length
        if node is None:
            node, matched = self._roots.get(salt), 0
        is_text = spans is NO_SPANS
        while node is not None and matched < len(tokens):
            if matched == node.end:
                key = int(tokens[matched]) if is_text else spans.key(tokens, matched)
                child = node.children.get(key)
                if child is None:
                    break
                node = child
            offset = matched - node.start
            if node.key[offset] != tokens[matched]:
                break
            if not is_text and offset > 0 and spans.begins(matched):
                break
            stop = None if is_text else spans.next_start(matched)
            matched += _common_len(node.key[offset:], tokens[matched:stop])
            if matched < node.end:
                break
        cursor.node, cursor.length = node, matched
        return matched

    def want(self, cursors: Iterable[Cursor], at_once: int = MOST_WANTED) -> Iterator[None]:
        """Mark what waiting reqs have matched, the next to be admitted first: it is evicted last.
        Splits the edges where the matches end. What is added to a wanted leaf counts as wanted
        until the next look. Marks the first `at_once` cursors now, and one more with each step of
        the iterator that it returns. With the last one earlier marks are forgotten; until then they
        count for less than the new ones. Each cursor must just have been tracked."""
        marking = self._mark(iter(cursors))
        for _ in islice(marking, at_once):
            pass
        return marking

    def _mark(self, cursors: Iterator[Cursor]) -> Iterator[None]:
        before = max(self._clock, self._last_wanted)
        for number, cursor in enumerate(cursors):
            if number == 0:
                self._least_wanted = before + USES_PER_LOOK
                self._last_wanted = self._least_wanted + MOST_WANTED
            stamp = max(self._least_wanted, self._last_wanted - number)
            node = cursor.current()
            if node is not None and cursor.length < node.end:
                node = self._split(node, cursor.length - node.start)
            cursor.node = node
            while node is not None and node.last_access < stamp:
                node.last_access = stamp
                node = node.parent
            yield
        self._clock = max(self._clock, before)

    def also_want(self, cursor: Cursor) -> None:
        """Mark what one more waiting req has matched, as the last in the queue, and the rest of the
        edge on which the match ends. The cursor must just have been tracked."""
        node = cursor.node
        while node is not None and node.last_access < self._least_wanted:
            node.last_access = self._least_wanted
            node = node.parent

    def following(self, cursor: Cursor, most: int) -> np.ndarray:
        """Up to `most` tokens that the tree has after a match, int32 [n]: on its edge, then on that
        to the most recently used child, and so on; a picture ends them. The cursor must just have
        been tracked. Changes nothing; O(most)."""
        node = cursor.node
        if node is None:
            return NO_SLOTS
        parts = [node.key[cursor.length - node.start :][:most]]
        left = most - len(parts[0])
        while left > 0 and node.children:
            edge, node = next(reversed(node.children.items()))
            if isinstance(edge, bytes):
                break
            parts.append(node.key[:left])
            left -= len(parts[-1])
        return np.concatenate(parts)

    def match_prefix(
        self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS, caller: str = ""
    ) -> Match:
        """The longest cached prefix of `tokens`; marks it used by the caller, whose it is from now
        on. Splits the edge where it ends.

        The slots stay the tree's: lock the node before anything can evict them.
        """
        return self._match(tokens, salt, spans, caller, uses=1)

    def _match(self, tokens: np.ndarray, salt: str, spans: Spans, caller: str, uses: int) -> Match:
        """`match_prefix`, counted as so many uses of the nodes."""
        node, parts, matched = self._roots.get(salt, self._nowhere), [], 0
        is_text = spans is NO_SPANS
        self._clock += 1
        while matched < len(tokens):
            key = int(tokens[matched]) if is_text else spans.key(tokens, matched)
            child = node.children.get(key)
            if child is None:
                break
            stop = None if is_text else spans.next_start(matched)
            common = _common_len(child.key, tokens[matched:stop])
            if len(node.children) > 1:  # the most recently used is the last
                node.children[key] = node.children.pop(key)
            node = child if common == len(child.key) else self._split(child, common)
            node.last_access = max(node.last_access, self._clock)
            node.matched += uses
            self.owners.take(node, caller)
            parts.append(node.slots)
            matched += common
            if child is not node:
                break
        return Match(node, np.concatenate(parts) if parts else NO_SLOTS)

    def insert(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        salt: str = "",
        own: TreeNode | None = None,
        spans: Spans = NO_SPANS,
        caller: str = "",
    ) -> Inserted:
        """Give the tree `tokens` (int32 [n]) whose KV lies in `slots` (int32 [n]), used by the
        `caller`. `own` is the node that is locked once by who gives them, if any.

        Of these slots it takes those from `existing` on; those before stay the giver's unless they
        are the tree's already. The giver frees its duplicates.
        """
        found = self._match(tokens, salt, spans, caller, uses=0)
        existing = found.length
        node = found.node
        cuts = () if spans is NO_SPANS else spans.cuts(existing, len(tokens))
        for start, stop in pairwise((existing, *cuts, len(tokens))):
            if start == stop:
                break
            key, part = tokens[start:stop], slots[start:stop]
            is_ours = not node.children and node.lock_ref == (node is own)
            if node.parent is not None and is_ours and not spans.begins(start):
                self._grow(node, key, part)
            else:
                node = self._root(salt) if node is self._nowhere else node
                edge = spans.key(tokens, start)
                node = self._add_child(node, edge, key.copy(), part.copy(), caller)
            if self.hashes is not None:
                self.hashes.added(node, start, salt)
        all_slots = np.concatenate((found.slots, slots[existing:]))
        return Inserted(node, existing, len(tokens), all_slots)

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Protect the path from the root to `node` from eviction."""
        while node.parent is not None:
            if node.lock_ref == 0:
                self.evictable_size -= len(node.key)
                self.protected_size += len(node.key)
            node.lock_ref += 1
            node = node.parent

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one `inc_lock_ref(node)`."""
        while node.parent is not None:
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self.evictable_size += len(node.key)
                self.protected_size -= len(node.key)
                self._push_if_evictable(node)
            node = node.parent

    def evict(self, n: int) -> int:
        """Return up to `n` slots of least recently used leaves to the pool; returns how many."""
        evicted, leaves = 0, self.owners.leaves()
        while evicted < n and (node := next(leaves, None)) is not None:
            evicted += self._evict_tail(node, n - evicted)
        self.evicted_total += evicted
        return evicted

    def nodes(self) -> Iterator[TreeNode]:
        """Every node but the roots, in no particular order."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def roots(self) -> list[TreeNode]:
        """Of all namespaces, in no particular order."""
        return list(self._roots.values())

    def unused(self, node: TreeNode) -> int:
        """How many matches there have been since its last; -1 if a waiting req has matched it."""
        return max(-1, self._clock - node.last_access)

    @property
    def clock(self) -> int:
        """The number of the last match; those of matches that went before are smaller."""
        return self._clock

    def _root(self, salt: str) -> TreeNode:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = self._new_node(None, 0, NO_SLOTS, NO_SLOTS)
            self._salts[root.uid] = salt
        return root

    def _new_node(
        self, parent: TreeNode | None, edge: EdgeKey, key: np.ndarray, slots: np.ndarray
    ) -> TreeNode:
        self._uids += 1
        node = TreeNode(self._uids, parent, edge, key, slots)
        node.last_access = self._clock
        return node

    def _add_child(
        self, parent: TreeNode, edge: EdgeKey, key: np.ndarray, slots: np.ndarray, caller: str
    ) -> TreeNode:
        node = self._new_node(parent, edge, key, slots)
        node.owner = caller
        self.owners.add(node)
        parent.children[edge] = node
        home = self._salts[parent.uid] if parent.is_root else parent.uid
        self.watchers.lengthened(home, parent.end, edge)
        self.evictable_size += len(key)
        self._push_if_evictable(node)
        return node

    def _grow(self, node: TreeNode, key: np.ndarray, slots: np.ndarray) -> None:
        """Lengthen the edge to a leaf that no req but the caller has locked."""
        self.watchers.lengthened(node.uid, node.end, int(key[0]))
        self.owners.tokens[node.owner] += len(key)
        node.key = np.concatenate((node.key, key))
        node.slots = np.concatenate((node.slots, slots))
        node.end += len(key)
        if node.lock_ref == 0:
            self.evictable_size += len(key)
        else:
            self.protected_size += len(key)

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut the edge to `node` after `at` tokens; returns the new upper node."""
        parent = node.parent
        assert parent is not None
        upper = self._new_node(parent, node.edge, node.key[:at], node.slots[:at])
        upper.lock_ref = node.lock_ref
        upper.last_access = node.last_access
        upper.matched, upper.owner = node.matched, node.owner
        self.owners.nodes[node.owner] += 1
        parent.children[upper.edge] = upper
        node.key, node.slots, node.parent = node.key[at:], node.slots[at:], upper
        node.edge = int(node.key[0])
        upper.children[node.edge] = node
        self.watchers.split(node, upper)
        if self.hashes is not None:
            self.hashes.split(upper, node)
        return upper

    def _push_if_evictable(self, node: TreeNode) -> None:
        if node.is_evictable:
            self.owners.push(node)

    def _evict_tail(self, node: TreeNode, n: int) -> int:
        """Free the last `n` tokens of leaf `node`, or all of it if it has no more."""
        if n < len(node.key):
            kept = self._split(node, len(node.key) - n)  # a new node, see Cursor
            kept.key, kept.slots = kept.key.copy(), kept.slots.copy()
        freed = len(node.key)
        self._pool.free(node.slots)
        self.evictable_size -= freed
        self._remove_leaf(node)
        return freed

    def _remove_leaf(self, node: TreeNode) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.edge]
        node.parent = None
        self.owners.remove(node)
        self.watchers.removed(node)
        if self.hashes is not None:
            self.hashes.removed(node)
        if not parent.is_root:
            self._push_if_evictable(parent)
        elif not parent.children:
            del self._roots[self._salts.pop(parent.uid)]


class NoCache(RadixCache):
    """`--disable-radix-cache`: nothing is ever found or kept; reqs own and free their slots."""

    enabled = False

    def match_prefix(
        self, tokens: np.ndarray, salt: str = "", spans: Spans = NO_SPANS, caller: str = ""
    ) -> Match:
        return Match(self._nowhere, NO_SLOTS)

    def want(self, cursors: Iterable[Cursor], at_once: int = 0) -> Iterator[None]:
        return iter(())

    def insert(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        salt: str = "",
        own: TreeNode | None = None,
        spans: Spans = NO_SPANS,
        caller: str = "",
    ) -> Inserted:
        return Inserted(self._nowhere, 0, 0, slots)


def _common_len(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differ = a[:n] != b[:n]
    first = int(differ.argmax())
    return first if differ[first] else n
