"""`Programs` over a ring's socket: questions to the part that runs programs, and their answers.

The socket is opened at the first use. When the part dies, its sessions are lost: whoever waits for
it gets an error at once, from the ring's events.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from srt.client.programs import IDLE_S, Got, Piece
from srt.client.ring.link import ANSWER_TIMEOUT_S, RingLink
from srt.client.ring.patience import within
from srt.ring.places import send_now
from srt.ring.socket import RingSocket
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import decoder, encode
from srt.wire.program_messages import (
    CancelVar,
    CloseSession,
    CountPrograms,
    EndGet,
    GetVars,
    OpenSession,
    ProgramCounts,
    ProgramsQuestion,
    ProgramsRefused,
    ProgramsReply,
    ReadSession,
    ReadVar,
    SessionTold,
    SetVar,
    SubmitProgram,
    Submitted,
    VarsGrew,
    VarsTold,
)
from srt.wire.programs import MAX_PROGRAM_BYTES, Perf, Program, SessionInfo, VarInfo
from srt.wire.ring_state import RingEvent

PART = "programs"
START_WAIT_S = 10.0
MAX_SILENCE_S = 20.0  # of a get that waits: the part says something every few seconds
_LOST = "the part of the server that runs programs died: its sessions are lost"


class RingPrograms:
    """The programs of one RingClient."""

    def __init__(self, link: RingLink) -> None:
        self._link = link
        self._link.listeners.append(self._on_event)
        self._socket: RingSocket | None = None
        self._waiting: dict[str, asyncio.Queue[Any]] = {}  # by the ids of what was asked
        self._is_ready = asyncio.Event()
        self._last_id = 0

    async def open_session(
        self, idle_s: float = IDLE_S, cache_salt: str = "", tenant: str = ""
    ) -> SessionInfo:
        told: SessionTold = await self._ask(OpenSession(self._id(), tenant, idle_s, cache_salt))
        return told.session

    async def read_session(self, session: str, tenant: str = "") -> SessionInfo:
        told: SessionTold = await self._ask(ReadSession(self._id(), session, tenant))
        return told.session

    async def close_session(self, session: str, tenant: str = "") -> SessionInfo:
        told: SessionTold = await self._ask(CloseSession(self._id(), session, tenant))
        return told.session

    async def submit_program(
        self, session: str, program: Program, key: str = "", tenant: str = ""
    ) -> dict[str, str]:
        question = SubmitProgram(self._id(), session, program, tenant, key)
        if len(encode(question)) > MAX_PROGRAM_BYTES:
            reason = f": the program has over {MAX_PROGRAM_BYTES} bytes; submit it piece by piece"
            raise RequestError(reason, at="calls")
        answer: Submitted = await self._ask(question)
        return answer.vars

    async def get_vars(
        self,
        names: Sequence[str],
        *,
        deadline_ms: int = 0,
        perf: Perf | None = None,
        tenant: str = "",
    ) -> Got:
        question = GetVars(self._id(), list(names), tenant, False, deadline_ms, perf)
        async for answer in self._answers(question, MAX_SILENCE_S):
            if isinstance(answer, VarsTold):
                return Got(answer.vars, answer.done)
        raise AssertionError("a get ends with an answer or an error")

    async def stream_vars(
        self,
        names: Sequence[str],
        *,
        deadline_ms: int = 0,
        perf: Perf | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[Piece | Got, None]:
        question = GetVars(self._id(), list(names), tenant, True, deadline_ms, perf)
        answers = self._answers(question, MAX_SILENCE_S)
        try:
            async for answer in answers:
                if isinstance(answer, VarsTold):
                    yield Got(answer.vars, answer.done)
                    return
                for var, delta in answer.pieces:
                    yield Piece(var, delta)
        finally:
            await answers.aclose()

    async def read_var(self, var: str, tenant: str = "") -> VarInfo:
        return await self._var(ReadVar(self._id(), var, tenant))

    async def set_var(self, var: str, text: str, tenant: str = "") -> VarInfo:
        return await self._var(SetVar(self._id(), var, text, tenant))

    async def cancel_var(self, var: str, tenant: str = "") -> VarInfo:
        return await self._var(CancelVar(self._id(), var, tenant))

    async def program_counts(self) -> dict[str, float]:
        answer: ProgramCounts = await self._ask(CountPrograms(self._id()))
        return answer.counts

    # ---- questions and answers -----------------------------------------------------------------

    async def _var(self, question: ReadVar | SetVar | CancelVar) -> VarInfo:
        told: VarsTold = await self._ask(question)
        return told.vars[0]

    async def _ask(self, question: ProgramsQuestion) -> Any:
        async for answer in self._answers(question, ANSWER_TIMEOUT_S):
            return answer
        raise AssertionError("there is an answer or an error")

    async def _answers(
        self, question: ProgramsQuestion, silence_s: float
    ) -> AsyncGenerator[Any, None]:
        """Its answers, the last of which is not a VarsGrew. Raises RequestError if it is refused,
        RingError after a silence of `silence_s`."""
        await self._until_there()
        assert self._socket is not None
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting[question.rid] = queue
        is_open = isinstance(question, GetVars)
        try:
            if not send_now(self._socket, question):
                raise RingError("the part of the server that runs programs takes no questions")
            while True:
                answer = await within(silence_s, queue.get())
                if not isinstance(answer, VarsGrew):
                    is_open = False
                if isinstance(answer, RequestError):
                    raise answer
                if isinstance(answer, ProgramsRefused):
                    raise RequestError.from_info(answer.error)
                yield answer
                if not is_open:
                    return
        except TimeoutError:
            raise RingError("the part of the server that runs programs did not answer") from None
        finally:
            del self._waiting[question.rid]
            if is_open:  # nobody waits any more
                send_now(self._socket, EndGet(question.rid))

    async def _until_there(self) -> None:
        """Wait until the part is ready. Raises RingError if it is not within START_WAIT_S."""
        if self._link.ring is None:
            await self._link.until_usable()
        if not self._is_ready.is_set():
            try:
                await within(START_WAIT_S, self._is_ready.wait())
            except TimeoutError:
                reason = "the part of the server that runs programs is starting"
                raise RingError(reason) from None
        if self._socket is None:
            self._socket = self._link.open_dealer(self._link.places.programs, os.urandom(16))
            self._link.start_reader(self._read(self._socket))

    async def _read(self, socket: RingSocket) -> None:
        decode = decoder(ProgramsReply).decode
        while True:
            (data,) = await socket.receive()
            answer = decode(data)
            queue = self._waiting.get(answer.rid)
            if queue is not None:
                queue.put_nowait(answer)

    def _on_event(self, event: RingEvent | None) -> None:
        if event is not None and event.parts.get(PART) == "ready":
            self._is_ready.set()
        elif self._is_ready.is_set():
            self._is_ready.clear()
            reason = _LOST if event is not None else "the server cannot be reached"
            for queue in self._waiting.values():
                queue.put_nowait(RingError(reason))

    def _id(self) -> str:
        """An id that no earlier question of this client had."""
        self._last_id += 1
        return str(self._last_id)
