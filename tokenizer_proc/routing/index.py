"""Which replicas have which blocks of prompts in their trees, or will have them soon.

The trees' events tell of the first; the second are the prompts that were sent and have not ended:
of a burst with a new prefix, all but the first come before any event. Sets of replicas are bit
masks.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from srt.wire.ring_messages import CacheEvents

ASK_AGAIN = 16  # a snapshot that has not come after so many events may be lost


class Index:
    """Of `replicas`. A replica's blocks are unknown, as if it had none, from `start`, or a gap in
    its events, to its next snapshot."""

    def __init__(self, replicas: int) -> None:
        self._trees: dict[bytes, int] = {}  # by block: the replicas that have it
        self._blocks: list[set[bytes]] = [set() for _ in range(replicas)]
        self._sent: dict[bytes, dict[int, int]] = {}  # by block and replica: requests in flight
        self._incarnations = [-1] * replicas
        self._seqs: list[int | None] = [None] * replicas
        self._skipped = [0] * replicas  # events while its blocks were unknown

    def blocks(self, replica: int) -> frozenset[bytes]:
        """Those in its tree, as far as events have told."""
        return frozenset(self._blocks[replica])

    def start(self, replica: int, incarnation: int) -> None:
        """The replica's events begin anew."""
        self.forget(replica)
        self._incarnations[replica] = incarnation

    def forget(self, replica: int) -> None:
        """Its blocks are unknown."""
        self._seqs[replica], self._skipped[replica] = None, 0
        self._remove(replica, self._blocks[replica])
        self._blocks[replica] = set()

    def take(self, replica: int, events: CacheEvents) -> bool:
        """Apply what is next; what is old, or of another incarnation, changes nothing. False if a
        snapshot is needed, after a gap: nothing counts before that."""
        if events.incarnation != self._incarnations[replica]:
            return True
        seq = self._seqs[replica]
        if events.is_snapshot:
            if seq is None or events.seq > seq:
                self.forget(replica)
                self._seqs[replica] = events.seq
                self._add(replica, events.added)
            return True
        if seq is None:
            self._skipped[replica] += 1
            return self._skipped[replica] % ASK_AGAIN != 0
        if events.seq <= seq:
            return True
        if events.seq > seq + 1:
            self.forget(replica)
            return False
        self._seqs[replica] = events.seq
        self._remove(replica, events.removed)
        self._blocks[replica].difference_update(events.removed)
        self._add(replica, events.added)
        return True

    def send(self, replica: int, hashes: Sequence[bytes]) -> None:
        """A request with these blocks goes to the replica."""
        sent = self._sent
        for name in hashes:
            counts = sent.get(name)
            if counts is None:
                sent[name] = {replica: 1}
            else:
                counts[replica] = counts.get(replica, 0) + 1

    def end(self, replica: int, hashes: Sequence[bytes]) -> None:
        """It has ended there."""
        for name in hashes:
            counts = self._sent[name]
            if counts[replica] > 1:
                counts[replica] -= 1
            elif len(counts) > 1:
                del counts[replica]
            else:
                del self._sent[name]

    def wanted_by(self, hashes: Sequence[bytes]) -> np.ndarray:
        """int64 [blocks]: how many requests in flight have each of the blocks."""
        sent = self._sent
        known = [sent.get(name) for name in hashes]
        return np.array([0 if c is None else sum(c.values()) for c in known], np.int64)

    def match(self, hashes: Sequence[bytes], lengths: np.ndarray) -> None:
        """Set `lengths` (int64 [replicas], zeros) to the number of blocks at the beginning that
        each replica has, or will have."""
        trees, sent = self._trees, self._sent
        alive = -1  # all
        for number, name in enumerate(hashes):
            have, counts = trees.get(name, 0), sent.get(name)
            if counts is not None:
                for replica in counts:
                    have |= 1 << replica
            if number == 0:
                alive = have
            elif have & alive != alive:
                for replica in _replicas(alive & ~have):
                    lengths[replica] = number
                alive &= have
            if not alive:
                return
        if hashes:
            for replica in _replicas(alive):
                lengths[replica] = len(hashes)

    def _add(self, replica: int, hashes: Iterable[bytes]) -> None:
        bit, trees = 1 << replica, self._trees
        for name in hashes:
            trees[name] = trees.get(name, 0) | bit
        self._blocks[replica].update(hashes)

    def _remove(self, replica: int, hashes: Iterable[bytes]) -> None:
        bit, trees = 1 << replica, self._trees
        for name in hashes:
            left = trees.get(name, 0) & ~bit
            if left:
                trees[name] = left
            else:
                trees.pop(name, None)


def _replicas(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
