"""Whose tokens are evicted, in a tree that several callers use."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.memory.owners import (
    LATELY,
    MOST_STALE,
    SEEN_PER_EVICTION,
    Owners,
    _Entry,
)
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache


class Used:
    """A tree and its pool, which callers use as reqs do."""

    def __init__(self, size: int) -> None:
        self.pool = TokenPool(size)
        self.cache = RadixCache(self.pool)

    def compute(self, caller: str, prompt: list[int], weight: float = 1.0) -> int:
        """Have a prompt in the tree; returns how many of its tokens were there."""
        tokens = np.array(prompt, np.int32)
        self.cache.owners.use(caller, weight)
        found = self.cache.match_prefix(tokens, caller=caller)
        self.cache.inc_lock_ref(found.node)
        missing = len(tokens) - found.length
        self.cache.evict(missing - self.pool.free_size)
        slots = self.pool.alloc(missing)
        if slots is not None:
            self.cache.insert(tokens, np.concatenate((found.slots, slots)), caller=caller)
        self.cache.dec_lock_ref(found.node)
        return found.length

    def check(self) -> None:
        tokens: dict[str, int] = {}
        for node in self.cache.nodes():
            tokens[node.owner] = tokens.get(node.owner, 0) + len(node.key)
            assert not node.is_evictable or node.heap == node.owner
        assert dict(self.cache.owners.tokens) == tokens


def test_a_caller_above_its_share_evicts_its_own() -> None:
    used = Used(100)
    used.compute("b", list(range(1000, 1040)))
    for i in range(20):
        used.compute("a", list(range(30 * i, 30 * i + 30)))
    assert used.compute("b", list(range(1000, 1040))) == 40
    assert used.cache.owners.tokens == {"a": 60, "b": 40}


def test_weights_are_shares_of_the_tree() -> None:
    used = Used(100)
    for i in range(40):
        used.compute("a", [1000 + 5 * i + j for j in range(5)])
        used.compute("b", [5000 + 5 * i + j for j in range(5)], weight=4.0)
    assert used.cache.owners.tokens == {"a": 20, "b": 80}


def test_who_has_not_used_the_tree_lately_has_no_share() -> None:
    used = Used(60)
    used.compute("b", list(range(1000, 1010)))
    for i in range(LATELY + 10):
        used.compute("a", [i % 3, 7])
    used.compute("a", list(range(2000, 2050)))
    assert used.compute("b", list(range(1000, 1010))) < 10


def test_a_prefix_that_all_use_changes_hands_and_leaves_no_heap_of_stale_entries() -> None:
    used = Used(1000)
    for i in range(3000):
        used.compute(f"c{i % 3}", [1, 2, 3, 4])
    heaps = used.cache.owners._heaps.values()
    assert used.cache.owners.tokens == {"c2": 4}
    assert sum(map(len, heaps)) <= MOST_STALE + 4


def test_an_eviction_looks_at_few_of_many_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands that come once each, as addresses may."""
    used, looked = Used(4000), Counter[str]()
    above_share, top = Owners.above_share, Owners._top

    def counted_share(owners: Owners) -> dict[str, float]:
        looked["share"] += len(owners.tokens)
        return above_share(owners)

    def counted_top(owners: Owners, caller: str) -> _Entry | None:
        looked["top"] += 1
        return top(owners, caller)

    monkeypatch.setattr(Owners, "above_share", counted_share)
    monkeypatch.setattr(Owners, "_top", counted_top)
    for i in range(3000):
        used.compute(f"c{i}", [3 * i + 1, 3 * i + 2])
    assert len(used.cache.owners.tokens) == 2000
    assert looked["share"] <= 2 * SEEN_PER_EVICTION * 1000 >= looked["top"]
    assert len(used.cache.owners._tops) <= MOST_STALE + 2 * 2000


def test_heaps_stay_small_while_nothing_is_evicted() -> None:
    used = Used(20)
    for first in (0, 100):  # the second evicts the first
        used.compute("c0", list(range(first, first + 20)))
    for i in range(1000):
        used.compute(f"c{i % 2}", list(range(100, 120)))
    assert len(used.cache.owners._tops) <= MOST_STALE + 4


@given(seed=st.integers(0, 10_000), size=st.sampled_from([20, 60, 400]))
def test_books_and_leaves_are_right_whatever_callers_do(seed: int, size: int) -> None:
    """And all that is not locked can be evicted."""
    rng, used = random.Random(seed), Used(size)
    for _ in range(60):
        prompt = [rng.randint(1, 2) for _ in range(rng.randint(1, 15))]
        used.compute(rng.choice("abc"), prompt, rng.choice([0.5, 1.0]))
        used.check()
    cached = used.cache.evictable_size
    assert used.cache.evict(size) == cached and used.pool.free_size == size
    assert not used.cache.owners.tokens


def test_no_caller_is_above_a_share_of_nothing() -> None:
    assert Owners().above_share() == {}
