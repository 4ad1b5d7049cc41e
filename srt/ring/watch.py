"""Watches the beats of the supervisor's children: tells who is silent, and ends who stays so.

Every part beats from its event loop, a scheduler also while a step runs. So a loop that is held,
and a process that was stopped, are silent. A scheduler ends itself when a step takes too long; the
supervisor only ends one that cannot even do that, after the same time.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Sequence

from srt.ring.child import Child
from srt.ring.places import QUIET_S
from srt.wire.ring_state import CompilerFacts

log = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0
LOOK_S = 0.25
STACKS_S = 1.0  # for a part that hangs, to write its stacks


class Watch:
    """Of `children`: a scheduler may be silent for `step_s`, another part for `part_s` (0: for
    ever), and each for START_TIMEOUT_S while it starts. `on_change` is called when others than
    before are silent."""

    def __init__(
        self,
        children: Sequence[Child],
        step_s: float,
        part_s: float,
        on_change: Callable[[], object],
    ) -> None:
        self.silent: list[str] = []  # the parts that have been so for QUIET_S
        self._children = children
        self._step_s, self._part_s = step_s, part_s
        self._on_change = on_change

    async def run(self) -> None:
        """Look every LOOK_S. Time in which this process stood still does not count: the others may
        have stood still with it, and beats may be unread."""
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            stood_still_s, looked_at = max(0.0, now - looked_at - 2 * LOOK_S), now
            for child in self._children:
                child.beat_at += stood_still_s
            self._look(now)

    def _look(self, now: float) -> None:
        silent = []
        for child in self._children:
            silent_s, is_starting = now - child.beat_at, _is_starting(child)
            if child.state == "ready" and not is_starting and silent_s > QUIET_S:
                silent.append(child.part)
            limit_s = self._part_s if child.replica is None else self._step_s
            if limit_s > 0 and child.state != "dead":
                limit_s = START_TIMEOUT_S if is_starting else limit_s
                if silent_s > limit_s:
                    self._end(child, limit_s)
        if silent != self.silent:
            self.silent = silent
            self._on_change()

    def _end(self, child: Child, silent_s: float) -> None:
        """Have a part that hangs write its stacks, if it can, and end it."""
        if child.process is None or child.is_silent:
            return
        log.error("%s has been silent for %g s: killing it", child.part, silent_s)
        child.is_silent = True
        child.process.send_signal(signal.SIGABRT)
        asyncio.get_running_loop().call_later(STACKS_S, child.process.kill)


def _is_starting(child: Child) -> bool:
    """The compiler takes requests before it has loaded what it needs, which holds its loop."""
    is_cold = isinstance(child.facts, CompilerFacts) and not child.facts.is_warm
    return child.state == "starting" or is_cold
