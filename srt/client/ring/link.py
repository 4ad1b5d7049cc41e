"""A client's link to a ring: its sockets, identity and lease, and the epoch it is welcome in.

A client has a random identity for its life. It says Hello on the back socket and sends nothing
before the Welcome of the current epoch; further Hellos renew its lease. When a RingEvent brings a
new epoch, or nothing at all is heard any more, everything in flight is lost: `on_lost` is called,
which works without the ring. RingEvents alone may stop: then the launcher stands still, and the
parts go on.

An event that cannot be decoded is dropped: the next one says the same. An answer or output that
cannot is lost, and with it everything in flight, which would miss it; the link is opened again
after COME_BACK_S. So it is after a reader has failed, which is a defect, and when no socket can be
opened, unless `on_failure` takes the error.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec
import zmq

from srt import forked
from srt.client.ring.patience import Question, patience_s, within
from srt.client.ring.silence import Silence
from srt.client.ring.sockets import Sockets, open_dealer, open_sockets
from srt.ring.halted import Halted, halted_parts
from srt.ring.inbox import Dropped, Inbox
from srt.ring.places import (
    LEASE_INTERVAL_S,
    LEASE_S,
    QUIET_S,
    ring_at,
    send_now,
)
from srt.ring.socket import RingContext, RingSocket
from srt.tasks import TaskSet
from srt.wire.errors import RESTARTING, UNAVAILABLE, RequestError, RingError, check_process
from srt.wire.messages import (
    AbortReq,
    BackReply,
    ControlResult,
    Expired,
    FrontReply,
    Goodbye,
    Hello,
    Output,
    OutputBatch,
    Refused,
    Welcome,
)
from srt.wire.ring_state import LAUNCHER, RingEvent

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
WELCOME_TIMEOUT_S = 2.0
COME_BACK_S = 1.0
_LAUNCHER_SILENT = (
    f"nothing has been heard of the server's launcher for {QUIET_S:g} s: requests go on, but no "
    "part of the server that ends now is replaced"
)
_NOT_REACHED = "the server cannot be reached"
_NOT_UNDERSTOOD = (
    "a message of the server could not be understood: is this client of the server's version?"
)
_NEW_SERVER = "the server has ended, and another one has started in its place"
_GIVEN_UP = f"the server had heard nothing of this client for {LEASE_S:.0f} s, and gave it up"


class RingLink:
    """The link to the ring at `url` (ipc://DIRECTORY). Use within one event loop.

    `on_outputs` gets the outputs of admitted requests, `on_lost` the reason why no more will come.
    `dropped` counts what could not be decoded. `on_failure` is for an owner that ends with its
    client: it gets the error of a reader that has failed, or of sockets that cannot be opened
    again, and the link stays closed.
    """

    def __init__(
        self,
        url: str,
        on_outputs: Callable[[list[Output]], None],
        on_lost: Callable[[RingError], None],
        dropped: Dropped | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.epoch = 0  # of the last Welcome
        self.places = ring_at(url)
        # Called with each event of the ring, and with None when it has gone silent or is left.
        self.listeners: list[Callable[[RingEvent | None], None]] = []
        self.dropped = Dropped() if dropped is None else dropped
        self._on_outputs, self._on_lost, self._on_defect = on_outputs, on_lost, on_failure
        self._context = RingContext()
        self._answers: dict[str, asyncio.Future[Any]] = {}  # by the ids of what was asked
        self._event: RingEvent | None = None
        self._silence = Silence()
        self._readers: list[asyncio.Task[None]] = []  # of the sockets; none while those are closed
        self._hello_at = time.monotonic()
        self._pid = os.getpid()
        self._usable = asyncio.Event()
        self._tasks = TaskSet(self._on_failure)
        forked.renew_in_children(self, RingLink._begin_in_child)

    def _begin_in_child(self) -> None:
        """The sockets are the parent's; who waits for the ring is told so."""
        forked.leave(self)
        self._event = None

    @property
    def ring(self) -> RingEvent | None:
        """The ring as last heard; None when nothing is heard of it. It is ready only once this
        client is welcome in its epoch. A launcher that is not heard is one of the silent, and so
        are the parts that are found halted meanwhile."""
        event = self._event
        if event is not None and self.is_ready != event.ready:
            event = msgspec.structs.replace(event, ready=False)
        if event is not None and self._silence.is_of_launcher:
            silent = dict.fromkeys([*event.silent, LAUNCHER, *self._silence.halted])
            event = msgspec.structs.replace(event, silent=[*silent])
        return event

    @property
    def identity(self) -> bytes:
        """Under which the ring's parts know this client now."""
        return self._sockets.identity

    @property
    def is_ready(self) -> bool:
        """Whether requests can be sent: the ring is ready, and this client welcome in its epoch."""
        return self._event is not None and self._event.ready and self.epoch == self._event.epoch

    async def start(self) -> None:
        """Connect, without waiting for the ring to be ready (see `wait_ready`)."""
        self._incarnate()

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until requests can be sent. Raises RingError when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._usable.wait()
        except TimeoutError:
            raise RingError(f"the server was not ready within {timeout_s:.0f} s") from None

    async def close(self) -> None:
        """Say goodbye, which ends everything this client still has on the server."""
        if not len(self._tasks) or os.getpid() != self._pid:
            return
        if self._readers:
            send_now(self._sockets.back, Goodbye())
            await asyncio.sleep(0.01)  # let the I/O thread send it: LINGER is 0
        await self._tasks.close()
        self._event = None  # later calls find no server
        self._lose(RingError("the client was closed"))
        self._context.destroy()

    async def until_usable(self) -> None:
        """Wait for the Welcome if it is due. Raises RingError if requests cannot be sent then."""
        check_process(self._pid, "client")
        if self._event is None:
            raise RingError(_NOT_REACHED)
        if time.monotonic() > self._hello_at + LEASE_S:  # our lease may have expired: ask
            self._usable.clear()
            self._say_hello()
        if self._event is not None and self._event.ready and not self._usable.is_set():
            with contextlib.suppress(TimeoutError):
                await within(WELCOME_TIMEOUT_S, self._usable.wait())
        if self._event is None:
            raise RingError(_NOT_REACHED)
        if not self.is_ready:
            code = RESTARTING if self._event.only_lacks_scheduler else UNAVAILABLE
            raise RingError(self._event.reason or "the server is starting", code)

    async def ask(
        self, question: Question, given_up: Sequence[str] = (), blobs: Sequence[bytes] = ()
    ) -> Any:
        """The answer to a question with the frames `blobs` behind it. RequestError if it is
        refused, RingError if there is none in time.

        If the caller stops waiting, the requests `given_up` are ended.
        """
        if not self._readers:
            raise RingError(_NOT_REACHED)
        answer = asyncio.get_running_loop().create_future()
        self._answers[question.rid] = answer
        try:
            if not send_now(self._sockets.front, question, blobs=blobs):
                raise RingError("the server does not take requests")
            return await within(patience_s(question), answer)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.abort(given_up)
            if isinstance(error, TimeoutError):
                raise RingError("the server did not answer in time") from None
            raise
        finally:
            self._answers.pop(question.rid, None)

    def abort(self, wire_ids: Iterable[str]) -> None:
        """End those of these requests that the server has."""
        if self._event is not None and self.epoch == self._event.epoch:
            for wire_id in wire_ids:
                send_now(self._sockets.front, AbortReq(wire_id, self.epoch))

    def open_dealer(self, address: str, identity: bytes) -> RingSocket:
        """A socket to one of the ring's parts, which is closed with this link. Raises RingError if
        none can be opened."""
        try:
            return open_dealer(self._context, address, identity)
        except zmq.ZMQError as error:
            raise RingError(f"the client cannot open a socket: {error}") from error

    def start_reader(self, reader: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `reader` for as long as the link is open."""
        return self._tasks.start(reader)

    # ---- the life of an identity ---------------------------------------------------------------

    def _incarnate(self) -> None:
        """Open all sockets under a fresh identity, and read them. Raises ZMQError."""
        self._sockets: Sockets = open_sockets(self._context, self.places)
        self._silence = Silence()
        _, events, front, back = self._sockets
        loops = self._read_events(events), self._read_front(front), self._read_back(back)
        self._readers = [self._tasks.start(loop) for loop in (*loops, self._keep_lease())]

    def _discarnate(self, reason: str) -> None:
        """What this client had in flight is lost: fail it, and close what its identity had."""
        send_now(self._sockets.back, Goodbye())  # if the ring lives, our requests end there too
        self.epoch = 0
        self._set_usable()
        for reader in self._readers:
            reader.cancel()
        self._readers = []
        self._sockets.close()
        self._lose(RingError(reason))

    def _reincarnate(self, reason: str) -> None:
        self._discarnate(reason)
        try:
            self._incarnate()
        except zmq.ZMQError as error:
            log.error("the client cannot open its sockets: %s", error)
            self._event = None
            self._tell(None)
            self._stay_closed(error)

    def _on_failure(self, error: BaseException) -> None:
        log.error("the client failed", exc_info=error)
        if self._readers:  # else another reader's failure was first
            self._event = None
            self._discarnate("the client failed (its log says why)")
            self._stay_closed(error)

    def _on_undecodable(self) -> None:
        """Whose message it was is not known. Not opened again at once: the next message may be the
        same."""
        log.error("%s", _NOT_UNDERSTOOD)
        self._event = None
        self._discarnate(_NOT_UNDERSTOOD)
        self._tasks.start(self._come_back())

    def _stay_closed(self, error: BaseException) -> None:
        """For a while, or for good if the owner ends with this client."""
        if self._on_defect is None:
            self._tasks.start(self._come_back())
        else:
            self._on_defect(error)

    async def _come_back(self) -> None:
        while not self._readers:
            await asyncio.sleep(COME_BACK_S)
            try:
                self._incarnate()
            except zmq.ZMQError as error:
                log.error("the client cannot open its sockets: %s", error)

    def _lose(self, error: RingError) -> None:
        self._on_lost(error)
        if self._event is None:
            self._tell(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error.copy())

    def _tell(self, event: RingEvent | None) -> None:
        for listener in self.listeners:
            listener(event)

    def _set_usable(self) -> None:
        if self.is_ready:
            self._usable.set()
        else:
            self._usable.clear()

    async def _keep_lease(self) -> None:
        while True:
            self._say_hello()
            await asyncio.sleep(LEASE_INTERVAL_S)

    def _say_hello(self) -> None:
        self._hello_at = time.monotonic()
        send_now(self._sockets.back, Hello())

    # ---- what the ring says --------------------------------------------------------------------

    async def _read_events(self, events: RingSocket) -> None:
        inbox, silence = Inbox(RingEvent, "the ring's events", self.dropped), self._silence
        while True:
            try:
                frames = await within(silence.patience_s, events.receive())
            except TimeoutError:
                lost = self._why_lost()
                if lost:
                    self._event = None
                    self._reincarnate(lost)
                    return  # a new reader has taken over
                continue
            if silence.is_of_launcher and self._event is not None:
                log.warning("the server's launcher is heard again")
            silence.launcher_spoke()
            event = inbox.message(frames)
            if event is not None:
                self._on_event(event)

    def _why_lost(self) -> str:
        """Called while no event comes: why the ring is lost, "" as long as it may go on."""
        event, silence = self._event, self._silence
        if event is not None and not silence.is_of_launcher:
            log.warning("%s", _LAUNCHER_SILENT)
        silence.launcher_was_silent()
        if silence.is_of_all or (silence.is_of_parts and not self.places.directory.exists()):
            return _NOT_REACHED
        if event is None:
            return ""
        halted = halted_parts(event)
        silence.halted = [*halted]
        ended = [part for part, how in halted.items() if how is Halted.ENDED]
        if msgspec.structs.replace(event, silent=ended).stands_still:
            return f"{ended[0]} has ended, and the server's launcher stands still"
        return ""

    def _on_event(self, event: RingEvent) -> None:
        known, self._event = self._event, event
        if known is not None and event.instance != known.instance:
            self.epoch = 0  # the Welcome may have been the server's before
            self._tell(None)
            self._lose(RingError(_NEW_SERVER))
        self._tell(event)
        if known is not None and event.instance == known.instance and event.epoch != known.epoch:
            self._lose(RingError(event.reason or "a part of the server died"))
        if event.ready and self.epoch != event.epoch:
            self._say_hello()
        self._set_usable()

    async def _read_front(self, front: RingSocket) -> None:
        inbox = Inbox(FrontReply, "the front's answers", self.dropped)
        while True:
            reply = inbox.message(await front.receive())
            if reply is None:
                self._on_undecodable()
                return
            self._on_answer(reply)

    async def _read_back(self, back: RingSocket) -> None:
        inbox, silence = Inbox(BackReply, "the back's replies", self.dropped), self._silence
        while True:
            reply = inbox.message(await back.receive())
            silence.part_spoke()
            if reply is None:
                self._on_undecodable()
                return
            if isinstance(reply, Welcome):
                self.epoch = reply.epoch
                self._set_usable()
            elif isinstance(reply, Expired):
                self._reincarnate(_GIVEN_UP)
                return  # a new reader has taken over
            elif isinstance(reply, OutputBatch) and reply.epoch == self.epoch:
                self._on_outputs(reply.outputs)
            elif isinstance(reply, ControlResult):
                self._on_answer(reply)

    def _on_answer(self, reply: Any) -> None:
        answer = self._answers.get(reply.rid)
        if answer is None or answer.done():
            return
        if isinstance(reply, Refused | ControlResult) and reply.error is not None:
            answer.set_exception(RequestError.from_info(reply.error))
        else:
            answer.set_result(reply)
