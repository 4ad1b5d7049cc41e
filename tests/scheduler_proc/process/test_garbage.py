"""What is frozen, untracked or rarely collected must not leak: counts what a collector frees."""

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from scheduler_proc.process import garbage
from tests.scheduler_proc.core.test_scheduler_random import drive


@pytest.fixture
def by_hand() -> Iterator[None]:
    """The collector runs only when it is called, and sees no older objects."""
    thresholds, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if was_enabled:
        gc.enable()


def garbage_of(turns: int, lag: int) -> int:
    """Objects in cycles that are left of reqs that ended, were aborted, cut, retracted or failed,
    while their core goes on."""
    gc.collect()  # the core before this one
    traffic = drive(5, turns, lag, "lpm", 220, constrained=0.3, wishing=0.3, right=0.5)
    counters = traffic.driver.core.state.counters
    assert counters.aborted > 0 and counters.requests > turns // 4
    return gc.collect()


@pytest.mark.parametrize("lag", [0, 1])
def test_requests_leave_no_cycles(by_hand: None, lag: int) -> None:
    garbage_of(20, lag)  # what is made once
    assert garbage_of(300, lag) <= garbage_of(40, lag) + 20


def test_nodes_go_by_their_reference_counts(by_hand: None) -> None:
    pool = TokenPool(1000)
    cache = RadixCache(pool)
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = rng.integers(0, 3, 8).astype(np.int32)
        slots = pool.alloc(8)
        assert slots is not None
        pool.free(slots[: cache.insert(tokens, slots).existing])
    nodes = list(cache.nodes())
    keys = [weakref.ref(node.key) for node in nodes]  # nodes themselves have none
    assert len(nodes) > 50 and not any(map(gc.is_tracked, nodes))
    assert not any(gc.is_tracked(node.children) for node in nodes)
    cache.evict(200)
    evicted = [node for node in nodes if node.parent is None]
    assert evicted and not any(node.children for node in evicted)
    del cache
    assert all(node.parent is None for node in nodes)
    del nodes, evicted
    assert not any(key() is not None for key in keys)


def test_all_is_collected_at_rest_and_after_many_collections(
    by_hand: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, collected = [0, 0, 1], list[int]()
    monkeypatch.setattr(gc, "get_count", lambda: tuple(counts))
    monkeypatch.setattr(gc, "collect", lambda: collected.append(counts[2]))
    garbage.stepped()
    assert collected == []
    garbage.rest()
    counts[2] = garbage.MOST_COLLECTIONS + 1
    garbage.stepped()
    counts[2] = 0
    garbage.rest()
    assert collected == [1, garbage.MOST_COLLECTIONS + 1]
