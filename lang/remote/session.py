"""`session`: where programs are submitted to, on a server of ours, and the variables that they have
there: texts that need not be there yet.

What is submitted is collected, and sent as one program when something is read: so the server knows
as much of it as there is, before anything runs. A variable may stand in any text or state of the
same session, and pure functions make others of it. Reading it waits for the server. Nothing else
can be done with it: what a program does with the text itself would have to wait for it.
"""

import asyncio
import contextvars
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from lang import loop
from lang.backends.base import Backend
from lang.backends.config import backend_of
from lang.errors import LangError, ProgramError
from lang.remote.names import renamed
from lang.run.ir import Slots
from lang.run.stream import Stream
from lang.state.text_functions import op_of
from lang.state.unread import OpName, Unread
from srt import forked
from srt.client.programs import IDLE_S, ProgramSession, VarFailed
from srt.wire.errors import RequestError
from srt.wire.programs import (
    Call,
    Concat,
    First,
    Guard,
    Join,
    Majority,
    Objective,
    Op,
    Perf,
    Program,
    Transform,
    Truncate,
    VarInfo,
)

T = TypeVar("T")

ADVICE = "submit takes programs that extend, generate, select, fork and join; run this one"
Keep = Literal["start", "end"]

MAX_PARTS = 512  # that are collected before they are sent

current_session: contextvars.ContextVar["Session | None"] = contextvars.ContextVar(
    "session", default=None
)


class Reading(NamedTuple):
    """How a variable is read: what its text becomes, and what gets are for that do not say."""

    convert: Callable[[str], Any] | None = None
    perf: Perf | None = None


PLAIN = Reading()


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
        perf: Objective | Perf | None = None,
        *,
        idle_s: float = IDLE_S,
        cache_salt: str = "",
        eager: bool = False,
    ) -> None:
        self.backend: Backend = backend_of(backend)
        perf_of(perf)
        self.perf, self._eager = perf, eager
        self._idle_s, self._cache_salt = idle_s, cache_salt
        self._opened: ProgramSession | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tokens: list[contextvars.Token[Session | None]] = []
        self._ids: dict[str, str] = {}  # of what was sent, by name
        forked.renew_in_children(self, Session._begin_in_child)
        self._begin()

    def _begin_in_child(self) -> None:
        self._lock = threading.Lock()  # the rest is its client's, which says whose it is

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
        await asyncio.wrap_future(loop.submit(self._open()))
        return self._entered()

    async def __aexit__(self, *exc: object) -> None:
        self._left()
        await asyncio.wrap_future(loop.submit(self._close()))

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

    # ---- what is submitted ---------------------------------------------------------------------

    def var(self, text: str | None = None, name: str = "var") -> "ProgramVar":
        """A variable that the program sets: now, or later by `set`."""
        made = self.declare(name)
        self._values[made.name] = text
        return made

    def declare(self, name: str, reading: Reading = PLAIN) -> "ProgramVar":
        """A variable of something that is being submitted."""
        return ProgramVar(self, f"{name}~{next(self._numbers)}", reading)

    def check(self, var: "ProgramVar") -> None:
        """Raise LangError for a variable of another session."""
        if var.session is not self:
            raise LangError(f"{var.name!r} belongs to another session")

    def add_call(self, call: Call) -> None:
        """Submit a call, whose outputs have been declared."""
        self._calls.append(call)
        self._flush_if_large()

    def transform(
        self,
        op: Op,
        name: str,
        when: Guard | None = None,
        default: str | None = None,
        perf: Perf | None = None,
    ) -> "ProgramVar":
        """Submit a transform; the variable that it makes."""
        made = self.declare(name, Reading(perf=perf))
        self._transforms.append(Transform(made.name, op, when, default))
        self._flush_if_large()
        return made

    def concat(
        self, vars: object, separator: str = "", *, leave_out_failed: bool = False
    ) -> "ProgramVar":
        """The texts of several variables, joined."""
        refs = [var.name for var in as_vars(vars)]
        op = (
            Join(refs, separator, leave_out_failed) if separator else Concat(refs, leave_out_failed)
        )
        return self.transform(op, "concat")

    def majority(self, vars: object, *, leave_out_failed: bool = False) -> "ProgramVar":
        """The text that most of several variables have."""
        op = Majority([var.name for var in as_vars(vars)], leave_out_failed)
        return self.transform(op, "majority")

    def flush(self) -> None:
        """Send what has been submitted so far."""
        loop.call(self.sent())

    def _flush_if_large(self) -> None:
        size = len(self._calls) + len(self._transforms) + len(self._values)
        if size >= MAX_PARTS and not loop.on_loop_thread():
            self.flush()

    async def sent(self) -> ProgramSession:
        """Everything is on the server."""
        opened = self._opened
        if opened is None:
            raise LangError("the session is not open: use it in `with`")
        with self._lock:
            program = Program(self._values, self._calls, self._transforms, self._eager)
            self._begin()
        if program.vars or program.calls or program.transforms:
            self._ids |= await opened.submit(renamed(program, self._ids))
        return opened

    def id_of(self, var: "ProgramVar") -> str:
        """The id on the server of a variable that was sent."""
        if var.name not in self._ids:
            raise LangError(f"nothing that was submitted makes {var.name!r}")
        return self._ids[var.name]


