"""The shown part of a radix tree against a walk through all of it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import NoCache, RadixCache
from scheduler_proc.memory.tree_node import TreeNode
from scheduler_proc.process.snapshots import tree as views
from scheduler_proc.process.snapshots.tree import NodeView, TreeViews

PROMPTS = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
    st.sampled_from(["", "a"]),
    st.sampled_from(["insert", "match", "lock", "evict"]),
)


class Grown:
    """A tree that random requests have used."""

    def __init__(self) -> None:
        self.pool = TokenPool(512)
        self.cache = RadixCache(self.pool)
        self.matches: dict[tuple[str, tuple[int, ...]], int] = {}

    def use(self, tokens: list[int], salt: str, how: str) -> None:
        ids = np.array(tokens, np.int32)
        found = self.cache.match_prefix(ids, salt)
        self.matches[salt, tuple(tokens)] = self.matches.get((salt, tuple(tokens)), 0) + 1
        if how == "insert":
            fresh = self.pool.alloc(len(ids) - found.length)
            assert fresh is not None
            self.cache.insert(ids, np.concatenate((found.slots, fresh)), salt)
        elif how == "lock":
            self.cache.inc_lock_ref(found.node)
        elif how == "evict":
            self.cache.evict(len(ids))


def below(node: TreeNode) -> int:
    return len(node.key) + sum(map(below, node.children.values()))


def root_of(node: TreeNode) -> TreeNode:
    return node if node.parent is None else root_of(node.parent)


def as_it_is(cache: RadixCache) -> dict[int, NodeView]:
    """Every node, by a walk through all of the tree."""
    found = {}
    for node in cache.nodes():
        assert node.parent is not None
        parent = 0 if node.parent.is_root else node.parent.uid
        found[node.uid] = NodeView(
            node.uid,
            parent,
            node.end - len(node.key),
            len(node.key),
            node.lock_ref,
            cache.unused(node),
            node.matched,
            below(node),
            root_of(node).uid,
        )
    return found


@given(st.lists(PROMPTS, max_size=30))
def test_a_small_tree_is_shown_as_it_is(uses: list[tuple[list[int], str, str]]) -> None:
    grown = Grown()
    looks = TreeViews(grown.cache)
    for tokens, salt, how in uses:
        grown.use(tokens, salt, how)
        look = looks.look()
        assert {view.uid: view for view in look.nodes} == as_it_is(grown.cache)
        assert look.is_whole
        assert look.tokens == sum(view.tokens for view in look.nodes)
        assert all(a.below >= b.below for a, b in pairwise(look.nodes))


@given(st.lists(PROMPTS, min_size=5, max_size=40), st.integers(1, 4), st.integers(1, 6))
def test_of_a_large_tree_the_largest_parts_are_shown(
    uses: list[tuple[list[int], str, str]], shown: int, portion: int
) -> None:
    grown = Grown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "SHOWN", shown)
        patch.setattr(views, "PORTION", portion)
        looks = TreeViews(grown.cache)
        for tokens, salt, how in uses:
            grown.use(tokens, salt, how)
            check(looks, grown.cache)
        for _ in range(2 * len(as_it_is(grown.cache)) + 2):  # nothing changes any more
            check(looks, grown.cache)
        look = looks.look()
    whole = as_it_is(grown.cache)
    assert all(view == whole[view.uid] for view in look.nodes if view.parent)
    largest = sorted((view.below for view in whole.values()), reverse=True)[:shown]
    assert [view.below for view in look.nodes] == largest
    assert look.is_whole == (len(whole) <= shown)


def check(looks: TreeViews, cache: RadixCache) -> None:
    """What is shown exists, each node after its parent."""
    whole = as_it_is(cache)
    seen = {0}
    for view in looks.look().nodes:
        assert view.parent in seen
        seen.add(view.uid)
        now = whole[view.uid]
        assert (view.start, view.tokens, view.locks) == (now.start, now.tokens, now.locks)
        assert (view.unused, view.matched, view.space) == (now.unused, now.matched, now.space)
    assert len(seen) <= views.SHOWN + 1


def test_a_look_at_a_huge_tree_opens_a_bounded_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 20_000
    pool = TokenPool(2 * count)
    cache = RadixCache(pool)
    for number in range(count):
        slots = pool.alloc(2)
        assert slots is not None
        cache.insert(np.array([number, 1], np.int32), slots)
    opened = 0
    plain = views._Open

    def counting(node: TreeNode) -> views._Open:
        nonlocal opened
        opened += 1
        return plain(node)

    monkeypatch.setattr(views, "_Open", counting)
    looks = TreeViews(cache)
    for _ in range(count // views.PORTION + 2):
        before = opened
        look = looks.look()
        assert opened - before <= views.PORTION + 2
        assert 0 < len(look.nodes) <= views.SHOWN
    assert opened >= count and not look.is_whole and look.tokens == 2 * count


def test_matches_are_counted_and_insertions_are_not() -> None:
    grown = Grown()
    for how in ("insert", "match", "match"):
        grown.use([1, 2, 3, 4], "", how)
    grown.use([1, 2], "", "match")  # splits
    (upper, lower) = TreeViews(grown.cache).look().nodes
    assert (upper.tokens, upper.matched, lower.tokens, lower.matched) == (2, 3, 2, 2)
    assert (upper.unused, lower.unused) == (0, 1)


def test_without_a_cache_nothing_is_shown() -> None:
    look = TreeViews(NoCache(TokenPool(0))).look()
    assert look.nodes == [] and look.tokens == 0 and look.is_whole
