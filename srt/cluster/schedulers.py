"""The schedulers of a node: starts them, watches them, and says how they end.

What the supervisor does for those of its own machine. When one starts again the head says, which
has an incarnation for it first; here it waits for its back-off besides.
"""

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence

from srt.args import ServerArgs
from srt.ring.actor import EXIT_CONFIG
from srt.ring.child import STOP_SIGNAL, Child, NodeChild, described
from srt.ring.places import Ring
from srt.ring.supervisor import (
    FIRST_BACKOFF_S,
    HEALTHY_AFTER_S,
    MAX_BACKOFF_S,
    MAX_RESTARTS,
    TERM_GRACE_S,
)
from srt.ring.watch import Watch
from srt.tasks import TaskSet
from srt.wire.ring_state import Heartbeat, RingEvent, scheduler_part

log = logging.getLogger(__name__)


class GivenUp(Exception):
    """A scheduler cannot run here."""


class Schedulers:
    """Those at `places`, of `total` that the ring has. `on_end` is called with the place, the
    incarnation and the status of one that has ended."""

    def __init__(
        self,
        ring: Ring,
        args: ServerArgs,
        places: Sequence[int],
        total: int,
        on_end: Callable[[int, int, int], object],
    ) -> None:
        self._ring, self._on_end = ring, on_end
        self._children = {
            place: NodeChild(scheduler_part(place, total), place, share=share)
            for share, place in enumerate(places)
        }
        self._epoch, self._incarnations = 0, [0] * total  # the ring's, as last heard
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = TaskSet(self._fail)
        children = list(self._children.values())
        self._watch = Watch(children, args.step_timeout, args.part_timeout, lambda: None)
        self._tasks.start(self._watch.run())
        self._death_pipe = os.pipe()

    async def failed(self) -> None:
        """Wait until one cannot run. Raises GivenUp, or what was wrong here."""
        await self._failure

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def was_silent(self, place: int) -> bool:
        """Whether its last process was ended because it was silent."""
        return self._children[place].is_silent

    def start(self, place: int, epoch: int, incarnations: Sequence[int]) -> None:
        """Start a place's scheduler, once its back-off is over."""
        self._epoch, self._incarnations = epoch, list(incarnations)
        self._tasks.start(self._start(self._children[place]))

    async def _start(self, child: Child) -> None:
        if child.restarts:
            doublings = min(child.restarts, MAX_RESTARTS) - 1
            await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**doublings))
        process = child.start(
            self._ring.directory, self._epoch, self._incarnations, self._death_pipe[0], None
        )
        pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit, child, process, pidfd)

    def beat(self, beat: Heartbeat) -> int | None:
        """Take a heartbeat; returns its scheduler's place, None if it is of no process here."""
        for place, child in self._children.items():
            if child.part == beat.part and child.pid == beat.pid:
                child.beat, child.beat_at, child.facts = beat, time.monotonic(), beat.facts
                child.made_progress |= beat.has_progressed
                child.state, child.has_served = "ready", True
                return place
        return None

    def hear(self, event: RingEvent) -> None:
        """In a new epoch a scheduler goes on under another incarnation. One that has another in the
        same epoch has been given up by the ring."""
        for place, child in self._children.items():
            if child.pid and event.incarnations[place] > self._incarnations[place]:
                if event.epoch == self._epoch and child.process is not None:
                    log.warning("%s was replaced in the ring: ending it", child.part)
                    child.process.kill()
        self._epoch, self._incarnations = event.epoch, event.incarnations

    def end(self, place: int) -> None:
        """Kill a scheduler that hangs."""
        process = self._children[place].process
        if process is not None and process.poll() is None:
            process.kill()

    def _on_exit(self, child: Child, process: subprocess.Popen[bytes], pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = process.wait()
        child.exited.set()
        child.state, child.beat = "dead", None
        if self._failure.done():
            return
        log.warning("%s died (%s)", child.part, described(status))
        if child.made_progress or time.monotonic() - child.started_at > HEALTHY_AFTER_S:
            child.restarts = 0
        child.restarts += 1
        assert child.replica is not None
        self._on_end(child.replica, self._incarnations[child.replica], status)
        if status == EXIT_CONFIG and not child.has_served:
            self._fail(GivenUp(f"{child.part} cannot run with these arguments (see above)"))
        elif child.restarts > MAX_RESTARTS:
            self._fail(GivenUp(f"{child.part} died {child.restarts} times in a row: giving up"))

    async def close(self, *, at_once: bool) -> None:
        """End all of them; `at_once` those that the ring does without already."""
        if not self._failure.done():
            self._failure.cancel()
        await self._tasks.close()
        running = [child for child in self._children.values() if child.pid]
        for child in running:
            assert child.process is not None
            child.process.kill() if at_once else child.process.send_signal(STOP_SIGNAL)
        waits = [asyncio.create_task(child.exited.wait()) for child in running]
        if waits:
            await asyncio.wait(waits, timeout=TERM_GRACE_S)
        for child in running:
            assert child.process is not None
            if child.process.poll() is None:
                child.process.kill()
                await child.exited.wait()
        os.close(self._death_pipe[1])
        os.close(self._death_pipe[0])