class ProgramVar(Unread):
    """A variable of `session`, in which it alone has this name."""

    advice = ADVICE

    def __init__(self, session: Session, name: str, reading: Reading = PLAIN) -> None:
        self.session, self.name, self._reading = session, name, reading

    @property
    def id(self) -> str:
        """Its id on the server, where it is now."""
        self.session.flush()
        return self.session.id_of(self)

    def perform(self, stream: Stream, slots: Slots) -> None:
        """Only a server can: see `Session`."""
        raise LangError(f"{self.name!r} is a variable of a session: use its get() in a run")

    # ---- reading -------------------------------------------------------------------------------

    def get(self, perf: Objective | Perf | None = None, deadline_s: float | None = None) -> Any:
        """The value, which is made now unless it has been, for `perf`, else for that of what was
        submitted, else for the session's. ProgramError if there is none, or not within
        `deadline_s`; ValueError if `perf` is nothing known."""
        return self._value(loop.call(self._text(perf, deadline_s)))

    async def aget(
        self, perf: Objective | Perf | None = None, deadline_s: float | None = None
    ) -> Any:
        """`get` for programs with a loop."""
        text = loop.submit(self._text(perf, deadline_s))
        return self._value(await asyncio.wrap_future(text))

    def _wanted(self, perf: Objective | Perf | None = None) -> Perf | None:
        return perf_of(perf) or self._reading.perf or perf_of(self.session.perf)

    async def _text(self, perf: Objective | Perf | None, deadline_s: float | None) -> str:
        wanted = self._wanted(perf)
        opened = await self.session.sent()
        try:
            return await opened.get(
                self.session.id_of(self),
                perf=wanted,
                deadline_ms=0 if deadline_s is None else max(1, round(1e3 * deadline_s)),
            )
        except VarFailed as error:
            raise ProgramError(f"{self.name!r} has no text: {error}") from error

    def _value(self, text: str) -> Any:
        convert = self._reading.convert
        return text if convert is None else convert(text)

    def stream(self) -> Iterator[str]:
        """The text as it grows; leaving it early ends the reading only."""
        pieces = self._pieces()
        try:
            while (piece := loop.call(_next(pieces))) is not None:
                yield piece
        finally:
            loop.call(pieces.aclose())

    async def astream(self) -> AsyncIterator[str]:
        """`stream` for `async for`."""
        pieces = self._pieces()
        try:
            while (piece := await asyncio.wrap_future(loop.submit(_next(pieces)))) is not None:
                yield piece
        finally:
            await asyncio.wrap_future(loop.submit(pieces.aclose()))

    async def _pieces(self) -> AsyncGenerator[str, None]:
        opened = await self.session.sent()
        try:
            async for piece in opened.stream(self.session.id_of(self), perf=self._wanted()):
                yield piece
        except VarFailed as error:
            raise ProgramError(f"{self.name!r} has no text: {error}") from error

    def explain(self) -> VarInfo:
        """Its state, error, causes, producer and meta info, as they are now."""
        return loop.call(self._asked(lambda opened, name: opened.read(name)))

    def set(self, text: str) -> None:
        """Set a variable of `Session.var`. RequestError if it has a text."""
        loop.call(self._asked(lambda opened, name: opened.set(name, text)))

    def cancel(self) -> None:
        """Cancel it, what needs it, and what is made for nothing else."""
        loop.call(self._asked(lambda opened, name: opened.cancel(name)))

    async def _asked(self, ask: Callable[[ProgramSession, str], Awaitable[T]]) -> T:
        """What the server says of the variable, after all that was submitted has been sent."""
        opened = await self.session.sent()
        return await ask(opened, self.session.id_of(self))

    # ---- what is made of it --------------------------------------------------------------------

    def truncate(
        self, *, chars: int | None = None, tokens: int | None = None, keep: Keep = "start"
    ) -> "ProgramVar":
        """So many characters or tokens of it, from the start or at the end."""
        op = Truncate(self.name, chars, tokens, keep)
        return self.session.transform(op, f"{self.name}.truncate", perf=self._reading.perf)

    def equals(self, text: str) -> Guard:
        """A condition for `when`."""
        return Guard(self.name, equals=text)

    def matches(self, pattern: str) -> Guard:
        """The condition that a pattern is found in it."""
        return Guard(self.name, matches=pattern)

    def non_empty(self) -> Guard:
        """The condition that it is not empty."""
        return Guard(self.name, non_empty=True)

    def otherwise(self, text: str) -> "ProgramVar":
        op = Concat([self.name])
        return self.session.transform(op, self.name, default=text, perf=self._reading.perf)

    def _made(self, op: OpName, inputs: list[Any], **fields: Any) -> "ProgramVar":
        names = [each.name for each in self._vars(inputs)]
        made = op_of(op, names, fields)
        return self.session.transform(made, f"{self.name}.{op}", perf=self._reading.perf)

    def _first(self, others: list[Any]) -> "ProgramVar":
        names = [each.name for each in self._vars(others)]
        return self.session.transform(First(names), "first")

    def _vars(self, inputs: list[Any]) -> "list[ProgramVar]":
        return [self.session.var(each) if isinstance(each, str) else each for each in inputs]


