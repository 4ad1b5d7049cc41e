"""Operations on the scheduler that clients ask for: its statistics, looks at it, emptying the
cache, and pauses, which are set before (`PauseSet`) and answered when they are in effect.

The scheduler's actor owns one. Invariant: each Control is answered once, or its incarnation ends.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.process.snapshots.queue import running, waiting
from scheduler_proc.process.snapshots.tree import TreeViews
from srt.wire.errors import CONFLICT, ErrorInfo
from srt.wire.ring_messages import Control, ControlReply

MAX_WAIT_S = 300.0
MAX_PENDING = 8  # of each kind
EDGE_IDS = 2048  # of a node's edge that are shown


class Views:
    """Snapshots of one core, between its changes. It costs nothing until one is taken."""

    def __init__(self, state: SchedulerState) -> None:
        self._state, self._trees = state, TreeViews(state.memory.cache)

    def look(self) -> dict[str, Any]:
        """The tree and the queue, of bounded size and made in bounded time."""
        state, now = self._state, time.monotonic()
        tree, memory = self._trees.look(), state.memory
        return {
            "nodes": tree.nodes,
            "nodes_are_all": tree.is_whole,
            "cached_tokens": tree.tokens,
            "matches": memory.cache.clock,
            "evicted_tokens_total": memory.cache.evicted_total,
            "free_tokens": memory.pool.free_size,
            "running": running(state, now),
            "num_running": len(state.running),
            "waiting": waiting(state, now),
            "num_waiting": len(state.waiting),
        }

    def edge(self, uid: int) -> dict[str, Any]:
        """The first EDGE_IDS token ids of a node that the last look has shown, and how many it has;
        no ids if there is none now."""
        node = self._trees.shown(uid)
        if node is None:
            return {"ids": [], "tokens": 0}
        return {"ids": node.key[:EDGE_IDS].tolist(), "tokens": len(node.key)}


class _Pending(NamedTuple):
    """An operation that waits until nothing runs, and the timer that gives it up."""

    control: Control
    timer: asyncio.TimerHandle


class Controls:
    """Answers through `reply`, with what `stats` and snapshots of the core give."""

    def __init__(
        self,
        core: Scheduler,
        stats: Callable[[], dict[str, Any]],
        reply: Callable[[ControlReply], None],
    ) -> None:
        self._core, self._stats, self._reply = core, stats, reply
        self._views = Views(core.state)
        self._pending: dict[str, _Pending] = {}

    def take(self, control: Control) -> None:
        """Answer at once, except for a pause, and a flush that may wait."""
        if control.op == "stats":
            self._answer(control, msgspec.json.encode(self._stats() | control.counts))
        elif control.op == "look":
            self._answer(control, msgspec.json.encode(self._views.look()))
        elif control.op == "edge":
            self._answer(control, msgspec.json.encode(self._views.edge(control.node)))
        elif control.op == "continue":
            for pending in [each.control for each in self._pending.values()]:
                if pending.op == "pause":
                    self._drop(pending, "generation was continued before the pause began")
            self._answer(control)
        elif control.op == "flush_cache" and self._core.flush_cache():
            self._answer(control)
        elif control.timeout_s <= 0:
            self._refuse(control)
        elif self._num_pending(control.op) >= MAX_PENDING:
            reason = f"too many operations wait already: {MAX_PENDING} of the kind {control.op}"
            self._answer(control, error=ErrorInfo(CONFLICT, reason))
        else:
            wait_s = min(control.timeout_s, MAX_WAIT_S)
            timer = asyncio.get_running_loop().call_later(wait_s, self._give_up, control)
            self._pending[_key(control)] = _Pending(control, timer)

    def _num_pending(self, op: str) -> int:
        return sum(pending.control.op == op for pending in self._pending.values())

    def at_rest(self) -> None:
        """Nothing runs now: answer what waits for that."""
        for control in [pending.control for pending in self._pending.values()]:
            if control.op == "pause" or self._core.flush_cache():
                self._drop(control)

    def clear(self) -> None:
        """A new incarnation: forget what waits."""
        for pending in self._pending.values():
            pending.timer.cancel()
        self._pending.clear()

    def _drop(self, control: Control, reason: str = "") -> None:
        """Answer an operation that waits; with a reason, refuse it."""
        self._pending.pop(_key(control)).timer.cancel()
        self._answer(control, error=ErrorInfo(CONFLICT, reason) if reason else None)

    def _give_up(self, control: Control) -> None:
        del self._pending[_key(control)]
        self._refuse(control)

    def _refuse(self, control: Control) -> None:
        reason = "the cache is in use: requests are running or waiting"
        if control.op == "pause":
            reason = f"the step that runs has not ended within {control.timeout_s:g} s: the pause "
            reason += "begins when it ends"
        self._answer(control, error=ErrorInfo(CONFLICT, reason))

    def _answer(
        self, control: Control, data: bytes = b"{}", error: ErrorInfo | None = None
    ) -> None:
        number, asked = control.incarnation, control.asked
        self._reply(ControlReply(control.client, control.rid, number, data, error, asked))


def _key(control: Control) -> str:
    return f"{control.client.hex()}/{control.rid}"
