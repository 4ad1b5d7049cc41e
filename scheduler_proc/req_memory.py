"""The memory of running reqs: slots from the pool or from the cache, table rows, locks on the
radix tree.

Called by the scheduler core, which decides who gets what. Invariant: every slot has one owner:
the pool, a tree node, or a req (its row from `shared_len` on: its tokens, and after them the slots
set aside for those that it decodes next).
"""

from collections.abc import Collection

import numpy as np

from scheduler_proc.memory import ReqToTokenPool, TokenPool
from scheduler_proc.prefix_cache import PrefixCache
from scheduler_proc.req import Req
from scheduler_proc.sampling_table import SamplingTable


class ReqMemory:
    """What the reqs in `running` (by handle) hold of one pool."""

    def __init__(
        self, pool: TokenPool, table: ReqToTokenPool, cache: PrefixCache, running: dict[int, Req]
    ) -> None:
        self.pool = pool
        self.table = table
        self.cache = cache
        self._running = running
        self.sampling = SamplingTable(len(table.slots))
        self._num_spares = 0  # of all reqs

    @property
    def room(self) -> int:
        """Slots that an allocation could get without taking any from a req's tokens."""
        return self.easy_room + self._num_spares

    @property
    def easy_room(self) -> int:
        """The same without taking what is set aside for anyone either."""
        return self.pool.free_size + self.cache.evictable_size

    def alloc(self, n: int) -> np.ndarray | None:
        """`n` slots: free ones, else from the cache, else those set aside.

        What is set aside hardly exceeds what its req may still need, so it costs the cache nothing
        that the outputs would not.
        """
        if not self.find(n):
            self.free_spares()
        return self.pool.alloc(n)

    def find(self, n: int) -> bool:
        """See that `n` slots are free, by evicting if need be; whether they are."""
        if self.pool.free_size < n:
            self.cache.evict(n - self.pool.free_size)
        return self.pool.free_size >= n

    def set_aside(self, reqs: list[Req], counts: list[int], *, in_runs: bool) -> None:
        """Give each req so many slots more for what it decodes next. They have been found.
        `in_runs` seeks a run for each, else they come from one for all."""
        if in_runs:
            parts: list[np.ndarray | None] = [self.pool.alloc(count) for count in counts]
        else:
            slots = self.pool.alloc(sum(counts))
            assert slots is not None
            parts = [*np.split(slots, np.cumsum(counts)[:-1])]
        for req, part in zip(reqs, parts, strict=True):
            assert part is not None
            first = req.kv_len + req.num_spare
            self.table.slots[req.row, first : first + len(part)] = part
            req.num_spare += len(part)
            self._num_spares += len(part)

    def enter(self, req: Req) -> int:
        """Lock the cached prefix and give the req a table row that begins with it; its length."""
        found = self.cache.match_prefix(req.tokens[: req.max_prefix_len], req.salt)
        self.cache.inc_lock_ref(found.node)
        req.node = found.node
        req.row = self.table.alloc()
        req.residency += 1
        self.sampling.write(req)
        req.prefill_len = req.num_tokens
        req.shared_len = req.computed_len = req.kv_len = found.length
        self.table.slots[req.row, : found.length] = found.slots
        return found.length

    def take_spare(self, req: Req, length: int) -> None:
        """The first `length` of the slots set aside will be those of the tokens planned next."""
        req.num_spare -= length
        self._num_spares -= length

    def truncate(self, req: Req, length: int) -> None:
        """Forget the KV behind the first `length` tokens. The slots that were the req's own are
        those that it will write next."""
        if req.kv_len <= length:
            return
        row, stop = self.table.slots[req.row], req.kv_len + req.num_spare
        own_len = max(length, req.shared_len)
        self._num_spares += req.kv_len - own_len
        req.num_spare = stop - own_len
        if req.shared_len > length:
            row[length : length + req.num_spare] = row[own_len:stop].copy()
            assert req.node is not None
            found = self.cache.match_prefix(req.tokens[:length], req.salt)
            self.cache.inc_lock_ref(found.node)
            self.cache.dec_lock_ref(req.node)
            req.node, req.shared_len = found.node, length
        req.kv_len = req.computed_len = length
        req.prefill_len = min(req.prefill_len, length)

    def insert_computed(self, req: Req) -> None:
        """Give the tree what the req has computed, and move its lock to the new end."""
        length = req.computed_len
        row = self.table.slots[req.row]
        done = self.cache.insert(req.tokens[:length], row[:length], req.salt, own=req.node)
        if done.owned == 0:
            return
        if done.existing > req.shared_len:  # someone else computed it too: keep the tree's copy
            self.pool.free(row[req.shared_len : done.existing].copy())
            row[req.shared_len : done.existing] = done.slots[req.shared_len : done.existing]
        assert req.node is not None
        self.cache.inc_lock_ref(done.node)
        self.cache.dec_lock_ref(req.node)
        req.node, req.shared_len = done.node, done.owned

    def release(self, req: Req) -> None:
        """Take a resident req out of memory: computed tokens to the tree, the rest to the pool."""
        self.insert_computed(req)
        assert req.node is not None
        self.cache.dec_lock_ref(req.node)
        self._num_spares -= req.num_spare
        stop = req.kv_len + req.num_spare
        self.pool.free(self.table.slots[req.row, req.shared_len : stop])
        self.table.free(req.row)
        del self._running[req.handle]
        req.row, req.node = -1, None
        req.residency += 1
        req.num_spare = req.shared_len = req.computed_len = req.kv_len = req.prefill_len = 0

    def free_spares(self, keep: Collection[Req] = ()) -> bool:
        """Give back what is set aside for anyone but `keep`; whether that was anything."""
        before = self._num_spares
        if before == 0:
            return False
        kept = {req.handle for req in keep}
        for req in self._running.values():
            if req.num_spare > 0 and req.handle not in kept:
                spares = slice(req.kv_len, req.kv_len + req.num_spare)
                self.pool.free(self.table.slots[req.row, spares])
                self._num_spares -= req.num_spare
                req.num_spare = 0
        return self._num_spares < before
