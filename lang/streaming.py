"""Reads a state while it grows: pieces of its text, or of one variable, without polling."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from lang import loop
from lang.errors import ProgramError
from lang.interpreter import Interpreter
from lang.program import current


class _Reader:
    """What has been read of a text. Inside of the program's own function the text ends where
    nothing is left to do; outside, where the function has returned as well."""

    def __init__(self, state: Interpreter, name: str | None) -> None:
        self._state = state
        self._name = name
        self._read = 0
        self._inside = current.get() is state.program

    def take(self) -> str:
        """What is new."""
        slot = self._state.variables.get(self._name) if self._name is not None else None
        text = self._state.text if self._name is None else "" if slot is None else slot.text
        piece, self._read = text[self._read :], max(self._read, len(text))
        return piece

    def is_over(self) -> bool:
        """Whether nothing can follow what `take` gives after this. Raises for a failed end."""
        slot = self._state.variables.get(self._name) if self._name is not None else None
        over = self._state.is_idle and (self._inside or self._state.program.body_done.done())
        if slot is not None:
            return slot.done.done()
        return over

    def check(self) -> None:
        """Raise what ended the text, if it was not its own end."""
        slot = self._state.variables.get(self._name) if self._name is not None else None
        error = self._state.failure if slot is None else slot.done.exception()
        error = error or (None if slot is not None else self._state.program.body_error)
        if isinstance(error, ProgramError) and error.__cause__ is not None:
            error = error.__cause__
        if error is not None:
            raise ProgramError(f"the stream failed: {type(error).__name__}: {error}") from error
        if self._name is not None and slot is None:
            raise KeyError(self._name)

    def meta(self) -> dict[str, Any]:
        """The variable's meta info as far as it is known."""
        slot = self._state.variables.get(self._name) if self._name is not None else None
        return {} if slot is None or slot.meta is None else dict(slot.meta)


def pieces(state: Interpreter, name: str | None) -> Iterator[str]:
    """The pieces, for a thread that may wait. Left early, it ends the run."""
    reader, finished = _Reader(state, name), False
    try:
        while not finished:
            change = state.change()
            over = reader.is_over()
            piece = reader.take()
            if piece:
                yield piece
            elif not over:
                loop.wait(change)
            finished = over
        reader.check()
    finally:
        if not finished:
            state.program.cancel()


async def async_pieces(state: Interpreter, name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    """The pieces, on any loop; pairs with the meta info if `with_meta`."""
    reader, finished = _Reader(state, name), False
    try:
        while not finished:
            change = state.change()
            over = reader.is_over()
            piece = reader.take()
            if piece or (over and with_meta):
                yield (piece, reader.meta()) if with_meta else piece
            elif not over:
                await loop.arrival(change)
            finished = over
        reader.check()
    finally:
        if not finished:
            state.program.cancel()
