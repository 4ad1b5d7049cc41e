"""The memory that token masks may take: one budget for all grammars of a process.

The scheduler makes one cache and gives it to every grammar that it loads. Least recently used
masks go first; they can be computed again. Equal masks, of any states and grammars, are one row, so
that an entry has no size of its own, as a cache of cachetools would want, and steps ask for masks.
Masks are asked for by one thread at a time; `new_owner` and `drop` may be called from any.
"""

from collections import Counter, OrderedDict, deque
from itertools import count

import numpy as np

DEFAULT_BUDGET_BYTES = 128 << 20
_ENTRY_BYTES = 200  # of a key and its place in the order, about


class _Row:
    """A mask and how many entries have it."""

    __slots__ = ("data", "mask", "uses")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.mask = np.frombuffer(data, np.uint32)
        self.uses = 0


class MaskCache:
    """Masks (read-only uint32 rows) by grammar and state. `num_bytes` is what they take."""

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[tuple[int, int], _Row] = OrderedDict()
        self._rows: dict[bytes, _Row] = {}
        self._owned: Counter[int] = Counter()  # bytes by owner
        self._owners = count()
        self._dropped: deque[int] = deque()

    def new_owner(self) -> int:
        """A name for a grammar's masks."""
        return next(self._owners)

    def get(self, owner: int, state: int) -> np.ndarray | None:
        key = owner, state
        row = self._entries.get(key)
        if row is None:
            return None
        self._entries.move_to_end(key)
        return row.mask

    def put(self, owner: int, state: int, mask: np.ndarray) -> None:
        """Keep a copy of `mask`, if the budget allows, at the cost of the least recently used."""
        self._remove_dropped()
        self._remove((owner, state))
        data = mask.tobytes()
        row = self._rows.get(data)
        if row is None:
            row = self._rows[data] = _Row(data)
            self.num_bytes += len(data)
        row.uses += 1
        self._entries[owner, state] = row
        self._owned[owner] += _ENTRY_BYTES + len(data)
        self.num_bytes += _ENTRY_BYTES
        while self.num_bytes > self.budget_bytes and self._entries:
            self._remove(next(iter(self._entries)))

    def drop(self, owner: int) -> None:
        """Forget a grammar's masks at the next `put`. A finalizer may call this at any moment, even
        inside another method."""
        self._dropped.append(owner)

    def owned_bytes(self, owner: int) -> int:
        """What a grammar's masks take; one that several states share counts for each."""
        return self._owned[owner]

    def __len__(self) -> int:
        return len(self._entries)

    def _remove_dropped(self) -> None:
        gone = set()
        while self._dropped:
            gone.add(self._dropped.popleft())
        if not gone:
            return
        for key in [key for key in self._entries if key[0] in gone]:
            self._remove(key)
        for owner in gone:
            del self._owned[owner]

    def _remove(self, key: tuple[int, int]) -> None:
        row = self._entries.pop(key, None)
        if row is None:
            return
        self._owned[key[0]] -= _ENTRY_BYTES + len(row.data)
        self.num_bytes -= _ENTRY_BYTES
        row.uses -= 1
        if not row.uses:
            del self._rows[row.data]
            self.num_bytes -= len(row.data)
