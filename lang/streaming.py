"""Reads a state while it grows: pieces of its text, or of one variable, without polling."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from lang import loop
from lang.errors import ProgramError
from lang.interpreter import Interpreter
from lang.program import current

T = TypeVar("T")


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


class _TreeReader:
    """The same of a state and of all forks below it: pieces with the path of whose they are."""

    def __init__(self, state: Interpreter) -> None:
        if not state.program.streaming:
            raise ValueError("only a run with stream=True can be read together with its forks")
        self._state = state
        self._own = _Reader(state, None)
        self._read: dict[Interpreter, int] = {}

    def take(self) -> list[tuple[tuple[int, ...], str]]:
        found = []
        for path, state in _below(self._state, ()):
            # A fork's text begins with its parent's.
            start = self._read.get(state, 0 if not path else state.start_chars)
            if state.text[start:]:
                found.append((path, state.text[start:]))
            self._read[state] = max(start, len(state.text))
        return found

    def is_over(self) -> bool:
        return self._own.is_over() and all(state.is_idle for _, state in _below(self._state, ()))

    def check(self) -> None:
        self._own.check()


def _below(
    state: Interpreter, path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Interpreter]]:
    if state.is_open:
        yield path, state
    for i, child in enumerate(list(state.children)):
        yield from _below(child, (*path, i))


def pieces(state: Interpreter, name: str | None) -> Iterator[str]:
    """The pieces, for a thread that may wait. Left early, it ends the run."""
    reader = _Reader(state, name)
    return _read(state, reader, lambda over: _some(reader.take()))


def tree_pieces(state: Interpreter) -> Iterator[tuple[tuple[int, ...], str]]:
    """The pieces of the state and of its forks. Raises ValueError unless the run streams."""
    reader = _TreeReader(state)
    return _read(state, reader, lambda over: reader.take())


def async_pieces(state: Interpreter, name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    """The pieces, on any loop; pairs with the meta info, one at the end too, if `with_meta`."""
    reader = _Reader(state, name)

    def take(over: bool) -> list[Any]:
        piece = reader.take()
        if with_meta:
            return [(piece, reader.meta())] if piece or over else []
        return _some(piece)

    return _read_async(state, reader, take)


def tree_async_pieces(state: Interpreter) -> AsyncIterator[tuple[tuple[int, ...], str]]:
    """`tree_pieces` on any loop."""
    reader = _TreeReader(state)
    return _read_async(state, reader, lambda over: reader.take())


def _some(piece: str) -> list[str]:
    return [piece] if piece else []


def _read(
    state: Interpreter, reader: "_Reader | _TreeReader", take: Callable[[bool], list[T]]
) -> Iterator[T]:
    finished = False
    try:
        while not finished:
            change = state.change()
            over = reader.is_over()
            found = take(over)
            yield from found
            if not found and not over:
                loop.wait(change)
            finished = over
        reader.check()
    finally:
        if not finished:
            state.program.cancel()


async def _read_async(
    state: Interpreter, reader: "_Reader | _TreeReader", take: Callable[[bool], list[T]]
) -> AsyncIterator[T]:
    finished = False
    try:
        while not finished:
            change = state.change()
            over = reader.is_over()
            found = take(over)
            for each in found:
                yield each
            if not found and not over:
                await loop.arrival(change)
            finished = over
        reader.check()
    finally:
        if not finished:
            state.program.cancel()
