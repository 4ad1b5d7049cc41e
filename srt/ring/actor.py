"""The base of every process of the ring: one uvloop loop, its sockets, its heartbeat, and its end.

A subclass opens sockets in `start`, registers a synchronous handler for each with `receive`, and
reacts to the ring's events. Handlers run one at a time on the loop, so its state needs no locks;
the sockets' own bounded queues are its mailbox. An exception in a handler ends the process: the
supervisor notices within a second and restarts it with a new epoch.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import select
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop
import zmq

from srt.args import ServerArgs
from srt.machine import allow_files
from srt.ring.child import STOP_SIGNAL
from srt.ring.inbox import Dropped, Inbox
from srt.ring.log import set_up_logging
from srt.ring.places import (
    BEAT_REPEAT_S,
    HEARTBEAT_INTERVAL_S,
    Ring,
    bind,
    connect,
    send_now,
)
from srt.ring.socket import Blob, RingContext, RingSocket
from srt.tasks import TaskSet
from srt.wire.errors import ConfigError
from srt.wire.messages import RingMessage
from srt.wire.ring_state import Facts, Heartbeat, RingEvent

log = logging.getLogger(__name__)

EXIT_CONFIG = 78  # the part cannot start as configured: restarting will not help
EXIT_HANG = 79  # the part has found out that it hangs
_PR_SET_PDEATHSIG = 1
_ALONE_S = 0.5
# More than any part needs. Login shells and service managers give 1,024, and allow a million, which
# a forked child closes one by one where the kernel is old.
_FILES = 2**14

# Of a message; one with frames behind it comes with the list of these.
Handler = Callable[..., None]
PeerHandler = Callable[..., None]  # the same, after the client


class Actor:
    """One part of the ring. `name` is the part's name in RingEvent.parts."""

    name = "actor"
    niceness = 0

    def __init__(
        self, ring: Ring, epoch: int, incarnations: Sequence[int], arguments: Sequence[str] = ()
    ) -> None:
        """`incarnations` are the schedulers'; `arguments` are those that the supervisor gives to
        this part only."""
        self.ring = ring
        self.arguments = arguments
        self.epoch = epoch
        self.incarnations = list(incarnations)
        self.args: ServerArgs = ring.read_args()
        self.context = RingContext()
        self.facts: Facts | None = None
        self.dropped = Dropped()
        self._last_beat: Heartbeat | None = None
        self.is_draining = False
        # A supervisor that replaces silent parts hears of each four times before.
        limits = (self.args.step_timeout, self.args.part_timeout)
        repeat_s = min([BEAT_REPEAT_S, *(limit / 4 for limit in limits if limit > 0)])
        self._beats_to_a_repeat = max(1, int(repeat_s / HEARTBEAT_INTERVAL_S))
        self.tasks = TaskSet(self._on_failure)  # of `start` and of the work after it
        self._loops: list[Coroutine[Any, Any, None]] = []
        self._failure: BaseException | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Open sockets and load what is needed. The part is ready when this returns."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Release what `start` took, within a second or two."""

    def new_epoch(self) -> None:
        """The tokenizer or the detokenizer was lost: forget every request. The schedulers have new
        incarnations too, whether they were lost or not."""
        raise NotImplementedError

    def scheduler_lost(self, incarnation: int) -> None:
        """Only a scheduler was lost: the replica's next one has this incarnation."""

    def hear(self, event: RingEvent) -> None:
        """The ring's state, after everything else that the event means."""

    def drain(self) -> None:
        """The server is stopping: take no new requests."""

    @property
    def in_flight(self) -> int:
        """Requests that this part still holds."""
        return 0

    @property
    def has_progressed(self) -> bool:
        """Whether this process has done work that it was started for."""
        return False

    # ---- for subclasses ------------------------------------------------------------------------

    def bind(self, kind: int, address: str) -> RingSocket:
        return bind(self.context, kind, address)

    def connect(self, kind: int, address: str) -> RingSocket:
        return connect(self.context, kind, address)

    def receive(self, socket: RingSocket, union: Any, handler: Handler) -> None:
        """Call `handler(message)` for everything that arrives from inside the ring, and
        `handler(message, blobs)` for what has frames behind it; messages that do not decode are
        dropped and counted."""
        inbox = Inbox(union, "a socket of the ring", self.dropped)

        async def loop() -> None:
            while True:
                frames = await socket.receive()
                message = inbox.message(frames)
                if message is not None:
                    handler(message, *_blobs(frames))

        self._loops.append(loop())

    def receive_from_clients(self, socket: RingSocket, union: Any, handler: PeerHandler) -> None:
        """The same for clients' messages: call `handler(client, message)`."""
        inbox = Inbox(union, "the clients' socket", self.dropped)

        async def loop() -> None:
            while True:
                client, *frames = await socket.receive()
                message = inbox.message(frames)
                if message is not None:
                    handler(client, message, *_blobs(frames))

        self._loops.append(loop())

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run `coroutine` beside the handlers, once the actor has started."""
        self._loops.append(coroutine)

    def send(self, socket: RingSocket, message: RingMessage, blobs: Sequence[Blob] = ()) -> None:
        """Send to the next part, with `blobs` behind the message. Its queue holds thousands of
        messages: a full one means that it hangs, and then only a new epoch helps."""
        if not send_now(socket, message, blobs=blobs):
            raise RuntimeError(f"{self.name}: the next part of the ring does not read")

    def request_stop(self) -> None:
        self._stopping.set()

    # ---- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """From start to STOP_SIGNAL."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(STOP_SIGNAL, self.request_stop)
        ctl = self.connect(zmq.PUSH, self.ring.ctl)
        events = self.connect(zmq.SUB, self.ring.events)
        self.receive(events, RingEvent, lambda event: self._on_event(event, ctl))
        try:
            await self.start()
        except BaseException:
            for coroutine in self._loops:
                coroutine.close()
            raise
        for coroutine in (*self._loops, self._beat(ctl)):
            self.tasks.start(coroutine)
        await self._stopping.wait()
        await self.tasks.close()
        await self.stop()
        self.context.destroy()
        if self._failure is not None:
            raise self._failure

    def _on_failure(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stopping.set()

    def _on_event(self, event: RingEvent, ctl: RingSocket) -> None:
        pairs = zip(event.incarnations, self.incarnations, strict=True)
        lost = [new for new, known in pairs if new > known]
        if lost:  # the events come in order
            self.incarnations = event.incarnations
        if event.epoch > self.epoch:
            self.epoch = event.epoch
            self.new_epoch()
            self._send_beat(ctl)
        else:
            for incarnation in lost:
                self.scheduler_lost(incarnation)
        if event.draining:
            self.is_draining = True
            self.drain()
            self._send_beat(ctl)
        self.hear(event)

    async def _beat(self, ctl: RingSocket) -> None:
        while True:
            self._last_beat = None  # in case one was lost
            for _ in range(self._beats_to_a_repeat):
                self._send_beat(ctl)
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)

    def _send_beat(self, ctl: RingSocket) -> None:
        """Mostly changes only: each message wakes another process, and a step waits for that."""
        beat = Heartbeat(
            self.name,
            os.getpid(),
            self.epoch,
            self.in_flight,
            self.facts,
            self.dropped.count,
            self.has_progressed,
            self.is_draining,
        )
        if beat != self._last_beat and send_now(ctl, beat):
            self._last_beat = beat


