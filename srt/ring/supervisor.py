"""Starts the ring's processes, notices their deaths, restarts them, and brings them down.

The launcher runs it. When the tokenizer or the detokenizer dies, every request in flight is lost:
the supervisor raises the epoch and publishes it at once, so that each client fails its own requests
and each surviving part forgets them, without any help from the broken ring. When a scheduler
dies, only its incarnation is raised: the requests go on at another or at the next one, unless there
is none within --resume-timeout, which ends the epoch. The gateway is a client, not a part: its
death costs only its own connections. The compiler's costs nothing: what waits for it is asked
again. The programs' costs their sessions. The launcher's "ready" waits for all three, the ring's
for none.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import time
from typing import Any

import zmq

from srt.args import ServerArgs, places_of
from srt.ring.actor import EXIT_CONFIG
from srt.ring.child import STOP_SIGNAL, Child, RemoteChild, described
from srt.ring.halted import pid_namespace
from srt.ring.inbox import Dropped, Inbox
from srt.ring.listener import bind_listener, url_of
from srt.ring.losses import Losses
from srt.ring.places import (
    EVENT_INTERVAL_S,
    HEARTBEAT_INTERVAL_S,
    Ring,
    bind,
    create_ring,
    send_now,
)
from srt.ring.socket import RingContext, RingSocket
from srt.ring.watch import START_TIMEOUT_S, Watch
from srt.tasks import TaskSet
from srt.wire.ring_state import (
    LAUNCHER,
    RING_PARTS,
    CtlMessage,
    PlaceNews,
    RingEvent,
    SchedulerFacts,
    TokenizerFacts,
    next_incarnation,
    scheduler_part,
)

log = logging.getLogger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
HEALTHY_AFTER_S = 30.0  # a child that ran this long starts with a fresh back-off
MAX_RESTARTS = 8  # in a row, none of them after HEALTHY_AFTER_S or progress
# Restarted always once they have served: what they take is users' input.
COMPILER, PROGRAMS, HUB = "compiler", "programs", "hub"
TERM_GRACE_S = 2.0
_INSTANCE = secrets.token_hex(8)  # a process runs one server


class Supervisor:
    """One running server. `run` returns its exit status."""

    def __init__(self, args: ServerArgs) -> None:
        self._args = args
        self._listener = None if args.no_http else bind_listener(args.host, args.port)
        try:
            self.ring: Ring = create_ring(args)
        except BaseException:
            if self._listener is not None:
                self._listener.close()
            raise
        self._epoch = 1
        places = places_of(args)
        self._incarnations = [places + replica for replica in range(places)]
        self._draining = False
        self._reason = ""
        self._failure: str | None = None
        self._closing = False
        schedulers = [_scheduler(i, args) for i in range(places)]
        others = [*RING_PARTS, COMPILER, PROGRAMS] + ([] if args.no_http else ["gateway"])
        others += [HUB] if args.remote_replicas else []
        children = [*schedulers, *map(Child, others)]
        self._children = {child.part: child for child in children}
        self._death_pipe = os.pipe()
        self._changed = asyncio.Event()
        self._has_scheduler = asyncio.Event()  # one that is ready
        self._stop = asyncio.Event()
        self._forced = asyncio.Event()
        self._dropped = Dropped()
        self._losses = Losses()
        self._context = RingContext()
        self._tasks = TaskSet(self._on_failure)
        limits = args.step_timeout, args.part_timeout
        self._watch = Watch(children, *limits, self._changed.set)

    @property
    def ready(self) -> bool:
        """Whether every part of the ring, and a scheduler, serves this epoch, or requests wait for
        a scheduler."""
        is_up = all(self._state(self._children[part]) == "ready" for part in RING_PARTS)
        # At the start for all of them: one would get all first requests.
        is_starting = any(map(_is_in_first_start, self._schedulers))
        return is_up and not is_starting and any(map(self._serves, self._schedulers))

    @property
    def all_ready(self) -> bool:
        """Whether the ring is ready, and so are the compiler and the gateway. Nobody waits for
        other machines."""
        own = [child for child in self._children.values() if not isinstance(child, RemoteChild)]
        return self.ready and all(child.state == "ready" for child in own)

    @property
    def url(self) -> str | None:
        """The HTTP address; None without a gateway."""
        return None if self._listener is None else url_of(self._listener)

    @property
    def scheduler_facts(self) -> list[SchedulerFacts]:
        """What schedulers, or those before them, have reported of themselves."""
        facts = (child.facts for child in self._schedulers)
        return [each for each in facts if isinstance(each, SchedulerFacts)]

    @property
    def tokenizer_facts(self) -> TokenizerFacts | None:
        """What the tokenizer, or the one before it, has reported of itself."""
        facts = self._children["tokenizer"].facts
        return facts if isinstance(facts, TokenizerFacts) else None

    async def run(self, on_ready: Any = None) -> int:
        """Bring the server up, keep it up until a signal, bring it down."""
        self._handle_signals()
        events = bind(self._context, zmq.XPUB, self.ring.events)
        events.set(zmq.XPUB_VERBOSE, 1)
        ctl = bind(self._context, zmq.PULL, self.ring.ctl)
        listening = self._publish(events), self._greet(events), self._listen(ctl)
        for loop in (*listening, self._watch.run()):
            self._tasks.start(loop)
        try:
            for child in self._children.values():
                if not isinstance(child, RemoteChild):
                    self._start(child)
            await self._wait_until_ready(on_ready)
            await self._stop.wait()
            await self._drain()
        finally:
            await self._shut_down()
        if self._failure:
            log.error("%s", self._failure)
        return 1 if self._failure else 0

    def request_stop(self) -> None:
        """Drain and stop; asked a second time, stop at once."""
        if self._stop.is_set():
            self._forced.set()
        self._stop.set()

    # ---- children ------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        listener = self._listener if child.part == "gateway" else None
        process = child.start(
            self.ring.directory, self._epoch, self._incarnations, self._death_pipe[0], listener
        )
        pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit, child, process, pidfd)
        self._changed.set()

    def _on_exit(self, child: Child, process: subprocess.Popen[bytes], pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = process.wait()
        child.exited.set()
        child.state, child.beat = "dead", None
        if self._closing:
            return
        self._reason = f"{child.part} died ({described(status)})"
        self._losses.add(child.part, status, was_silent=child.is_silent)
        if child.replica is not None:
            self._renew(child.replica)
        elif child.part in RING_PARTS:
            self._end_epoch()
        elif child.part == HUB:  # with it goes the way to all remote schedulers
            for each, incarnation in zip(self._schedulers, self._incarnations, strict=True):
                if each.state != "absent" and isinstance(each, RemoteChild):
                    news = PlaceNews(
                        each.part, 0, False, incarnation, status, False, "the hub died"
                    )
                    self._on_place(each, news)
        self._changed.set()
        if self._stop.is_set() and child.replica is None:  # while draining
            if child.part not in (COMPILER, PROGRAMS, HUB):  # what it held is lost: no need to wait
                self._forced.set()
            return
        # One that has served before has met what an operator can mend, such as a full disk.
        if status == EXIT_CONFIG and not child.has_served:
            self._fail(f"{child.part} cannot run with these arguments (see above)")
            return
        log.warning("%s; restarting it", self._reason)
        self._tasks.start(self._restart(child))
        self._look_for_scheduler()

    def _look_for_scheduler(self) -> None:
        """After a loss: if no scheduler is ready, requests wait for one, for a while."""
        has_other = any(scheduler.state == "ready" for scheduler in self._schedulers)
        if self._has_scheduler.is_set() and not has_other:
            self._has_scheduler.clear()
            self._losses.pause()
            self._tasks.start(self._give_up())

    def _renew(self, replica: int) -> None:
        """A replica's next scheduler, or this one in the next epoch, has a new incarnation."""
        self._incarnations = self._incarnations.copy()
        self._incarnations[replica] = next_incarnation(self._incarnations, replica)

    def _end_epoch(self) -> None:
        """Everything in flight has failed."""
        self._epoch += 1
        for replica in range(len(self._incarnations)):
            self._renew(replica)

    async def _give_up(self) -> None:
        """End what waits for a scheduler if none is ready in time, and again what comes then."""
        why = f", and no other was ready within {self._args.resume_timeout:g} s"
        while True:
            try:
                async with asyncio.timeout(self._args.resume_timeout):
                    await self._has_scheduler.wait()
                    return
            except TimeoutError:
                self._end_epoch()
                self._reason = self._reason.removesuffix(why) + why
                self._changed.set()

    async def _restart(self, child: Child) -> None:
        if child.made_progress or time.monotonic() - child.started_at > HEALTHY_AFTER_S:
            child.restarts = 0
        child.restarts += 1
        if child.restarts > MAX_RESTARTS and not self._can_do_without(child):
            self._fail(f"{child.part} died {child.restarts} times in a row: giving up")
            return
        doublings = min(child.restarts, MAX_RESTARTS) - 1
        await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**doublings))
        if not self._stop.is_set() or (child.replica is not None and not self._closing):
            self._start(child)

    def _can_do_without(self, child: Child) -> bool:
        """Whether the server goes on however often the child dies."""
        if child.replica is not None:
            return any(other.state == "ready" for other in self._schedulers if other is not child)
        return child.part in (COMPILER, PROGRAMS, HUB) and child.has_served

    def _fail(self, why: str) -> None:
        self._failure = why
        self._forced.set()
        self._stop.set()

    # ---- what is heard and said ----------------------------------------------------------------

    async def _listen(self, ctl: RingSocket) -> None:
        inbox = Inbox(CtlMessage, "ctl", self._dropped)
        while True:
            beat = inbox.message(await ctl.receive())
            child = None if beat is None else self._children.get(beat.part)
            sender = self._children[HUB] if isinstance(child, RemoteChild) else child
            if child is None or sender is None or sender.pid != beat.pid:
                continue
            if isinstance(beat, PlaceNews):
                self._on_place(child, beat)
                continue
            before = self._event()
            child.beat, child.beat_at = beat, time.monotonic()
            child.facts = beat.facts
            child.made_progress |= beat.has_progressed
            if child.state == "starting":
                child.state, child.has_served = "ready", True
                if child.replica is not None:
                    self._has_scheduler.set()
                    self._losses.go_on()
            if self._event() != before:  # most beats report nothing new
                self._changed.set()

    def _on_place(self, child: Child, news: PlaceNews) -> None:
        """An agent has taken the place, or its scheduler has been lost."""
        child.state, child.beat = "starting" if news.is_taken else "absent", None
        child.beat_at = time.monotonic()
        if not news.is_taken:
            child.facts = None  # its pool bounds no request any more
        if news.lost:
            self._reason = f"{child.part} was lost ({news.reason})"
            log.warning("%s", self._reason)
            self._losses.add(child.part, news.status, was_silent=news.was_silent)
            assert child.replica is not None
            if news.lost == self._incarnations[child.replica]:  # else a new epoch has renewed it
                self._renew(child.replica)
            self._look_for_scheduler()
        self._changed.set()

    async def _publish(self, events: RingSocket) -> None:
        """Publish each change at once, and everything at each interval: silence means death."""
        last: RingEvent | None = None
        while True:
            event = self._event()
            if event != last and last is not None and event.ready and not last.ready:
                log.info("the ring is ready (epoch %d)", event.epoch)
            last = event
            send_now(events, event)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVENT_INTERVAL_S):
                    await self._changed.wait()

    async def _greet(self, events: RingSocket) -> None:
        """Publish the state when somebody subscribes."""
        while True:
            await events.receive()
            self._changed.set()

    def _event(self) -> RingEvent:
        told = self.tokenizer_facts
        placeholders = {} if told is None else told.media_placeholders
        beats = [child.beat for child in self._children.values() if child.beat is not None]
        return RingEvent(
            self._epoch,
            self.ready,
            self._draining,
            {child.part: self._state(child) for child in self._children.values()},
            self._reason,
            self._dropped.count + sum(beat.dropped for beat in beats),
            self._incarnations,
            self._losses.counts,
            self._losses.pause_s,
            min((facts.max_total_tokens for facts in self.scheduler_facts), default=0),
            None if told is None else [*placeholders],
            placeholders,
            "hermes" if told is None else told.call_format,
            {LAUNCHER: os.getpid()} | {each.part: each.pid for each in self._children.values()},
            self._watch.silent,
            _INSTANCE,
            pid_namespace(),
        )

    @property
    def _schedulers(self) -> list[Child]:
        return [child for child in self._children.values() if child.replica is not None]

    def _state(self, child: Child) -> str:
        """A part that has not heard of the epoch yet would drop what is sent to it."""
        is_behind = child.beat is not None and child.beat.epoch != self._epoch
        is_of_ring = child.part in RING_PARTS or child.replica is not None
        return "starting" if is_of_ring and is_behind else child.state

    def _serves(self, scheduler: Child) -> bool:
        waits = self._args.queue_while_restarting and scheduler.has_served
        if waits or self._args.dp == 0:  # a head without weights waits for other machines
            return True
        return self._state(scheduler) == "ready"

    async def _wait_until_ready(self, on_ready: Any) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.all_ready and not self._stop.is_set():
            if time.monotonic() > deadline:
                self._fail(f"not ready after {START_TIMEOUT_S:.0f} s")
                return
            await asyncio.sleep(0.02)
        if on_ready is not None and not self._stop.is_set():
            on_ready(self)

    # ---- the end -------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Refuse new requests, and leave those in flight until the drain time-out."""
        if self._failure:
            return
        self._draining = True
        self._changed.set()
        log.info("stopping: up to %.0f s for requests in flight", self._args.drain_timeout)
        deadline = (began := time.monotonic()) + self._args.drain_timeout
        settled = began + 2 * HEARTBEAT_INTERVAL_S  # counts from before the refusal would mislead
        while time.monotonic() < deadline and not self._forced.is_set():
            fronts = [c for c in self._children.values() if c.part in ("tokenizer", "gateway")]
            have_heard = all(child.beat and child.beat.is_draining for child in fronts)
            if (have_heard or time.monotonic() > settled) and self._in_flight() == 0:
                return
            await asyncio.sleep(0.02)

    def _in_flight(self) -> int:
        return sum(child.beat.in_flight for child in self._children.values() if child.beat)

    async def _shut_down(self) -> None:
        """End all children, the gateway first; nothing is left running."""
        self._stop.set()
        self._closing = True
        children = self._children.values()
        await self._terminate([child for child in children if child.part == "gateway"])
        await self._terminate([child for child in children if child.part != "gateway"])
        await self._tasks.close()
        self._context.destroy()
        if self._listener is not None:
            self._listener.close()
        os.close(self._death_pipe[1])
        os.close(self._death_pipe[0])
        shutil.rmtree(self.ring.directory, ignore_errors=True)

    async def _terminate(self, children: list[Child]) -> None:
        processes = [child.process for child in children if child.process is not None]
        children = [child for child in children if child.process is not None]
        for process in processes:
            if process.poll() is None:
                process.send_signal(STOP_SIGNAL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_GRACE_S):
                await asyncio.gather(*(child.exited.wait() for child in children))
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)

    def _on_failure(self, error: BaseException) -> None:
        log.error("the supervisor failed", exc_info=error)
        self._fail("the supervisor failed")


def _scheduler(replica: int, args: ServerArgs) -> Child:
    """The child of a place; those of this machine come first."""
    part = scheduler_part(replica, places_of(args))
    return Child(part, replica) if replica < args.dp else RemoteChild(part, replica, state="absent")


def _is_in_first_start(child: Child) -> bool:
    is_here = not isinstance(child, RemoteChild)
    return is_here and child.state == "starting" and child.restarts == 0 and not child.has_served
