"""A client's link to a ring: its sockets, identity and lease, and the epoch it is welcome in.

The only file that knows the clients' sockets. A client has a random identity for its life. It says
Hello on the back socket and sends nothing before the Welcome of the current epoch; further Hellos
renew its lease. When a RingEvent brings a new epoch, or nothing at all is heard any more,
everything in flight is lost: `on_lost` is called, which works without the ring. RingEvents alone
may stop: then the launcher stands still, and the parts go on.

What cannot be decoded is dropped. A reader that fails has met a defect: everything in flight is
lost, and the link is opened again after COME_BACK_S, unless `on_failure` takes the error.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import zmq

from srt import forked
from srt.client.ring.patience import within
from srt.client.ring.silence import Silence
from srt.ring.inbox import Dropped, Inbox
from srt.ring.places import (
    LEASE_INTERVAL_S,
    LEASE_S,
    QUIET_S,
    connect,
    open_socket,
    ring_at,
    send_now,
)
from srt.ring.socket import RingContext, RingSocket
from srt.tasks import TaskSet
from srt.wire.errors import RESTARTING, UNAVAILABLE, RequestError, RingError, check_process
from srt.wire.messages import (
    AbortReq,
    BackReply,
    CaptureReq,
    ControlReq,
    ControlResult,
    Expired,
    FrontReply,
    GenerateReq,
    Goodbye,
    Hello,
    Output,
    OutputBatch,
    Refused,
    ScoreReq,
    TokenizeReq,
    Welcome,
)
from srt.wire.ring_state import LAUNCHER, RingEvent

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0  # of the front
GRAMMAR_TIMEOUT_S = 180.0  # of the front, if it has to wait for a grammar
CONTROL_TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
WELCOME_TIMEOUT_S = 2.0
COME_BACK_S = 1.0
Question = GenerateReq | ScoreReq | TokenizeReq | CaptureReq | ControlReq
_LAUNCHER_SILENT = (
    f"nothing has been heard of the server's launcher for {QUIET_S:g} s: requests go on, but no "
    "part of the server that ends now is replaced"
)
_GIVEN_UP = f"the server had heard nothing of this client for {LEASE_S:.0f} s, and gave it up"


class _Sockets(NamedTuple):
    """Those of one identity."""

    identity: bytes
    events: RingSocket
    front: RingSocket
    back: RingSocket

    def close(self) -> None:
        for socket in self[1:]:
            socket.close()


class RingLink:
    """The link to the ring at `url` (ipc://DIRECTORY). Use within one event loop.

    `on_outputs` gets the outputs of admitted requests, `on_lost` the reason why no more will come.
    `dropped` counts what could not be decoded. `on_failure` is for an owner that ends with its
    client: it gets the error of a reader that has failed, and the link stays closed.
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
        client is welcome in its epoch. A launcher that is not heard is one of the silent."""
        event = self._event
        if event is not None and self.is_ready != event.ready:
            event = msgspec.structs.replace(event, ready=False)
        if event is not None and self._silence.is_of_launcher:
            event = msgspec.structs.replace(event, silent=[*event.silent, LAUNCHER])
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
        if not self._sockets.back.closed:
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
            raise RingError("the server cannot be reached")
        if time.monotonic() > self._hello_at + LEASE_S:  # our lease may have expired: ask
            self._usable.clear()
            self._say_hello()
        if self._event is not None and self._event.ready and not self._usable.is_set():
            with contextlib.suppress(TimeoutError):
                await within(WELCOME_TIMEOUT_S, self._usable.wait())
        if self._event is None:
            raise RingError("the server cannot be reached")
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
        answer = asyncio.get_running_loop().create_future()
        self._answers[question.rid] = answer
        try:
            if not send_now(self._sockets.front, question, blobs=blobs):
                raise RingError("the server does not take requests")
            return await within(_patience_s(question), answer)
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
        """A socket to one of the ring's parts, which is closed with this link."""
        socket = open_socket(self._context, zmq.DEALER)
        socket.set(zmq.IDENTITY, identity)
        socket.connect(address)
        return socket

    def start_reader(self, reader: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `reader` for as long as the link is open."""
        return self._tasks.start(reader)

    # ---- the life of an identity ---------------------------------------------------------------

    def _incarnate(self) -> None:
        """Open all sockets under a fresh identity, and read them."""
        identity, self._silence = os.urandom(16), Silence()
        self._sockets = sockets = _Sockets(
            identity,
            connect(self._context, zmq.SUB, self.places.events),
            self.open_dealer(self.places.front, identity),
            self.open_dealer(self.places.back, identity),
        )
        events, answers = self._read_events(sockets.events), self._read_front(sockets.front)
        loops = (events, answers, self._read_back(sockets.back), self._keep_lease())
        self._readers = [self._tasks.start(loop) for loop in loops]

    def _discarnate(self, reason: str) -> None:
        """What this client had in flight is lost: fail it, and close what its identity had."""
        send_now(self._sockets.back, Goodbye())  # if the ring lives, our requests end there too
        self.epoch = 0
        self._set_usable()
        for reader in self._readers:
            reader.cancel()
        self._sockets.close()
        self._lose(RingError(reason))

    def _reincarnate(self, reason: str) -> None:
        self._discarnate(reason)
        self._incarnate()

    def _on_failure(self, error: BaseException) -> None:
        log.error("the client failed", exc_info=error)
        if self._sockets.back.closed:  # another reader's failure was first
            return
        if self._on_defect is None:
            self._tasks.start(self._come_back())
        else:
            self._on_defect(error)
        self._event = None
        self._discarnate("the client failed (its log says why)")

    async def _come_back(self) -> None:
        while self._sockets.back.closed:
            await asyncio.sleep(COME_BACK_S)
            try:
                self._incarnate()
            except zmq.ZMQError as error:  # such as too many open files
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
                if self._event is not None and not silence.is_of_launcher:
                    log.warning("%s", _LAUNCHER_SILENT)
                silence.launcher_was_silent()
                if silence.is_of_all or not self.places.directory.exists():
                    self._event = None
                    self._reincarnate("the server cannot be reached")
                    return  # a new reader has taken over
                continue
            if silence.is_of_launcher and self._event is not None:
                log.warning("the server's launcher is heard again")
            silence.launcher_spoke()
            event = inbox.message(frames)
            if event is not None:
                self._on_event(event)

    def _on_event(self, event: RingEvent) -> None:
        lost = self._event is not None and event.epoch != self._event.epoch
        self._event = event
        self._tell(event)
        if lost:
            self._lose(RingError(event.reason or "a part of the server died"))
        if event.ready and self.epoch != event.epoch:
            self._say_hello()
        self._set_usable()

    async def _read_front(self, front: RingSocket) -> None:
        inbox, silence = Inbox(FrontReply, "the front's answers", self.dropped), self._silence
        while True:
            reply = inbox.message(await front.receive())
            silence.part_spoke()
            if reply is not None:
                self._on_answer(reply)

    async def _read_back(self, back: RingSocket) -> None:
        inbox, silence = Inbox(BackReply, "the back's replies", self.dropped), self._silence
        while True:
            reply = inbox.message(await back.receive())
            silence.part_spoke()
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


def _patience_s(question: Question) -> float:
    if isinstance(question, ControlReq):
        return question.timeout_s + CONTROL_TIMEOUT_S
    is_constrained = isinstance(question, GenerateReq) and question.sampling.constraint is not None
    return GRAMMAR_TIMEOUT_S if is_constrained else ANSWER_TIMEOUT_S
