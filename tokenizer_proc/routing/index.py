"""Which replicas have which blocks of prompts in their trees, or will have them soon.

The trees' events tell of the first; the second are the prompts that were sent and have not ended:
of a burst with a new prefix, all but the first come before any event. Sets of replicas are bit
masks.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from srt.wire.ring_messages import CacheEvents

ASK_AGAIN = 16  # a snapshot that has not come after so many events may be lost


class _Flight:
    """The requests that were sent with a block: how many to each replica, and which these are."""

    __slots__ = ("counts", "mask")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.mask = 0


class Index:
    """Of `replicas`. A replica's blocks are unknown, as if it had none, from `start`, or a gap in
    its events, to its next snapshot."""

    def __init__(self, replicas: int) -> None:
        self._trees: dict[bytes, int] = {}  # by block: the replicas that have it
        self._blocks: list[set[bytes]] = [set() for _ in range(replicas)]
        self._sent: dict[bytes, _Flight] = {}  # by block
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
        sent, bit = self._sent, 1 << replica
        for name in hashes:
            flight = sent.get(name)
            if flight is None:
                flight = sent[name] = _Flight()
            flight.counts[replica] = flight.counts.get(replica, 0) + 1
            flight.mask |= bit

    def end(self, replica: int, hashes: Sequence[bytes]) -> None:
        """It has ended there, and all events that it has caused have come."""
        sent, bit = self._sent, 1 << replica
        for name in hashes:
            flight = sent[name]
            left = flight.counts.pop(replica) - 1
            if left > 0:
                flight.counts[replica] = left
            elif flight.counts:
                flight.mask ^= bit
            else:
                del sent[name]

    def match(self, hashes: Sequence[bytes], lengths: np.ndarray) -> None:
        """Set `lengths` (int64 [replicas], zeros) to the number of blocks at the beginning that
        each replica has, or will have."""
        trees, sent = self._trees, self._sent
        alive = -1  # all
        for number, name in enumerate(hashes):
            have, flight = trees.get(name, 0), sent.get(name)
            if flight is not None:
                have |= flight.mask
            if number == 0:
                alive = have
            elif have & alive != alive:
                lengths[_replicas(alive & ~have)] = number
                alive &= have
            if not alive:
                return
        if hashes:
            lengths[_replicas(alive)] = len(hashes)

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


def _replicas(mask: int) -> np.ndarray:
    """The numbers of the bits that are set, int64."""
    data = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))
