"""The rules that hold after every step; checked in tests and, with an option, in a live server."""

from collections import Counter

import numpy as np

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.memory.radix_cache import RadixCache
from scheduler_proc.memory.tree_node import TreeNode


def check_invariants(core: Scheduler) -> None:
    """Raise AssertionError, with the numbers, if the scheduler's books do not add up."""
    state = core.state
    nodes = list(state.memory.cache.nodes())
    _check_ownership(state, nodes)
    _check_sizes(state.memory.cache, nodes)
    _check_locks(state, nodes)
    _check_media(state)
    for req in state.running.values():
        held = req.held
        lengths = (0, held.shared_len, held.computed_len, held.planned_len, req.tokens.seq_len)
        assert list(lengths) == sorted(lengths), f"{req.wish.rid}: lengths out of order: {lengths}"
        if held.num_drafted > 0:
            most = req.tokens.known_len + held.num_drafted
            assert held.kv_len == most < req.tokens.max_len, f"{req.wish.rid}: guessed too far"


def _check_media(state: SchedulerState) -> None:
    """Whoever still has to compute what it shows has the embeddings pinned, and nobody does who has
    ended."""
    state.media.check()
    live = {req.handle for req in (*state.running.values(), *state.waiting)}
    assert state.media.pinned.keys() <= live, "embeddings are pinned for a req that has ended"
    for req in state.running.values():
        held = req.held
        for span in req.spans.within(held.computed_len, req.tokens.prompt_len):
            digest = span.item.digest
            assert digest in state.media.pinned[req.handle], f"{req.wish.rid}: a picture got lost"
            assert state.media.has(digest), f"{req.wish.rid}: a picture is not encoded"
        if req.spans.are_whole:
            assert req.spans.usable(held.kv_len) == held.kv_len, f"{req.wish.rid}: half a picture"


def _check_ownership(state: SchedulerState, nodes: list[TreeNode]) -> None:
    """free + cached + in flight = pool, and every slot has one owner."""
    memory, pool = state.memory, state.memory.pool
    owned = [node.slots for node in nodes] + [pool.free_slots()]
    owned += [
        memory.table.slots[held.row, held.shared_len : held.kv_len + held.num_spare]
        for held in (req.held for req in state.running.values())
    ]
    spares = sum(req.held.num_spare for req in state.running.values())
    assert memory.room - memory.easy_room == spares, "the count of spares is wrong"
    slots = np.sort(np.concatenate(owned))
    assert len(slots) == pool.size, f"{len(slots)} slots have an owner of {pool.size}"
    assert np.array_equal(slots, np.arange(pool.size)), "a slot has two owners"


def _check_sizes(cache: RadixCache, nodes: list[TreeNode]) -> None:
    evictable = sum(len(node.key) for node in nodes if node.lock_ref == 0)
    protected = sum(len(node.key) for node in nodes if node.lock_ref > 0)
    assert evictable == cache.evictable_size, "evictable_size is wrong"
    assert protected == cache.protected_size, "protected_size is wrong"
    tokens, counts = Counter[str](), Counter[str]()
    for node in nodes:
        tokens[node.owner] += len(node.key)
        counts[node.owner] += 1
        assert not node.is_evictable or node.heap == node.owner, "a leaf cannot be found"
    owners = cache.owners
    assert (owners.tokens, owners.nodes) == (tokens, counts), "what callers have is wrong"
    assert all(len(node.key) == len(node.slots) > 0 for node in nodes), "an edge is malformed"


def _check_locks(state: SchedulerState, nodes: list[TreeNode]) -> None:
    """A node's lock_ref is the number of running reqs whose prefix passes through it."""
    expected: Counter[int] = Counter()
    for req in state.running.values():
        node: TreeNode | None = req.held.node
        while node is not None and node.parent is not None:
            expected[node.uid] += 1
            node = node.parent
    for node in nodes:
        assert node.lock_ref == expected[node.uid], f"lock_ref {node.lock_ref} of node {node.uid}"
        for child in node.children.values():
            assert child.parent is node and node.lock_ref >= child.lock_ref