def perf_of(given: Objective | Perf | None) -> Perf | None:
    """What a get is for, which may be a word. ValueError, naming `perf`, if it is nothing known."""
    if given is None:
        return None
    perf = Perf(given) if isinstance(given, str) else given
    if not isinstance(perf, Perf) or perf.objective not in get_args(Objective):
        known = ", ".join(get_args(Objective))
        raise ValueError(f"perf must be one of {known}, or a Perf of it, and is {given!r}")
    try:
        perf.check("perf")
    except RequestError as error:
        raise ValueError(str(error)) from None
    return perf


def negated(guard: Guard) -> Guard:
    """The opposite condition."""
    return Guard(guard.var, guard.equals, guard.matches, guard.non_empty, not guard.negate)


def as_vars(values: object) -> list[ProgramVar]:
    """Checked arguments of a function of several variables."""
    found = list(cast("Iterator[Any]", values))
    if not found or not all(isinstance(each, ProgramVar) for each in found):
        raise TypeError("a list of variables of a session is expected, at least one")
    return found


async def _next(pieces: AsyncIterator[str]) -> str | None:
    return await anext(pieces, None)


def session_of(given: Session | None) -> Session:
    """The session that is given, or the innermost one of `with`. LangError without one."""
    found = given or current_session.get()
    if found is None:
        raise LangError("there is no session: submit inside `with session():`, or pass session=")
    return found


session = Session  # `with session() as app: ...`, as programs write it
