"""Reads a state while it grows: pieces of its text or of one variable, without polling."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any, TypeVar

from lang import loop
from lang.errors import ProgramError, original
from lang.run.program import current, know
from lang.run.variables import Slot
from lang.run.worker import Worker

T = TypeVar("T")


class _TextReader:
    """What has been read of a text. Inside the program's own function, the text ends when nothing
    is left to do; outside, when the function has returned as well."""

    def __init__(self, worker: Worker, name: str | None) -> None:
        self._worker = worker
        self._stream = worker.stream
        self._name = name
        self._read = 0
        self._inside = current.get() is worker.stream.program

    def _slot(self) -> Slot | None:
        return None if self._name is None else self._stream.variables.get(self._name)

    def take(self) -> str:
        """The new text."""
        slot = self._slot()
        if self._name is None:
            text = self._stream.transcript.text
        else:
            text = "" if slot is None else slot.text
        piece, self._read = text[self._read :], max(self._read, len(text))
        return piece

    def is_over(self) -> bool:
        """Whether the next `take` gives the last piece."""
        slot = self._slot()
        over = self._worker.is_idle and (self._inside or self._stream.program.body_done.done())
        if slot is not None:
            return slot.done.done()
        return over

    def check(self) -> None:
        """Raise the error that ended the text, if one did."""
        slot = self._slot()
        error = self._stream.failure if slot is None else slot.done.exception()
        error = original(error or (None if slot is not None else self._stream.program.body_error))
        if error is not None:
            raise ProgramError(f"the stream failed: {type(error).__name__}: {error}") from error
        if self._name is not None and slot is None:
            raise KeyError(self._name)
        know(self._stream.waits.calls if slot is None else slot.after)

    def meta(self) -> dict[str, Any]:
        """The variable's meta info, as far as it is known."""
        slot = self._slot()
        return {} if slot is None or slot.meta is None else dict(slot.meta)


class _TreeReader:
    """The same for a state and all forks below it: pieces, each with the path of its state."""

    def __init__(self, worker: Worker) -> None:
        if not worker.stream.program.streaming:
            raise ValueError("only a run with stream=True can be read together with its forks")
        self._worker = worker
        self._own = _TextReader(worker, None)
        self._read: dict[Worker, int] = {}

    def take(self) -> list[tuple[tuple[int, ...], str]]:
        found = []
        for path, worker in _below(self._worker, ()):
            said = worker.stream.transcript
            # A fork's text begins with its parent's.
            start = self._read.get(worker, 0 if not path else said.start_chars)
            if said.text[start:]:
                found.append((path, said.text[start:]))
            self._read[worker] = max(start, len(said.text))
        return found

    def is_over(self) -> bool:
        return self._own.is_over() and all(each.is_idle for _, each in _below(self._worker, ()))

    def check(self) -> None:
        self._own.check()


def _below(worker: Worker, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Worker]]:
    if worker.is_open:
        yield path, worker
    for i, child in enumerate(list(worker.children)):
        yield from _below(child, (*path, i))


def pieces(worker: Worker, name: str | None) -> Iterator[str]:
    """The pieces, for a thread that may wait. Leaving it early ends the run."""
    reader = _TextReader(worker, name)
    return _read(worker, reader, lambda over: _some(reader.take()))


def tree_pieces(worker: Worker) -> Iterator[tuple[tuple[int, ...], str]]:
    """The pieces of the state and of its forks. Raises ValueError unless the run streams."""
    reader = _TreeReader(worker)
    return _read(worker, reader, lambda over: reader.take())


def async_pieces(worker: Worker, name: str | None, with_meta: bool) -> AsyncIterator[Any]:
    """The pieces, on any loop; `with_meta`, pairs with the meta info, and one at the end."""
    reader = _TextReader(worker, name)

    def take(over: bool) -> list[Any]:
        piece = reader.take()
        if with_meta:
            return [(piece, reader.meta())] if piece or over else []
        return _some(piece)

    return _read_async(worker, reader, take)


def tree_async_pieces(worker: Worker) -> AsyncIterator[tuple[tuple[int, ...], str]]:
    """`tree_pieces` on any loop."""
    reader = _TreeReader(worker)
    return _read_async(worker, reader, lambda over: reader.take())


def _some(piece: str) -> list[str]:
    return [piece] if piece else []


def _steps(
    worker: Worker, reader: "_TextReader | _TreeReader", take: Callable[[bool], list[T]]
) -> Generator["list[T] | Future[None]", None, None]:
    """Yields new pieces, and where there are none, what ends the wait for more. Leaving it early
    ends the run."""
    finished = False
    try:
        while not finished:
            change = worker.change()
            over = reader.is_over()
            found = take(over)
            yield found if found or over else change
            finished = over
        reader.check()
    finally:
        if not finished:
            worker.stream.program.cancel()


def _read(
    worker: Worker, reader: "_TextReader | _TreeReader", take: Callable[[bool], list[T]]
) -> Iterator[T]:
    with closing(_steps(worker, reader, take)) as steps:
        for step in steps:
            if isinstance(step, Future):
                loop.wait(step)
            else:
                yield from step


async def _read_async(
    worker: Worker, reader: "_TextReader | _TreeReader", take: Callable[[bool], list[T]]
) -> AsyncIterator[T]:
    with closing(_steps(worker, reader, take)) as steps:
        for step in steps:
            if isinstance(step, Future):
                await loop.arrival(step)
            else:
                for each in step:
                    yield each
