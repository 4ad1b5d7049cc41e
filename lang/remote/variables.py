"""Variables of programs on the server: texts that need not be there yet.

One may stand in any text or state of the same session, and pure functions make others of it.
Reading it waits for the server. Nothing else can be done with it: what a program does with the text
itself would have to wait for it.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, Protocol, cast

from lang.errors import LangError
from lang.run.ir import Slots
from lang.run.stream import Stream
from lang.state.text_functions import op_of
from lang.state.unread import OpName, Unread
from srt.wire.programs import Concat, First, Guard, Objective, Op, Truncate, VarInfo

ADVICE = "submit takes programs that extend, generate, select, fork and join; run this one"
Keep = Literal["start", "end"]


class Home(Protocol):
    """What a variable asks of its session."""

    def id_of(self, var: "ProgramVar") -> str: ...

    def var(self, text: str | None = None, name: str = "var") -> "ProgramVar": ...

    def transform(
        self, op: Op, name: str, when: Guard | None = None, default: str | None = None
    ) -> "ProgramVar": ...

    def get(self, var: "ProgramVar", perf: Objective | None, deadline_s: float | None) -> str: ...

    async def aget(
        self, var: "ProgramVar", perf: Objective | None, deadline_s: float | None
    ) -> str: ...

    def stream(self, var: "ProgramVar") -> Iterator[str]: ...

    def astream(self, var: "ProgramVar") -> AsyncIterator[str]: ...

    def read(self, var: "ProgramVar") -> VarInfo: ...

    def set(self, var: "ProgramVar", text: str) -> None: ...

    def cancel(self, var: "ProgramVar") -> None: ...


class ProgramVar(Unread):
    """A variable of `session`, in which it alone has this name."""

    advice = ADVICE

    def __init__(
        self,
        session: Home,
        name: str,
        convert: Callable[[str], Any] | None = None,
    ) -> None:
        self.session, self.name = session, name
        self._convert = convert

    @property
    def id(self) -> str:
        """Its id on the server, where it is now."""
        return self.session.id_of(self)

    def perform(self, stream: Stream, slots: Slots) -> None:
        """Only a server can: see `Session`."""
        raise LangError(f"{self.name!r} is a variable of a session: use its get() in a run")

    # ---- reading -------------------------------------------------------------------------------

    def get(self, perf: Objective | None = None, deadline_s: float | None = None) -> Any:
        """The value, which is made now unless it has been. ProgramError if there is none, or not
        within `deadline_s`."""
        return self._value(self.session.get(self, perf, deadline_s))

    async def aget(self, perf: Objective | None = None, deadline_s: float | None = None) -> Any:
        """`get` for programs with a loop."""
        return self._value(await self.session.aget(self, perf, deadline_s))

    def stream(self) -> Iterator[str]:
        """The text as it grows; leaving it early ends the reading only."""
        return self.session.stream(self)

    def astream(self) -> AsyncIterator[str]:
        """`stream` for `async for`."""
        return self.session.astream(self)

    def explain(self) -> VarInfo:
        """Its state, error, causes, producer and meta info, as they are now."""
        return self.session.read(self)

    def set(self, text: str) -> None:
        """Set a variable of `Session.var`. RequestError if it has a text."""
        self.session.set(self, text)

    def cancel(self) -> None:
        """Cancel it, what needs it, and what is made for nothing else."""
        self.session.cancel(self)

    def _value(self, text: str) -> Any:
        return text if self._convert is None else self._convert(text)

    # ---- what is made of it --------------------------------------------------------------------

    def truncate(
        self, *, chars: int | None = None, tokens: int | None = None, keep: Keep = "start"
    ) -> "ProgramVar":
        """So many characters or tokens of it, from the start or at the end."""
        op = Truncate(self.name, chars, tokens, keep)
        return self.session.transform(op, f"{self.name}.truncate")

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
        return self.session.transform(Concat([self.name]), self.name, default=text)

    def _made(self, op: OpName, inputs: list[Any], **fields: Any) -> "ProgramVar":
        names = [each.name for each in self._vars(inputs)]
        return self.session.transform(op_of(op, names, fields), f"{self.name}.{op}")

    def _first(self, others: list[Any]) -> "ProgramVar":
        names = [each.name for each in self._vars(others)]
        return self.session.transform(First(names), "first")

    def _vars(self, inputs: list[Any]) -> "list[ProgramVar]":
        return [self.session.var(each) if isinstance(each, str) else each for each in inputs]


def negated(guard: Guard) -> Guard:
    """The opposite condition."""
    return Guard(guard.var, guard.equals, guard.matches, guard.non_empty, not guard.negate)


def as_vars(values: object) -> list[ProgramVar]:
    """Checked arguments of a function of several variables."""
    found = list(cast("Iterator[Any]", values))
    if not found or not all(isinstance(each, ProgramVar) for each in found):
        raise TypeError("a list of variables of a session is expected, at least one")
    return found
