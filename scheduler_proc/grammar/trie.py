"""A vocabulary's tokens as a trie in flat preorder arrays: what token masks are read from.

Made once per process by `TokenVocabulary`, read by the native mask kernel and by its numpy twin.
Invariant: a subtree is a range of nodes, and ids are in the order of their nodes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


class TrieLevel(NamedTuple):
    """The nodes of one depth, in preorder, and the parent of each: int32 [n] both."""

    nodes: np.ndarray
    parents: np.ndarray


@dataclass(frozen=True)
class TokenTrie:
    """N nodes (the root is not one of them) and T tokens.

    `bytes`: uint8 [N], on the edge into the node; `depths`: int32 [N], from 1; `ends`: int32 [N],
    the subtree of i is [i, ends[i]); `token_indptr`: int32 [N+1] into `token_ids`: int32 [T], the
    tokens that end at a node; several if they have the same bytes.
    """

    bytes: np.ndarray
    depths: np.ndarray
    ends: np.ndarray
    token_indptr: np.ndarray
    token_ids: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.bytes)

    @property
    def max_depth(self) -> int:
        """Bytes of the longest token."""
        return int(self.depths.max(initial=0))

    @property
    def num_bytes(self) -> int:
        arrays = (self.bytes, self.depths, self.ends, self.token_indptr, self.token_ids)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def levels(self) -> list[TrieLevel]:
        """The nodes by depth; level d's are those of depth d + 1. The root is parent -1."""
        return _levels(self.depths)

    @cached_property
    def token_nodes(self) -> np.ndarray:
        """The node of each entry of `token_ids`: int32 [T]."""
        nodes = np.arange(self.num_nodes, dtype=np.int32)
        return np.repeat(nodes, np.diff(self.token_indptr))


def build_trie(tokens: list[tuple[bytes, int]]) -> TokenTrie:
    """The trie of (bytes, id) pairs; none of the bytes may be empty.

    Neighbours in sorted order share their longest common prefix with anything before them, so
    each token adds the nodes of the rest of its bytes, and that is preorder.
    """
    tokens = sorted(tokens)
    lengths = np.fromiter((len(data) for data, _ in tokens), np.int64, len(tokens))
    flat = np.frombuffer(b"".join(data for data, _ in tokens), np.uint8)
    starts = np.cumsum(lengths) - lengths
    shared = _shared_prefixes(flat, starts, lengths)
    added = lengths - shared
    owner = np.repeat(np.arange(len(tokens)), added)
    # Where in its token each node's byte lies, from 0.
    place = np.arange(len(owner)) - (np.cumsum(added) - added)[owner] + shared[owner]
    depths = (place + 1).astype(np.int32)
    token_nodes = np.cumsum(added) - 1  # a token equal to the one before it ends where that does
    indptr = np.zeros(len(owner) + 1, np.int32)
    np.cumsum(np.bincount(token_nodes, minlength=len(owner)), out=indptr[1:])
    return TokenTrie(
        bytes=flat[starts[owner] + place],
        depths=depths,
        ends=_subtree_ends(depths),
        token_indptr=indptr,
        token_ids=np.fromiter((i for _, i in tokens), np.int32, len(tokens)),
    )


def _shared_prefixes(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """How many bytes each token has in common with the one before it: int64 [T]."""
    shared = np.zeros(len(starts), np.int64)
    same = np.arange(1, len(starts))  # tokens that agree with their neighbour so far
    limit = np.minimum(lengths[1:], lengths[:-1])
    place = 0
    while len(same):
        same = same[limit[same - 1] > place]
        same = same[flat[starts[same] + place] == flat[starts[same - 1] + place]]
        place += 1
        shared[same] = place
    return shared


def _levels(depths: np.ndarray) -> list[TrieLevel]:
    order = np.argsort(depths, kind="stable").astype(np.int32)
    counts = np.bincount(depths)[1:]
    levels: list[TrieLevel] = []
    above = np.full(1, -1, np.int32)
    for nodes in np.split(order, np.cumsum(counts)[:-1]) if len(counts) else []:
        # The last node of the level above that comes before it.
        levels.append(TrieLevel(nodes, above[np.searchsorted(above, nodes) - 1]))
        above = nodes
    return levels


def _subtree_ends(depths: np.ndarray) -> np.ndarray:
    sizes = np.ones(len(depths) + 1, np.int64)  # the last is the root's
    for nodes, parents in reversed(_levels(depths)):
        np.add.at(sizes, parents, sizes[nodes])
    return (np.arange(len(depths)) + sizes[:-1]).astype(np.int32)
