"""The token pool compared with a set, and its promise of contiguous runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.memory.pools import ReqToTokenPool, TokenPool


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 10**6)), max_size=80))
def test_pool_against_a_set(calls: list[tuple[bool, int, int]]) -> None:
    """Random allocs and frees: no slot twice, none lost, ascending, None only when short."""
    pool, held, free = TokenPool(100), [], set(range(100))
    for is_alloc, n, pick in calls:
        if is_alloc:
            slots = pool.alloc(n)
            assert (slots is None) == (n > len(free))
            if slots is not None:
                assert len(slots) == n and (np.diff(slots) > 0).all()
                assert set(slots.tolist()) <= free
                free -= set(slots.tolist())
                held.append(slots)
        elif held:
            slots = held.pop(pick % len(held))
            keep = slots[: pick % (len(slots) + 1)]
            given_back = slots[len(keep) :][::-1]
            pool.free(given_back)
            free |= set(given_back.tolist())
            if len(keep):
                held.append(keep)
        assert pool.free_size == len(free)
        assert pool.free_slots().tolist() == sorted(free)


def taken(pool: TokenPool, n: int) -> np.ndarray:
    """`n` slots of a pool that has them."""
    slots = pool.alloc(n)
    assert slots is not None
    return slots


def test_runs_are_contiguous_where_one_is_long_enough() -> None:
    pool = TokenPool(64)
    blocks = [taken(pool, 16) for _ in range(4)]
    pool.free(blocks[0])
    pool.free(blocks[2])
    assert taken(pool, 10).tolist() == list(range(10))  # best fit, then the rest of that run
    assert taken(pool, 6).tolist() == list(range(10, 16))
    assert taken(pool, 16).tolist() == list(range(32, 48))


def test_a_double_free_is_caught() -> None:
    pool = TokenPool(8)
    slots = taken(pool, 4)
    pool.free(slots)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(slots[:1])
    with pytest.raises(AssertionError, match="not of this pool"):
        pool.free(np.array([8]))


def test_table_rows_are_reused() -> None:
    table = ReqToTokenPool(2, 10)
    first, second = table.alloc(), table.alloc()
    assert {first, second} == {0, 1} and table.num_free_rows == 0
    table.free(first)
    assert table.alloc() == first
