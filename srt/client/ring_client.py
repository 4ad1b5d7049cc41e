"""A client of the ring: the only file that knows the clients' sockets.

A client has a random identity for its life. It says Hello on the back socket and sends nothing
before the Welcome of the present epoch; Hellos go on as its lease. When a RingEvent brings a new
epoch, or none comes any more, it fails everything it has in flight by itself: that needs no
working ring.
"""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import msgspec
import zmq

from srt.client.generation import (
    Generation,
    Request,
    ScoreOutput,
    ScoreRequest,
    TokenizeRequest,
    require_single,
)
from srt.client.patience import within
from srt.client.ring_generation import RingGeneration, RingSamples
from srt.client.ring_score import RingScore, ScorePart
from srt.ring.places import (
    LEASE_INTERVAL_S,
    LEASE_S,
    RING_LOST_S,
    connect,
    open_socket,
    ring_at,
    send_now,
)
from srt.ring.socket import RingContext, RingSocket
from srt.wire.constraint import Capture, Constraint
from srt.wire.errors import RequestError, RingError, check_process
from srt.wire.messages import (
    AbortReq,
    Admitted,
    BackReply,
    Captured,
    CaptureReq,
    ControlReq,
    ControlResult,
    Expired,
    FrontReply,
    GenerateReq,
    Goodbye,
    Hello,
    Message,
    OutputBatch,
    Refused,
    RingEvent,
    ScoreReq,
    Tokenized,
    TokenizeReq,
    Welcome,
    decoder,
    unpack_ids,
)

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0  # of the front
GRAMMAR_TIMEOUT_S = 180.0  # of the front, if it has to wait for a grammar
CONTROL_TIMEOUT_S = 5.0
START_TIMEOUT_S = 60.0
WELCOME_TIMEOUT_S = 2.0
MAX_RID_CHARS = 256
FrontQuestion = GenerateReq | ScoreReq | TokenizeReq | CaptureReq
_NO_ANSWER = "the server did not answer in time"
_GIVEN_UP = f"the server had heard nothing of this client for {LEASE_S:.0f} s, and gave it up"


