"""The bounded memory of token masks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar.mask_cache import MaskCache

WIDTH = 100


def mask(value: int) -> np.ndarray:
    return np.full(WIDTH, value, np.uint32)


def room_for(entries: int) -> int:
    """A budget that `entries` different masks just fit into."""
    cache = MaskCache()
    cache.put(0, 0, mask(0))
    return entries * cache.num_bytes


def test_the_least_recently_used_goes_first() -> None:
    cache = MaskCache(room_for(2))
    cache.put(0, 1, mask(1))
    cache.put(0, 2, mask(2))
    assert cache.get(0, 1) is not None
    cache.put(1, 1, mask(3))
    assert cache.get(0, 2) is None
    kept = cache.get(0, 1), cache.get(1, 1)
    assert [None if m is None else m[0] for m in kept] == [1, 3]


def test_masks_are_copies_that_cannot_be_written() -> None:
    cache = MaskCache()
    own = mask(1)
    cache.put(0, 0, own)
    own[:] = 2
    kept = cache.get(0, 0)
    assert kept is not None
    assert (kept == 1).all()
    assert not kept.flags.writeable


def test_equal_masks_share_a_row() -> None:
    cache = MaskCache(room_for(2))
    for state in range(3):
        cache.put(state % 2, state, mask(7))
    assert len(cache) == 3
    assert cache.num_bytes < room_for(2)
    assert cache.get(0, 0) is cache.get(1, 1)


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    cache = MaskCache(10)
    cache.put(0, 0, mask(1))
    assert cache.get(0, 0) is None
    assert cache.num_bytes == 0


def test_a_dropped_grammar_frees_its_masks_at_the_next_put() -> None:
    cache = MaskCache()
    cache.put(0, 0, mask(1))
    cache.put(0, 1, mask(2))
    cache.drop(0)
    cache.put(1, 0, mask(3))
    assert len(cache) == 1
    assert cache.num_bytes == room_for(1)
    assert (cache.owned_bytes(0), cache.owned_bytes(1)) == (0, room_for(1))


def test_owners_differ() -> None:
    cache = MaskCache()
    assert cache.new_owner() != cache.new_owner()


puts = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3)))


@given(puts, st.integers(0, 6))
def test_the_budget_holds_and_everything_is_counted(
    entries: list[tuple[int, int, int]], room: int
) -> None:
    cache = MaskCache(room_for(room))
    latest = {}
    for owner, state, value in entries:
        cache.put(owner, state, mask(value))
        latest[owner, state] = value
        assert cache.num_bytes <= cache.budget_bytes
        for key, expected in latest.items():
            kept = cache.get(*key)
            assert kept is None or kept[0] == expected
    for owner in range(3):
        cache.drop(owner)
    cache.put(9, 9, mask(9))
    assert cache.num_bytes == (room_for(1) if room else 0)