def _blobs(frames: list[bytes]) -> tuple[list[bytes], ...]:
    """The frames behind a message, as further arguments of its handler."""
    return (frames[1:],) if len(frames) > 1 else ()


def run_actor(actor: type[Actor]) -> None:
    """Run a child process from its command line (ring directory, epoch, the schedulers'
    incarnations with commas between them, death pipe, and the part's own arguments) to its end."""
    directory, epoch, incarnations, death_fd, *arguments = sys.argv[1:]
    _die_with_parent(directory, int(death_fd))
    ring = Ring(Path(directory))
    part = actor(ring, int(epoch), [*map(int, incarnations.split(","))], arguments)
    set_up_logging(part.name, part.args.log_level)
    faulthandler.enable()
    allow_files(_FILES)
    os.nice(actor.niceness)

    async def live() -> None:
        await part.run()

    status = 0
    try:
        uvloop.run(live())
    except ConfigError as error:
        log.error("%s", error)
        status = EXIT_CONFIG
    except Exception:
        log.exception("%s failed", actor.name)
        status = 1
    logging.shutdown()
    _leave(directory, int(death_fd), status, _ALONE_S if len(arguments) > 1 else 0.0)


def _die_with_parent(directory: str, death_fd: int) -> None:
    """End this process when the launcher ends, however it ends.

    The launcher holds the other end of a pipe that is never written to; reading its end means
    that the launcher is gone. PDEATHSIG covers the time before the thread runs.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, STOP_SIGNAL)

    def watch() -> None:
        os.read(death_fd, 1)
        _leave(directory, death_fd, 1)

    threading.Thread(target=watch, name="death-pipe", daemon=True).start()


def _leave(directory: str, death_fd: int, status: int, patience_s: float = 0.0) -> None:
    """End this process at once: the interpreter would wait for a compute thread, which may hang.
    Without a launcher the last part to leave removes what is left of the ring, so all try it:
    the signal of its death may end a part before its thread has seen it. The schedulers of a node
    are alone there: they wait `patience_s` for the pipe, which the last thread of a process closes,
    while the signal comes with the end of its first."""
    if select.select([death_fd], [], [], patience_s)[0]:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(status)
