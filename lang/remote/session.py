"""`session`: where programs are submitted to, on a server of ours.

What is submitted is collected, and sent as one program when something is read: so the server knows
as much of it as there is, before anything runs.
"""

import contextvars
import itertools
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

from lang import loop
from lang.backends.base import Backend
from lang.backends.config import backend_of
from lang.errors import LangError, ProgramError
from lang.remote.names import renamed
from lang.remote.variables import ProgramVar, as_vars
from srt.client.programs import IDLE_S, ProgramSession, VarFailed
from srt.wire.programs import (
    Call,
    Concat,
    Guard,
    Join,
    Majority,
    Objective,
    Op,
    Perf,
    Program,
    Transform,
    VarInfo,
)

T = TypeVar("T")

MAX_PARTS = 512  # that are collected before they are sent

current_session: contextvars.ContextVar["Session | None"] = contextvars.ContextVar(
    "session", default=None
)


class Session:
    """A session on the back end's server. Use it in `with` or `async with`; its programs end with
    it.

    `perf` is what gets want unless they say otherwise. It ends by itself when nobody has used it
    for `idle_s` seconds; its calls share cached prefixes under one `cache_salt` only. With `eager`
    all that is sent runs at once, otherwise what is read.
    """

    def __init__(
        self,
        backend: Any = None,
        perf: Objective | None = None,
        *,
        idle_s: float = IDLE_S,
        cache_salt: str = "",
        eager: bool = False,
    ) -> None:
        self.backend: Backend = backend_of(backend)
        self._perf, self._eager = perf, eager
        self._idle_s, self._cache_salt = idle_s, cache_salt
        self._opened: ProgramSession | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tokens: list[contextvars.Token[Session | None]] = []
        self._ids: dict[str, str] = {}  # of what was sent, by name
        self._begin()

    def _begin(self) -> None:
        """Nothing is collected."""
        self._values: dict[str, str | None] = {}
        self._calls: list[Call] = []
        self._transforms: list[Transform] = []

    # ---- life ----------------------------------------------------------------------------------

    def __enter__(self) -> "Session":
        loop.call(self._open())
        return self._entered()

    def __exit__(self, *exc: object) -> None:
        self._left()
        loop.call(self._close())

    async def __aenter__(self) -> "Session":
        await _elsewhere(self._open())
        return self._entered()

    async def __aexit__(self, *exc: object) -> None:
        self._left()
        await _elsewhere(self._close())

    def _entered(self) -> "Session":
        self._tokens.append(current_session.set(self))
        return self

    def _left(self) -> None:
        current_session.reset(self._tokens.pop())

    async def _open(self) -> None:
        self._opened = await self.backend.open_session(self._idle_s, self._cache_salt)

    async def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    @property
    def _open_one(self) -> ProgramSession:
        if self._opened is None:
            raise LangError("the session is not open: use it in `with`")
        return self._opened

    # ---- what is submitted ---------------------------------------------------------------------

    def number(self) -> int:
        """The number of the next submission, for names."""
        return next(self._numbers)

    def var(self, text: str | None = None, name: str = "var") -> ProgramVar:
        """A variable that the program sets: now, or later by `set`."""
        made = self.declare(name)
        self._values[made.name] = text
        return made

    def declare(self, name: str, convert: Any = None) -> ProgramVar:
        """A variable of something that is being submitted."""
        unique = f"{name}~{self.number()}"
        return ProgramVar(self, unique, convert)

    def check(self, var: ProgramVar) -> None:
        """Raise LangError for a variable of another session."""
        if var.session is not self:
            raise LangError(f"{var.name!r} belongs to another session")

    def add_call(self, call: Call) -> None:
        """Submit a call, whose outputs have been declared."""
        self._calls.append(call)
        self._flush_if_large()

    def transform(
        self, op: Op, name: str, when: Guard | None = None, default: str | None = None
    ) -> ProgramVar:
        """Submit a transform; the variable that it makes."""
        made = self.declare(name)
        self._transforms.append(Transform(made.name, op, when, default))
        self._flush_if_large()
        return made

    def concat(
        self, vars: object, separator: str = "", *, leave_out_failed: bool = False
    ) -> ProgramVar:
        """The texts of several variables, joined."""
        refs = [var.name for var in as_vars(vars)]
        op = (
            Join(refs, separator, leave_out_failed) if separator else Concat(refs, leave_out_failed)
        )
        return self.transform(op, "concat")

    def majority(self, vars: object, *, leave_out_failed: bool = False) -> ProgramVar:
        """The text that most of several variables have."""
        op = Majority([var.name for var in as_vars(vars)], leave_out_failed)
        return self.transform(op, "majority")

    def flush(self) -> None:
        """Send what has been submitted so far."""
        loop.call(self._sent())

    def _flush_if_large(self) -> None:
        size = len(self._calls) + len(self._transforms) + len(self._values)
        if size >= MAX_PARTS and not loop.on_loop_thread():
            self.flush()

    async def _sent(self) -> ProgramSession:
        """Everything is on the server."""
        opened = self._open_one
        with self._lock:
            program = Program(self._values, self._calls, self._transforms, self._eager)
            self._begin()
        if program.vars or program.calls or program.transforms:
            self._ids |= await opened.submit(renamed(program, self._ids))
        return opened

    def id_of(self, var: ProgramVar) -> str:
        """A variable's id on the server."""
        self.flush()
        return self._id(var)

    def _id(self, var: ProgramVar) -> str:
        if var.name not in self._ids:
            raise LangError(f"nothing that was submitted makes {var.name!r}")
        return self._ids[var.name]

    # ---- what is read --------------------------------------------------------------------------

    def get(self, var: ProgramVar, perf: Objective | None, deadline_s: float | None) -> str:
        """The text of a variable."""
        return loop.call(self._got(var, perf, deadline_s))

    async def aget(self, var: ProgramVar, perf: Objective | None, deadline_s: float | None) -> str:
        """The same, for programs with a loop."""
        return await _elsewhere(self._got(var, perf, deadline_s))

    async def _got(self, var: ProgramVar, perf: Objective | None, deadline_s: float | None) -> str:
        opened = await self._sent()
        wanted = perf or self._perf
        try:
            return await opened.get(
                self._id(var),
                perf=None if wanted is None else Perf(wanted),
                deadline_ms=0 if deadline_s is None else max(1, round(1e3 * deadline_s)),
            )
        except VarFailed as error:
            raise ProgramError(f"{var.name!r} has no text: {error}") from error

    async def astream(self, var: ProgramVar) -> AsyncIterator[str]:
        """The text of a variable as it grows."""
        pieces: Any = await _elsewhere(self._pieces(var))
        async with aclosing(pieces):
            while (piece := await _elsewhere(_next(pieces))) is not None:
                yield piece

    def stream(self, var: ProgramVar) -> Iterator[str]:
        """The same, for programs without a loop."""
        pieces = loop.call(self._pieces(var))
        try:
            while (piece := loop.call(_next(pieces))) is not None:
                yield piece
        finally:
            loop.call(pieces.aclose())

    async def _pieces(self, var: ProgramVar) -> Any:
        opened = await self._sent()

        async def pieces() -> AsyncIterator[str]:
            try:
                async for piece in opened.stream(self._id(var)):
                    yield piece
            except VarFailed as error:
                raise ProgramError(f"{var.name!r} has no text: {error}") from error

        return pieces()

    def read(self, var: ProgramVar) -> VarInfo:
        """A variable as it is now."""

        async def read() -> VarInfo:
            return await (await self._sent()).read(self._id(var))

        return loop.call(read())

    def set(self, var: ProgramVar, text: str) -> None:
        """Set a variable."""

        async def set_it() -> None:
            await (await self._sent()).set(self._id(var), text)

        loop.call(set_it())

    def cancel(self, var: ProgramVar) -> None:
        """Cancel a variable."""

        async def cancel() -> None:
            await (await self._sent()).cancel(self._id(var))

        loop.call(cancel())


async def _elsewhere(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work` on the language's loop, for a program with a loop of its own."""
    future = loop.submit(work)
    try:
        await loop.arrival(future)
    except BaseException:
        future.cancel()
        raise
    return future.result()


async def _next(pieces: Any) -> str | None:
    return await anext(pieces, None)


def session_of(given: Session | None) -> Session:
    """The session that is given, or the innermost one of `with`. LangError without one."""
    found = given or current_session.get()
    if found is None:
        raise LangError("there is no session: submit inside `with session():`, or pass session=")
    return found


session = Session  # `with session() as app: ...`, as programs write it
