"""The rules that hold after every step; checked in tests and, with an option, in a live server."""

from collections import Counter

import numpy as np

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.memory.tree_node import TreeNode


def check_invariants(core: Scheduler) -> None:
    """Raise AssertionError, with the numbers, if the scheduler's books do not add up."""
    nodes = list(core.cache.nodes())
    _check_ownership(core, nodes)
    _check_sizes(core, nodes)
    _check_locks(core, nodes)
    _check_media(core)
    for req in core.running.values():
        held = req.held
        lengths = (0, held.shared_len, held.computed_len, held.planned_len, req.tokens.seq_len)
        assert list(lengths) == sorted(lengths), f"{req.wish.rid}: lengths out of order: {lengths}"
        if held.num_drafted > 0:
            most = req.tokens.known_len + held.num_drafted
            assert held.kv_len == most < req.tokens.max_len, f"{req.wish.rid}: guessed too far"


def _check_media(core: Scheduler) -> None:
    """Whoever still has to compute what it shows has the embeddings pinned, and nobody does who has
    ended."""
    core.media.check()
    live = {req.handle for req in (*core.running.values(), *core.waiting)}
    assert core.media.pinned.keys() <= live, "embeddings are pinned for a req that has ended"
    for req in core.running.values():
        held = req.held
        for span in req.spans.within(held.computed_len, req.tokens.prompt_len):
            digest = span.item.digest
            assert digest in core.media.pinned[req.handle], f"{req.wish.rid}: a picture got lost"
            assert core.media.has(digest), f"{req.wish.rid}: a picture is not encoded"
        if req.spans.are_whole:
            assert req.spans.usable(held.kv_len) == held.kv_len, f"{req.wish.rid}: half a picture"


def _check_ownership(core: Scheduler, nodes: list[TreeNode]) -> None:
    """free + cached + in flight = pool, and every slot has one owner."""
    owned = [node.slots for node in nodes] + [core.pool.free_slots()]
    owned += [
        core.table.slots[held.row, held.shared_len : held.kv_len + held.num_spare]
        for held in (req.held for req in core.running.values())
    ]
    spares = sum(req.held.num_spare for req in core.running.values())
    assert core.memory.room - core.memory.easy_room == spares, "the count of spares is wrong"
    slots = np.sort(np.concatenate(owned))
    assert len(slots) == core.pool.size, f"{len(slots)} slots have an owner of {core.pool.size}"
    assert np.array_equal(slots, np.arange(core.pool.size)), "a slot has two owners"


def _check_sizes(core: Scheduler, nodes: list[TreeNode]) -> None:
    evictable = sum(len(node.key) for node in nodes if node.lock_ref == 0)
    protected = sum(len(node.key) for node in nodes if node.lock_ref > 0)
    assert evictable == core.cache.evictable_size, "evictable_size is wrong"
    assert protected == core.cache.protected_size, "protected_size is wrong"
    assert all(len(node.key) == len(node.slots) > 0 for node in nodes), "an edge is malformed"


def _check_locks(core: Scheduler, nodes: list[TreeNode]) -> None:
    """A node's lock_ref is the number of running reqs whose prefix passes through it."""
    expected: Counter[int] = Counter()
    for req in core.running.values():
        node: TreeNode | None = req.held.node
        while node is not None and node.parent is not None:
            expected[node.uid] += 1
            node = node.parent
    for node in nodes:
        assert node.lock_ref == expected[node.uid], f"lock_ref {node.lock_ref} of node {node.uid}"
        for child in node.children.values():
            assert child.parent is node and node.lock_ref >= child.lock_ref
