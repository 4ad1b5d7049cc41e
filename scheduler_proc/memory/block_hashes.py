"""The hashes of the blocks that the radix tree holds, and a journal of those that come and go.

A block belongs to the node on whose edge its last token is (`TreeNode.hashes`, in order), and stays
with it through growth and splits. The tree tells of every change; only whole blocks count, and only
of tokens whose KV is computed, since no others are in the tree.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from scheduler_proc.memory.tree_node import TreeNode
from srt.block_hash import BLOCK, Shown, hashes_of, seed_of
from srt.wire.packing import packed_size

MAX_SEEDS = 4096  # that are remembered


class Block(NamedTuple):
    """A block that was added: the hash of the one before it (None: it is the first), and its ids
    (int32, packed)."""

    hash: bytes
    parent: bytes | None
    ids: bytes
    salt: str


class Changes(NamedTuple):
    """What has changed between two looks, parents before children."""

    added: list[Block]
    removed: list[bytes]


class BlockHashes:
    """Of one tree, whose KV is of `model`, in blocks of `block` tokens."""

    def __init__(self, model: str, block: int = BLOCK) -> None:
        self._model, self.block = model, block
        self._seeds: dict[str, bytes] = {}  # by salt
        self._added: dict[bytes, Block] = {}
        self._removed: dict[bytes, None] = {}

    def take(self) -> Changes:
        """What has changed since the last call. A block that has come and gone did not change."""
        changes = Changes([*self._added.values()], [*self._removed])
        self._added, self._removed = {}, {}
        return changes

    # ---- for the tree --------------------------------------------------------------------------

    def added(self, node: TreeNode, start: int, salt: str) -> None:
        """The edge to `node`, a leaf, has new tokens from position `start` of its path on."""
        first, stop = start // self.block * self.block, node.end // self.block * self.block
        if first == stop:
            return
        parent = _last_hash(node)
        (ids, shown), size = _path_from(node, first, stop), packed_size(self.block)
        seed = self._seed(salt) if parent is None else parent
        hashes = hashes_of(ids, seed, self.block, shown)
        node.hashes = (*node.hashes, *hashes)
        for at, name in zip(range(0, len(ids), size), hashes, strict=True):
            if name in self._removed:
                del self._removed[name]
            else:
                self._added[name] = Block(name, parent, ids[at : at + size], salt)
            parent = name

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """An edge was cut in two."""
        count = upper.end // self.block - upper.start // self.block
        upper.hashes, lower.hashes = lower.hashes[:count], lower.hashes[count:]

    def removed(self, node: TreeNode) -> None:
        """A leaf was removed."""
        for name in node.hashes:
            if name in self._added:
                del self._added[name]
            else:
                self._removed[name] = None

    def _seed(self, salt: str) -> bytes:
        seed = self._seeds.get(salt)
        if seed is None:
            if len(self._seeds) > MAX_SEEDS:
                self._seeds.clear()
            seed = self._seeds[salt] = seed_of(self._model, salt)
        return seed


def all_hashes(nodes: Iterable[TreeNode]) -> Iterator[bytes]:
    """Those of all blocks on these nodes."""
    for node in nodes:
        yield from node.hashes


def _last_hash(node: TreeNode) -> bytes | None:
    """Of the last block before the node's new tokens; None if there is none."""
    at: TreeNode | None = node
    while at is not None and not at.hashes:
        at = at.parent
    return None if at is None else at.hashes[-1]


def _path_from(node: TreeNode, first: int, stop: int) -> tuple[bytes, list[Shown]]:
    """The ids at [first, stop) of the path to the node, packed, and the items that begin there."""
    parts, shown, at = [node.key[max(0, first - node.start) : stop - node.start]], [], node
    while True:
        if isinstance(at.edge, bytes) and first <= at.start < stop:
            shown.append((at.start - first, at.edge))
        if at.start <= first:
            break
        assert at.parent is not None
        at = at.parent
        parts.append(at.key[max(0, first - at.start) :])
    return np.concatenate(parts[::-1]).astype(np.int32, copy=False).tobytes(), shown[::-1]