class RingClient:
    """A client of the ring in `url` (ipc://DIRECTORY). Use within one event loop."""

    def __init__(self, url: str) -> None:
        self._ring = ring_at(url)
        self._context = RingContext()
        # On the wire each submission has an id of its own, so that what still comes of an old
        # request can never reach a new one with the same rid.
        self._live: dict[str, RingGeneration | ScorePart] = {}  # by wire id
        # Whom an abort by this tenant and rid ends. Of several samples, each also has its own rid.
        self._by_rid: dict[tuple[str, str], RingSamples | RingGeneration | RingScore] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}  # the front's, by wire id
        self._controls: dict[str, asyncio.Future[Any]] = {}  # JSON bytes, by wire id
        self._last_wire_id = 0
        self._event: RingEvent | None = None
        self._epoch = 0  # of the last Welcome
        self._hello_at = time.monotonic()
        self._pid = os.getpid()
        self._usable = asyncio.Event()
        self._tasks: list[asyncio.Future[None]] = []
        self._readers: list[asyncio.Future[None]] = []

    @property
    def ring(self) -> RingEvent | None:
        """The ring as last heard; None when the supervisor has gone silent. It is ready only once
        this client is welcome in its epoch."""
        if self._event is None or self.is_ready == self._event.ready:
            return self._event
        return msgspec.structs.replace(self._event, ready=False)

    @property
    def is_ready(self) -> bool:
        """Whether a request has a chance: ring ready, and this client welcome in its epoch."""
        return self._event is not None and self._event.ready and self._epoch == self._event.epoch

    async def start(self) -> None:
        """Connect, without waiting for the ring to be ready (see `wait_ready`)."""
        self._events = connect(self._context, zmq.SUB, self._ring.events)
        self._incarnate()
        loops = (self._read_events(), self._keep_lease())
        self._tasks = [self._task(loop) for loop in loops]

    def _incarnate(self) -> None:
        """Open both sockets under a fresh identity."""
        identity = os.urandom(16)
        self._front = self._dealer(self._ring.front, identity)
        self._back = self._dealer(self._ring.back, identity)
        loops = (self._read_front(self._front), self._read_back(self._back))
        self._readers = [self._task(loop) for loop in loops]

    def _task(self, loop: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a loop of this client; if it fails, so does everything that waits for it."""
        task = asyncio.ensure_future(loop)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("the client failed", exc_info=task.exception())
            self._event = None
            self._usable.clear()
            self._fail_all(RingError("the client failed (its log says why)"))

    def _reincarnate(self, reason: str) -> None:
        """What this client had in flight is lost: fail it and start afresh."""
        self._epoch = 0
        self._set_usable()
        self._fail_all(RingError(reason))
        readers, sockets = self._readers, (self._front, self._back)
        self._incarnate()
        for reader in readers:
            reader.cancel()
        for socket in sockets:
            socket.close()
        self._say_hello()

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until requests can be sent. Raises RingError when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._usable.wait()
        except TimeoutError:
            raise RingError(f"the server was not ready within {timeout_s:.0f} s") from None

    async def close(self) -> None:
        """Say goodbye, which ends everything this client still has on the server."""
        if not self._tasks or os.getpid() != self._pid:
            return
        send_now(self._back, Goodbye())
        await asyncio.sleep(0.01)  # let the I/O thread put it on the wire: LINGER is 0
        tasks = [*self._tasks, *self._readers]
        self._tasks = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._event = None  # later calls find no server
        self._fail_all(RingError("the client was closed"))
        self._context.destroy()

    async def submit(self, request: Request) -> Generation:
        """Hand in a request for one completion; returns once the front has admitted it."""
        require_single(request)
        return (await self.submit_samples(request))[0]

    async def submit_samples(self, request: Request) -> list[RingGeneration]:
        """Hand in a request; its samples, once the front has admitted them."""
        request.sampling.check_count()
        rid, tenant = uuid.uuid4().hex if request.rid is None else request.rid, request.tenant
        self._check_rid(rid, tenant)
        await self._until_usable()
        samples = RingSamples(rid, self._next_wire_id(), request, self._forget, self._captures)
        for name in (rid, *(part.rid for part in samples.generations)):
            self._check_unused(name, tenant)
        req = samples.message(self._epoch)
        self._by_rid.update(((tenant, part.rid), part) for part in samples.generations)
        self._by_rid[tenant, rid] = samples
        self._live.update((part.wire_id, part) for part in samples.generations)
        await self._admit(samples, req)
        return samples.generations

    async def _admit(self, samples: RingSamples, req: GenerateReq) -> None:
        """Send the request and wait for the front's word. Whatever goes wrong, none is left."""
        try:
            admitted: Admitted = await self._answer_to(req)
        except BaseException as error:
            for generation in samples.generations:
                if isinstance(error, RequestError):
                    self._drop(generation)
                else:
                    self._forget(generation)
            if isinstance(error, TimeoutError):
                raise RingError(_NO_ANSWER) from None
            raise
        samples.admit(admitted)
        for index in admitted.aborted:
            self._drop(samples.generations[index])

    async def _captures(
        self, constraint: Constraint, text: str, tenant: str
    ) -> list[Capture] | None:
        """The captures of an answer. None also if they cannot be told: the answer is there."""
        req = CaptureReq(self._next_wire_id(), self._epoch, constraint, text, tenant)
        try:
            answer: Captured = await self._ask(req)
        except RequestError as error:
            log.info("the captures of an answer could not be found: %s", error)
            return None
        return answer.captures

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        """The token ids of a text, or of the prompt that messages make."""
        await self._until_usable()
        req = TokenizeReq(
            rid=self._next_wire_id(),
            epoch=self._epoch,
            text=request.text,
            messages=request.messages,
            tools=list(request.tools),
            chat=request.chat,
            add_special_tokens=request.add_special_tokens,
            tenant=request.tenant,
        )
        answer: Tokenized = await self._ask(req)
        ids: list[int] = unpack_ids(answer.ids).tolist()
        return ids

    async def _ask(self, req: TokenizeReq | CaptureReq) -> Any:
        """The front's answer to a question. RequestError if it is refused, RingError if there is
        none."""
        try:
            return await self._answer_to(req)
        except RequestError:
            raise
        except BaseException as error:
            if self.is_ready:
                send_now(self._front, AbortReq(req.rid, req.epoch))
            if isinstance(error, TimeoutError):
                raise RingError(_NO_ANSWER) from None
            raise

    async def _answer_to(self, req: FrontQuestion) -> Any:
        """Send the request, and the front's answer. RequestError if it is refused, TimeoutError
        if there is none."""
        answer = asyncio.get_running_loop().create_future()
        self._answers[req.rid] = answer
        try:
            self._send(req)
            return await within(_answer_timeout_s(req), answer)
        finally:
            self._answers.pop(req.rid, None)

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        """How likely each continuation is behind the prefix."""
        rid = uuid.uuid4().hex if request.rid is None else request.rid
        self._check_rid(rid, request.tenant)
        await self._until_usable()
        self._check_rid(rid, request.tenant)
        score = RingScore(rid, self._next_wire_id(), len(request.continuations), request.tenant)
        req = score.message(request, self._epoch)
        self._by_rid[score.tenant, rid] = score
        self._live.update((part.wire_id, part) for part in score.parts)
        try:
            return await score.result(await self._answer_to(req))
        except RequestError:
            self._end_score(score, abort=score.is_admitted)
            raise
        except TimeoutError:
            raise RingError(_NO_ANSWER) from None
        finally:
            self._end_score(score, abort=True)

    def _end_score(self, score: RingScore, abort: bool) -> None:
        """Forget the score, and end those of its parts that have not ended."""
        self._free(score)
        for wire_id in score.wire_ids:
            if self._live.pop(wire_id, None) is not None and abort and self.is_ready:
                send_now(self._front, AbortReq(wire_id, self._epoch))

    async def abort(self, rid: str, tenant: str = "") -> None:
        """End this client's request `rid` of `tenant`, all samples of it, or the one that has this
        rid: their last snapshots come soon, with finish "abort". An unknown rid is ignored.
        """
        request = self._by_rid.get((tenant, rid))
        if request is not None and self.is_ready:
            for wire_id in request.wire_ids:
                send_now(self._front, AbortReq(wire_id, self._epoch))

    def _forget(self, generation: RingGeneration) -> None:
        """Nobody reads this any more: end it, and drop what still comes of it."""
        if self._drop(generation) and self.is_ready:
            send_now(self._front, AbortReq(generation.wire_id, self._epoch))

    def _next_wire_id(self) -> str:
        """An id that no earlier request of this client had."""
        self._last_wire_id += 1
        return str(self._last_wire_id)

    def _drop(self, part: RingGeneration | ScorePart) -> bool:
        """Free its rid, and the request's with the last of its parts; whether it was live."""
        was_live = self._live.pop(part.wire_id, None) is not None
        self._free(part)
        if not any(wire_id in self._live for wire_id in part.group.wire_ids):
            self._free(part.group)
        return was_live

    def _free(self, holder: RingGeneration | ScorePart | RingSamples | RingScore) -> None:
        if self._by_rid.get((holder.tenant, holder.rid)) is holder:
            del self._by_rid[holder.tenant, holder.rid]

    def _check_rid(self, rid: str, tenant: str) -> None:
        if not 0 < len(rid) <= MAX_RID_CHARS:
            raise RequestError(f"rid must have 1 to {MAX_RID_CHARS} characters", param="rid")
        self._check_unused(rid, tenant)

    def _check_unused(self, rid: str, tenant: str) -> None:
        if (tenant, rid) in self._by_rid:
            raise RequestError(f"rid {rid!r} is already in use", param="rid")

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        """Empty the prefix cache; RequestError CONFLICT if requests are in the way."""
        await self._control("flush_cache", timeout_s)

    async def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges."""
        stats: dict[str, Any] = msgspec.json.decode(await self._control("stats", 0.0))
        return stats

    async def _control(self, op: str, timeout_s: float) -> bytes:
        await self._until_usable()
        rid = self._next_wire_id()
        answer = asyncio.get_running_loop().create_future()
        self._controls[rid] = answer
        try:
            self._send(ControlReq(rid, self._epoch, op, timeout_s))
            data: bytes = await within(timeout_s + CONTROL_TIMEOUT_S, answer)
            return data
        except TimeoutError:
            raise RingError(_NO_ANSWER) from None
        finally:
            self._controls.pop(rid, None)

    # ---- the ring's side -----------------------------------------------------------------------

    def _dealer(self, address: str, identity: bytes) -> RingSocket:
        socket = open_socket(self._context, zmq.DEALER)
        socket.set(zmq.IDENTITY, identity)
        socket.connect(address)
        return socket

    async def _until_usable(self) -> None:
        """Raise RingError unless requests can be sent now, or as soon as the Welcome is here."""
        check_process(self._pid, "client")
        if time.monotonic() > self._hello_at + LEASE_S:  # our lease may be over: ask
            self._usable.clear()
            self._say_hello()
        if self._event is not None and self._event.ready and not self._usable.is_set():
            with contextlib.suppress(TimeoutError):
                await within(WELCOME_TIMEOUT_S, self._usable.wait())
        if self._event is None:
            raise RingError("the server cannot be reached")
        if not self.is_ready:
            raise RingError(self._event.reason or "the server is starting")

    def _send(self, message: Message) -> None:
        if not send_now(self._front, message):
            raise RingError("the server does not take requests")

    async def _read_events(self) -> None:
        decode = decoder(RingEvent).decode
        while True:
            try:
                (data,) = await within(RING_LOST_S, self._events.receive())
            except TimeoutError:
                self._event = None
                send_now(self._back, Goodbye())  # if it only stalled, our requests end there too
                self._reincarnate("the server cannot be reached")
                continue
            self._on_event(decode(data))

    def _on_event(self, event: RingEvent) -> None:
        lost = self._event is not None and event.epoch != self._event.epoch
        self._event = event
        if lost:
            self._fail_all(RingError(event.reason or "a part of the server died"))
        if event.ready and self._epoch != event.epoch:
            self._say_hello()
        self._set_usable()

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
        send_now(self._back, Hello())

    async def _read_front(self, front: RingSocket) -> None:
        decode = decoder(FrontReply).decode
        while True:
            (data,) = await front.receive()
            reply = decode(data)
            waiting = self._answers.get(reply.rid) or self._controls.get(reply.rid)
            if waiting is None or waiting.done():
                continue
            if isinstance(reply, Refused):
                waiting.set_exception(RequestError.from_info(reply.error))
            else:
                waiting.set_result(reply)

    async def _read_back(self, back: RingSocket) -> None:
        decode = decoder(BackReply).decode
        while True:
            (data,) = await back.receive()
            reply = decode(data)
            if isinstance(reply, Welcome):
                self._epoch = reply.epoch
                self._set_usable()
            elif isinstance(reply, Expired):
                self._reincarnate(_GIVEN_UP)
                return  # a new reader has taken over
            elif isinstance(reply, OutputBatch) and reply.epoch == self._epoch:
                self._on_outputs(reply)
            elif isinstance(reply, ControlResult):
                self._on_control(reply)

    def _on_outputs(self, batch: OutputBatch) -> None:
        for output in batch.outputs:
            generation = self._live.get(output.rid)
            if generation is None:
                continue
            generation.take(output)
            if output.finish is not None:
                self._drop(generation)

    def _on_control(self, reply: ControlResult) -> None:
        waiting = self._controls.get(reply.rid)
        if waiting is None or waiting.done():
            return
        if reply.error is not None:
            waiting.set_exception(RequestError.from_info(reply.error))
        else:
            waiting.set_result(reply.data)

    def _fail_all(self, error: RingError) -> None:
        for generation in self._live.values():
            generation.fail(error)
        self._live.clear()
        self._by_rid.clear()
        for future in (*self._answers.values(), *self._controls.values()):
            if not future.done():
                future.set_exception(error.copy())


def _answer_timeout_s(req: FrontQuestion) -> float:
    is_constrained = isinstance(req, GenerateReq) and req.sampling.constraint is not None
    return GRAMMAR_TIMEOUT_S if is_constrained else ANSWER_TIMEOUT_S
