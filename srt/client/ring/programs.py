"""`Programs` over a ring's socket: questions to the part that runs programs, and their answers.

The socket is opened at the first use. When the part dies, its sessions are lost: whoever waits for
it gets an error at once, from the ring's events.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

from srt.client.programs import Programs
from srt.client.ring.link import ANSWER_TIMEOUT_S, RingLink
from srt.client.ring.patience import within
from srt.ring.inbox import Inbox
from srt.ring.places import send_now
from srt.ring.socket import RingSocket
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import encode
from srt.wire.program_messages import (
    EndGet,
    GetVars,
    ProgramsQuestion,
    ProgramsRefused,
    ProgramsReply,
    SubmitProgram,
    VarsGrew,
    VarsTold,
)
from srt.wire.programs import MAX_PROGRAM_BYTES
from srt.wire.ring_state import RingEvent

PART = "programs"
START_WAIT_S = 10.0
MAX_SILENCE_S = 20.0  # of a get that waits: the part says something every few seconds
_LOST = "the part of the server that runs programs died: its sessions are lost"


class RingPrograms(Programs):
    """The programs of one RingClient."""

    def __init__(self, link: RingLink) -> None:
        super().__init__()
        self._link = link
        self._link.listeners.append(self._on_event)
        self._socket: RingSocket | None = None
        self._waiting: dict[str, asyncio.Queue[Any]] = {}  # by the ids of what was asked
        self._is_ready = asyncio.Event()

    async def ask(self, question: ProgramsQuestion) -> Any:
        if isinstance(question, SubmitProgram) and len(encode(question)) > MAX_PROGRAM_BYTES:
            reason = f": the program has over {MAX_PROGRAM_BYTES} bytes; submit it piece by piece"
            raise RequestError(reason, at="calls")
        async for answer in self._answers(question, ANSWER_TIMEOUT_S):
            return answer
        raise AssertionError("there is an answer or an error")

    def answers(self, question: GetVars) -> AsyncGenerator[VarsGrew | VarsTold, None]:
        return self._answers(question, MAX_SILENCE_S)

    async def _answers(
        self, question: ProgramsQuestion, silence_s: float
    ) -> AsyncGenerator[Any, None]:
        """Its answers, the last of which is not a VarsGrew. Raises RequestError if it is refused,
        RingError after a silence of `silence_s`."""
        await self._until_there()
        socket = self._socket
        assert socket is not None
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting[question.rid] = queue
        is_open = isinstance(question, GetVars)
        try:
            if not send_now(socket, question):
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
            if is_open and socket is self._socket:  # nobody waits any more
                send_now(socket, EndGet(question.rid))

    async def _until_there(self) -> None:
        """Wait until the part is ready. Raises RingError if it is not within START_WAIT_S."""
        if self._link.ring is None:
            await self._link.until_usable()
        if not self._is_ready.is_set():
            try:
                await within(START_WAIT_S, self._is_ready.wait())
            except TimeoutError:
                raise RingError("the part of the server that runs programs is starting") from None
        if self._socket is None:
            self._socket = self._link.open_dealer(self._link.places.programs, os.urandom(16))
            self._reader = self._link.start_reader(self._read(self._socket))

    async def _read(self, socket: RingSocket) -> None:
        inbox = Inbox(ProgramsReply, "the answers of programs", self._link.dropped)
        while True:
            answer = inbox.message(await socket.receive())
            queue = None if answer is None else self._waiting.get(answer.rid)
            if queue is not None:
                queue.put_nowait(answer)

    def _on_event(self, event: RingEvent | None) -> None:
        if event is None and self._socket is not None:  # the next use opens another
            self._reader.cancel()
            self._socket.close()
            self._socket = None
        if event is not None and event.parts.get(PART) == "ready":
            self._is_ready.set()
        elif self._is_ready.is_set():
            self._is_ready.clear()
            reason = _LOST if event is not None else "the server cannot be reached"
            for queue in self._waiting.values():
                queue.put_nowait(RingError(reason))
