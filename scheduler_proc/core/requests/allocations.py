"""The memory of running reqs: slots from the pool or from the cache, table rows, locks on the
radix tree.

Called by the scheduler core, which decides who gets what. Invariant: every slot has one owner:
the pool, a tree node, or a req (its row from `shared_len` on: its tokens, and after them the slots
set aside for those that it decodes next).
"""

from collections.abc import Collection

import numpy as np

from scheduler_proc.core.requests.request import Req, Residency
from scheduler_proc.core.requests.sampling_table import SamplingTable
from scheduler_proc.memory.pools import ReqToTokenPool, TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from scheduler_proc.memory.tree_node import Match, TreeNode


class ReqMemory:
    """What the reqs in `running` (by handle) hold of one pool."""

    def __init__(
        self, pool: TokenPool, table: ReqToTokenPool, cache: RadixCache, running: dict[int, Req]
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
        """Make `n` slots free, by evicting if need be; returns whether they are."""
        if self.pool.free_size < n:
            self.cache.evict(n - self.pool.free_size)
        return self.pool.free_size >= n

    def set_aside(self, reqs: list[Req], counts: list[int], *, in_runs: bool) -> None:
        """Give each req this many more slots for what it decodes next; as many must be free. With
        `in_runs` a run is sought for each, else all come from one allocation."""
        if in_runs:
            parts: list[np.ndarray | None] = [self.pool.alloc(count) for count in counts]
        else:
            slots = self.pool.alloc(sum(counts))
            assert slots is not None
            parts = [*np.split(slots, np.cumsum(counts)[:-1])]
        for req, part in zip(reqs, parts, strict=True):
            assert part is not None
            held = req.held
            first = held.kv_len + held.num_spare
            self.table.slots[held.row, first : first + len(part)] = part
            held.num_spare += len(part)
            self._num_spares += len(part)

    def enter(self, req: Req) -> int:
        """Lock the cached prefix and begin the req's new table row with it; returns its length."""
        self.cache.owners.use(req.wish.caller, req.wish.weight)
        found = self._match(req, req.max_prefix_len)
        if (usable := req.spans.usable(found.length)) < found.length:
            found = self._match(req, usable)
        self.cache.inc_lock_ref(found.node)
        table, length = self.table, found.length
        row = table.max_reqs if req.wish.is_ahead else table.alloc()
        self.sampling.write(row, req)
        self.table.slots[row, :length] = found.slots
        req.residency = Residency(row, found.node, req.tokens.known_len, length, length, length)
        return length

    def take_spare(self, held: Residency, length: int) -> None:
        """The first `length` of the slots set aside will be those of the tokens planned next."""
        held.num_spare -= length
        self._num_spares -= length

    def drop_draft(self, held: Residency) -> None:
        """The guessed tokens have been run. Their slots become spare; if one turns out to be right,
        `keep_guessed` takes it again."""
        held.kv_len -= held.num_drafted
        held.num_spare += held.num_drafted
        self._num_spares += held.num_drafted
        held.num_drafted = 0

    def keep_guessed(self, held: Residency) -> None:
        """The next of the tokens that were guessed is what the model would have sampled."""
        self.take_spare(held, 1)
        held.kv_len += 1
        held.computed_len += 1

    def truncate(self, req: Req, length: int) -> None:
        """Forget the KV after the first `length` tokens, if the req has any. The slots that were
        the req's own are those that it will write next."""
        held = req.residency
        if held is None or held.kv_len <= length:
            return
        row, stop = self.table.slots[held.row], held.kv_len + held.num_spare
        own_len = max(length, held.shared_len)
        self._num_spares += held.kv_len - own_len
        held.num_spare = stop - own_len
        if held.shared_len > length:
            row[length : length + held.num_spare] = row[own_len:stop].copy()
            found = self._match(req, length)
            self._move_lock(held, found.node, length)
        held.kv_len = held.computed_len = length
        held.prefill_len = min(held.prefill_len, length)

    def _match(self, req: Req, most: int) -> Match:
        """The cached prefix of its first `most` tokens."""
        wish = req.wish
        return self.cache.match_prefix(req.tokens.known[:most], wish.salt, req.spans, wish.caller)

    def insert_computed(self, req: Req) -> None:
        """Give the tree what the req has computed, and move its lock to the new end."""
        held = req.held
        length, row = held.computed_len, self.table.slots[held.row]
        tokens = req.tokens.known[:length]
        wish = req.wish
        done = self.cache.insert(tokens, row[:length], wish.salt, held.node, req.spans, wish.caller)
        if done.owned == 0:
            return
        if done.existing > held.shared_len:  # someone else computed it too: keep the tree's copy
            self.pool.free(row[held.shared_len : done.existing].copy())
            row[held.shared_len : done.existing] = done.slots[held.shared_len : done.existing]
        self._move_lock(held, done.node, done.owned)

    def release(self, req: Req) -> None:
        """Take a req out of memory: computed tokens to the tree, the rest to the pool."""
        self.insert_computed(req)
        held = req.held
        self.cache.dec_lock_ref(held.node)
        self._num_spares -= held.num_spare
        stop = held.kv_len + held.num_spare
        self.pool.free(self.table.slots[held.row, held.shared_len : stop])
        self.table.free(held.row)
        del self._running[req.handle]
        req.residency = None

    def free_spares(self, keep: Collection[Req] = ()) -> bool:
        """Give back what is set aside for anyone but `keep`; returns whether there was anything."""
        before = self._num_spares
        if before == 0:
            return False
        kept = {req.handle for req in keep}
        for req in self._running.values():
            held = req.held
            if held.num_spare > 0 and req.handle not in kept:
                spares = slice(held.kv_len, held.kv_len + held.num_spare)
                self.pool.free(self.table.slots[held.row, spares])
                self._num_spares -= held.num_spare
                held.num_spare = 0
        return self._num_spares < before

    def _move_lock(self, held: Residency, node: TreeNode, length: int) -> None:
        """From where the req's shared prefix has ended to where it ends now."""
        self.cache.inc_lock_ref(node)
        self.cache.dec_lock_ref(held.node)
        held.node, held.shared_len = node, length
