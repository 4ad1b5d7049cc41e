"""The radix tree against a plain dict of prefixes, and the rules of locks and eviction."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_proc.memory import TokenPool
from scheduler_proc.radix_cache import Cursor, NoCache, RadixCache

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)
SALTS = st.sampled_from(["", "a"])


def ids(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


class TreeMachine(RuleBasedStateMachine):
    """Model: a dict from (salt, prefix) to the slot of its last token."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TokenPool(60)
        self.cache = RadixCache(self.pool)
        self.model: dict[tuple[str, tuple[int, ...]], int] = {}
        self.locked: list[tuple[object, str, list[int]]] = []
        self.cursors: dict[tuple[str, tuple[int, ...]], Cursor] = {}

    def longest(self, tokens: list[int], salt: str) -> int:
        n = 0
        while n < len(tokens) and (salt, tuple(tokens[: n + 1])) in self.model:
            n += 1
        return n

    @rule(tokens=TOKENS, salt=SALTS)
    def insert(self, tokens: list[int], salt: str) -> None:
        slots = self.pool.alloc(len(tokens))
        if slots is None:
            self.cache.evict(len(tokens) - self.pool.free_size)
            self.forget_evicted()
            slots = self.pool.alloc(len(tokens))
        if slots is None:
            return
        existing = self.longest(tokens, salt)
        done = self.cache.insert(ids(tokens), slots, salt)
        assert done.existing == existing and done.owned == len(tokens)
        self.pool.free(slots[:existing])
        for i, slot in enumerate(done.slots.tolist()):
            known = self.model.setdefault((salt, tuple(tokens[: i + 1])), slot)
            assert known == slot

    @rule(tokens=TOKENS, salt=SALTS)
    def match(self, tokens: list[int], salt: str) -> None:
        expected = self.longest(tokens, salt)
        assert self.cache.match_len(ids(tokens), salt) == expected
        found = self.cache.match_prefix(ids(tokens), salt)
        prefixes = [(salt, tuple(tokens[: i + 1])) for i in range(expected)]
        assert found.slots.tolist() == [self.model[p] for p in prefixes]

    @rule(tokens=TOKENS, salt=SALTS)
    def watch(self, tokens: list[int], salt: str) -> None:
        """From now on `cursors_follow` asks for these tokens after every change."""
        self.cursors[salt, tuple(tokens)] = Cursor()

    @rule(tokens=TOKENS, salt=SALTS)
    def lock(self, tokens: list[int], salt: str) -> None:
        found = self.cache.match_prefix(ids(tokens), salt)
        self.cache.inc_lock_ref(found.node)
        self.locked.append((found.node, salt, tokens[: found.length]))

    @precondition(lambda self: self.locked)
    @rule(pick=st.integers(0, 100))
    def unlock(self, pick: int) -> None:
        node, _, _ = self.locked.pop(pick % len(self.locked))
        self.cache.dec_lock_ref(node)  # type: ignore[arg-type]

    @rule(n=st.integers(1, 20))
    def evict(self, n: int) -> None:
        before = self.cache.evictable_size
        assert self.cache.evict(n) == min(n, before)
        self.forget_evicted()

    def forget_evicted(self) -> None:
        free = set(self.pool.free_slots().tolist())
        self.model = {prefix: slot for prefix, slot in self.model.items() if slot not in free}

    @invariant()
    def cursors_follow(self) -> None:
        for (salt, tokens), cursor in self.cursors.items():
            expected = self.longest(list(tokens), salt)
            assert self.cache.track(cursor, ids(list(tokens)), salt) == expected
            covered = sum(min(n.end, expected) - n.start for n in cursor.path())
            assert covered == expected

    @invariant()
    def the_books_add_up(self) -> None:
        slots = [s for node in self.cache.nodes() for s in node.slots.tolist()]
        assert sorted(slots) == sorted(self.model.values())
        assert len(slots) + self.pool.free_size == 60
        assert self.cache.evictable_size + self.cache.protected_size == len(slots)
        kept = {(*t[: i + 1], s) for _, s, t in self.locked for i in range(len(t))}
        assert all((p[-1], p[:-1]) in self.model for p in kept), "a locked token was evicted"
        assert self.cache.protected_size == len(kept)


TreeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTree = TreeMachine.TestCase


def filled(pool: TokenPool, *prompts: list[int]) -> RadixCache:
    cache = RadixCache(pool)
    for prompt in prompts:
        slots = pool.alloc(len(prompt))
        done = cache.insert(ids(prompt), slots)
        pool.free(slots[: done.existing])
    return cache


def test_eviction_is_least_recently_used_over_leaves_and_recursive() -> None:
    cache = filled(TokenPool(20), [1, 2, 3], [1, 2, 4], [9, 9])
    cache.match_prefix(ids([1, 2, 3]))  # use it: [4] and [9 9] are older now
    assert cache.evict(1) == 1
    assert cache.match_len(ids([1, 2, 4])) == 2
    cache.evict(2)
    assert cache.match_len(ids([9, 9])) == 0
    cache.evict(1)
    assert cache.match_len(ids([1, 2, 3])) == 2  # the leaf went; its parent is a leaf now
    cache.evict(2)
    assert list(cache.nodes()) == []


def test_locked_paths_survive_any_eviction() -> None:
    cache = filled(TokenPool(20), [1, 2, 3, 4], [1, 2, 5])
    node = cache.match_prefix(ids([1, 2, 3])).node
    cache.inc_lock_ref(node)
    assert cache.evict(100) == 2  # [4] and [5]
    assert cache.match_len(ids([1, 2, 3])) == 3
    cache.dec_lock_ref(node)
    assert cache.evict(100) == 3


def test_namespaces_do_not_see_each_other_but_share_memory() -> None:
    pool = TokenPool(10)
    cache = RadixCache(pool)
    cache.insert(ids([1, 2]), pool.alloc(2), "tenant a")
    assert cache.match_len(ids([1, 2]), "tenant b") == 0
    assert cache.match_len(ids([1, 2]), "tenant a") == 2
    assert cache.evict(2) == 2 and pool.free_size == 10


def test_no_cache_keeps_nothing() -> None:
    cache = NoCache()
    done = cache.insert(ids([1, 2]), ids([5, 6]))
    assert done.owned == 0 and cache.match_prefix(ids([1, 2])).length == 0
