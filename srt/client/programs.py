"""Programs on a server: the sessions of `AsyncClient`, and what its transports do for them."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from srt.wire.errors import BAD_REQUEST, CONFLICT, ErrorInfo, RequestError
from srt.wire.program_messages import (
    CancelVar,
    CloseSession,
    CountPrograms,
    GetVars,
    OpenSession,
    ProgramCounts,
    ProgramsQuestion,
    ReadSession,
    ReadVar,
    SessionTold,
    SetVar,
    SubmitProgram,
    Submitted,
    VarsGrew,
    VarsTold,
)
from srt.wire.programs import ENDED, Perf, Program, SessionInfo, VarInfo

IDLE_S = 600.0  # of a session, unless it says otherwise


class Got(NamedTuple):
    """What a get found: the variables in the order they were asked for, and whether all have
    ended."""

    vars: list[VarInfo]
    done: bool


class Piece(NamedTuple):
    """What the text of the variable `var` has grown by; its first piece has all of it so far, and
    comes when the get has been taken."""

    var: str
    delta: str


class Programs:
    """What a client does with programs. Everything is a question to the part that runs them, which
    a transport brings there. `tenant` is for whom it asks: sessions belong to it.

    All raise RequestError (code NOT_FOUND for ids that are unknown or another's), RingError when
    the server, or the part that runs programs, cannot be reached or is lost.
    """

    def __init__(self) -> None:
        self._last_id = 0

    # ---- for transports ------------------------------------------------------------------------

    async def ask(self, question: ProgramsQuestion) -> Any:
        """The one answer to a question."""
        raise NotImplementedError

    def answers(self, question: GetVars) -> AsyncGenerator[VarsGrew | VarsTold, None]:
        """The answers to a get, the last of which is a VarsTold. To leave them ends the get."""
        raise NotImplementedError

    # ---- for programs --------------------------------------------------------------------------

    async def open_session(
        self,
        idle_s: float = IDLE_S,
        cache_salt: str = "",
        tenant: str = "",
        *,
        is_numbered: bool = False,
    ) -> SessionInfo:
        """A new session, which ends after `idle_s` seconds without use. The id of one that
        `is_numbered` is a random number of 63 bits, in decimal; RingError over HTTP."""
        question = OpenSession(self._id(), tenant, idle_s, cache_salt, is_numbered)
        return await self._session(question)

    async def read_session(self, session: str, tenant: str = "") -> SessionInfo:
        return await self._session(ReadSession(self._id(), session, tenant))

    async def close_session(self, session: str, tenant: str = "") -> SessionInfo:
        """End a session and all that runs in it."""
        return await self._session(CloseSession(self._id(), session, tenant))

    async def submit_program(
        self, session: str, program: Program, key: str = "", tenant: str = ""
    ) -> dict[str, str]:
        """The ids of the program's variables, by their names, before anything runs."""
        answer: Submitted = await self.ask(SubmitProgram(self._id(), session, program, tenant, key))
        return answer.vars

    async def get_vars(
        self,
        names: Sequence[str],
        *,
        deadline_ms: int = 0,
        perf: Perf | None = None,
        tenant: str = "",
    ) -> Got:
        """Have variables made, and wait until all have ended, or for `deadline_ms` (0: the
        server's bound)."""
        question = GetVars(self._id(), list(names), tenant, False, deadline_ms, perf)
        async with aclosing(self.answers(question)) as answers:
            async for answer in answers:
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
        """The same, with their texts as they grow; the last item is the Got."""
        question = GetVars(self._id(), list(names), tenant, True, deadline_ms, perf)
        async with aclosing(self.answers(question)) as answers:
            async for answer in answers:
                if isinstance(answer, VarsTold):
                    yield Got(answer.vars, answer.done)
                    return
                for var, delta in answer.pieces:
                    yield Piece(var, delta)

    async def read_var(self, var: str, tenant: str = "") -> VarInfo:
        return await self._var(ReadVar(self._id(), var, tenant))

    async def set_var(self, var: str, text: str, tenant: str = "") -> VarInfo:
        return await self._var(SetVar(self._id(), var, text, tenant))

    async def cancel_var(self, var: str, tenant: str = "") -> VarInfo:
        return await self._var(CancelVar(self._id(), var, tenant))

    async def program_counts(self) -> dict[str, float]:
        answer: ProgramCounts = await self.ask(CountPrograms(self._id()))
        return answer.counts

    async def _session(self, question: OpenSession | ReadSession | CloseSession) -> SessionInfo:
        told: SessionTold = await self.ask(question)
        return told.session

    async def _var(self, question: ReadVar | SetVar | CancelVar) -> VarInfo:
        told: VarsTold = await self.ask(question)
        return told.vars[0]

    def _id(self) -> str:
        """An id that no earlier question of this client had."""
        self._last_id += 1
        return str(self._last_id)


class VarFailed(RequestError):
    """A variable has no text: it failed, was cancelled or skipped, or its time ran out. `var` is
    what there is of it."""

    def __init__(self, var: VarInfo) -> None:
        self.var = var
        name = f"the variable {var.name!r}"
        error = var.error
        if error is None and var.state in ENDED:
            error = ErrorInfo(BAD_REQUEST, f"{name} was {var.state}")
        elif error is None:
            error = ErrorInfo(CONFLICT, f"{name} is not ready yet ({var.state})", retryable=True)
        super().__init__(error.message)
        self.info = error


class ProgramSession:
    """A session on a server, for programs that are submitted to it. AsyncClient.session opens it;
    leaving `async with` closes it, which ends all that runs in it."""

    def __init__(self, transport: Programs, info: SessionInfo) -> None:
        self.id = info.id
        self._transport = transport

    async def __aenter__(self) -> "ProgramSession":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it. Nothing happens if it has ended."""
        with contextlib.suppress(RequestError):  # it ends by itself when nobody uses it
            await self._transport.close_session(self.id)

    async def submit(self, program: Program, *, key: str = "") -> dict[str, str]:
        """Hand in a program: the ids of its variables, by name, before anything runs. Submitted
        again with the same `key` it is taken once. RequestError names the field that is wrong."""
        return await self._transport.submit_program(self.id, program, key)

    async def get(self, var: str, *, perf: Perf | None = None, deadline_ms: int = 0) -> str:
        """The text of a variable, which is made now unless it has been. Raises VarFailed if it
        has none at its end, or at the deadline."""
        (got,) = (await self.get_all([var], perf=perf, deadline_ms=deadline_ms)).vars
        if got.state != "ready":
            raise VarFailed(got)
        return got.text

    async def get_all(
        self, names: Sequence[str], *, perf: Perf | None = None, deadline_ms: int = 0
    ) -> Got:
        """Several variables, whatever became of them."""
        return await self._transport.get_vars(names, deadline_ms=deadline_ms, perf=perf)

    async def stream(
        self, var: str, *, perf: Perf | None = None, deadline_ms: int = 0
    ) -> AsyncGenerator[str, None]:
        """The text of a variable as it grows. Raises VarFailed as `get` does."""
        items = self._transport.stream_vars([var], deadline_ms=deadline_ms, perf=perf)
        try:
            async for item in items:
                if isinstance(item, Piece):
                    yield item.delta
                elif item.vars[0].state != "ready":
                    raise VarFailed(item.vars[0])
        finally:
            await items.aclose()

    async def read(self, var: str) -> VarInfo:
        """A variable as it is now; nothing begins to run."""
        return await self._transport.read_var(var)

    async def set(self, var: str, text: str) -> VarInfo:
        """Set a variable that was submitted without a text. RequestError if it has one."""
        return await self._transport.set_var(var, text)

    async def cancel(self, var: str) -> VarInfo:
        """Cancel a variable, what needs it, and what is made for nothing else."""
        return await self._transport.cancel_var(var)
