"""The memory of running reqs: slots from the pool or the cache's leavings, table rows, locks on the
radix tree.

Called by the scheduler core, which decides who gets what. Invariant: every slot has one owner:
the pool, a tree node, or a req (its row behind `shared_len`, and its spares).
"""

import numpy as np

from scheduler_proc.memory import ReqToTokenPool, TokenPool
from scheduler_proc.radix_cache import PrefixCache
from scheduler_proc.req import Req


class ReqMemory:
    """What the reqs in `running` (by handle) hold of one pool."""

    def __init__(
        self, pool: TokenPool, table: ReqToTokenPool, cache: PrefixCache, running: dict[int, Req]
    ) -> None:
        self.pool = pool
        self.table = table
        self.cache = cache
        self._running = running

    @property
    def room(self) -> int:
        """Slots that an allocation could get without taking any from a req's tokens."""
        return self.pool.free_size + self._spare_size() + self.cache.evictable_size

    @property
    def easy_room(self) -> int:
        """The same without taking spares from anyone either."""
        return self.pool.free_size + self.cache.evictable_size

    def alloc(self, n: int, keep: Req | None = None) -> np.ndarray | None:
        """`n` slots: free ones, else from the cache, else those set aside for reqs other than
        `keep`.

        Spares hardly exceed what their req may still need, so they cost the cache nothing that
        the outputs would not.
        """
        if self.pool.free_size < n:
            self.cache.evict(n - self.pool.free_size)
        if self.pool.free_size < n:
            for req in self._running.values():
                if len(req.spare) > 0 and req is not keep:
                    self.free_spare(req)
        return self.pool.alloc(n)

    def enter(self, req: Req) -> int:
        """Lock the cached prefix and give the req a table row that begins with it; its length."""
        found = self.cache.match_prefix(req.tokens[: req.max_prefix_len], req.salt)
        self.cache.inc_lock_ref(found.node)
        req.node = found.node
        req.row = self.table.alloc()
        req.residency += 1
        req.prefill_len = req.num_tokens
        req.shared_len = req.computed_len = req.kv_len = found.length
        self.table.slots[req.row, : found.length] = found.slots
        return found.length

    def take_spare(self, req: Req, length: int) -> None:
        """Put the first `length` spares behind the req's planned tokens."""
        self.table.slots[req.row, req.kv_len : req.kv_len + length] = req.spare[:length]
        req.spare = req.spare[length:]

    def truncate(self, req: Req, length: int) -> None:
        """Forget the KV behind the first `length` tokens. The slots that were the req's own are
        those that it will write next."""
        if req.kv_len <= length:
            return
        own = self.table.slots[req.row, max(length, req.shared_len) : req.kv_len]
        req.spare = np.concatenate((own, req.spare))
        if req.shared_len > length:
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
        self.pool.free(self.table.slots[req.row, req.shared_len : req.kv_len].copy())
        self.free_spare(req)
        self.table.free(req.row)
        del self._running[req.handle]
        req.row, req.node = -1, None
        req.shared_len = req.computed_len = req.kv_len = req.prefill_len = 0

    def free_spare(self, req: Req) -> None:
        self.pool.free(req.spare)
        req.spare = req.spare[:0]

    def _spare_size(self) -> int:
        return sum(len(req.spare) for req in self._running.values())
