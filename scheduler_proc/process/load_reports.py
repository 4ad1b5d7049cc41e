"""What a scheduler reports besides outputs: to the front its pace, its load and the blocks of its
tree, to subscribers of KV events these blocks.
"""

import time
from collections.abc import Callable

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.steps.step_cost import TimedSteps
from scheduler_proc.core.steps.step_target import CostMeter
from scheduler_proc.events.cache_events import CacheNews
from scheduler_proc.events.kv_events import KvEvents
from scheduler_proc.process.pace import PaceMeter
from scheduler_proc.process.step_clock import StepClock
from srt.wire.ring_messages import CacheEvents, Pace, ReplicaLoad, TokenizedReq


class Reports:
    """Of one core, whose steps `clock` times. `send` sends to the front, which has a router if
    `has_router`. The core itself is told what its steps cost, at first by the steps that have
    warmed up the executor. These say nothing of the pace: nobody has been served yet."""

    def __init__(
        self,
        core: Scheduler,
        clock: StepClock,
        send: Callable[[Pace | ReplicaLoad | CacheEvents], object],
        *,
        has_router: bool,
        kv_events: KvEvents | None = None,
        warm_steps: TimedSteps = (),
    ) -> None:
        self._core, self._clock, self._send = core, clock, send
        self._has_router, self._kv_events = has_router, kv_events
        self.pace = PaceMeter(core)
        self._costs = CostMeter(warm_steps)
        self._cache = CacheNews(core)
        self._tell_costs()

    def reset(self) -> None:
        """A new incarnation: nothing has come, and nobody has asked."""
        self.pace.reset()
        self._cache.reset()

    def came(self, req: TokenizedReq) -> None:
        """A request has come."""
        self.pace.entered(req)

    def ask_blocks(self) -> None:
        """The front wants to know all blocks, and from then on what changes."""
        self._cache.ask()
        self.tell_blocks()

    def tell_blocks(self) -> None:
        """Tell what has come and gone in the tree since the last call: after each step, and as soon
        as a flush has emptied it."""
        cache = self._core.cache
        if cache.hashes is None:
            return
        changes = cache.hashes.take()
        events = self._cache.tell(changes)
        if events is not None:
            self._send(events)
        if self._kv_events is not None:
            is_empty = cache.evictable_size + cache.protected_size == 0
            cleared = is_empty and bool(changes.removed)
            self._kv_events.publish(changes.added, changes.removed, cleared)

    def tell_pace(self, *, at_once: bool = False) -> None:
        """Tell the front the pace, if it is time to, and the core what steps cost."""
        while self._clock.steps:
            size, seconds = self._clock.steps.popleft()
            self.pace.stepped(size.tokens, seconds)
            self._costs.add(size, seconds)
        self._tell_costs()
        pace = self.pace.report(time.monotonic(), at_once=at_once)
        if pace is not None:
            self._send(pace)
            if self._has_router:
                self._send(self.pace.load(pace))

    def _tell_costs(self) -> None:
        costs = self._costs.news()
        if costs is not None:
            self._core.measure(costs)
