"""All that a look at a core shows."""

import time
from typing import Any

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.process.snapshots.queue import running, waiting
from scheduler_proc.process.snapshots.tree import TreeViews

EDGE_IDS = 2048


class Views:
    """Looks at one core, between its changes. Nobody looking, it does nothing."""

    def __init__(self, core: Scheduler) -> None:
        self._core, self._trees = core, TreeViews(core.cache)

    def look(self) -> dict[str, Any]:
        """The tree and the queue, of bounded size and made in bounded time."""
        core, now = self._core, time.monotonic()
        tree = self._trees.look()
        return {
            "nodes": tree.nodes,
            "nodes_are_all": tree.is_whole,
            "cached_tokens": tree.tokens,
            "matches": core.cache.clock,
            "evicted_tokens_total": core.cache.evicted_total,
            "free_tokens": core.pool.free_size,
            "running": running(core, now),
            "num_running": len(core.running),
            "waiting": waiting(core, now),
            "num_waiting": len(core.waiting),
        }

    def edge(self, uid: int) -> dict[str, Any]:
        """The first EDGE_IDS token ids of a node that the last look has shown, and how many it has;
        no ids if there is none now."""
        node = self._trees.shown(uid)
        if node is None:
            return {"ids": [], "tokens": 0}
        return {"ids": node.key[:EDGE_IDS].tolist(), "tokens": len(node.key)}
