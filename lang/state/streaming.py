"""Reads a state while it grows: pieces of its text or of one variable, without polling."""

from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from lang import loop
from lang.errors import ProgramError, original
from lang.run.program import current, know
from lang.run.variables import Slot
from lang.run.worker import Worker


class TextReader:
    """What has been read of a state's text, or of the variable `name`; pieces `with_meta` are pairs
    with the meta info. Inside the program's own function, the text ends when nothing is left to do;
    outside, when the function has returned as well."""

    def __init__(self, worker: Worker, name: str | None, *, with_meta: bool = False) -> None:
        self.worker = worker
        self._stream = worker.stream
        self._name, self._with_meta = name, with_meta
        self._read = 0
        self._inside = current.get() is worker.stream.program

    def _slot(self) -> Slot | None:
        return None if self._name is None else self._stream.variables.get(self._name)

    def take(self, over: bool) -> list[Any]:
        """The new text, if there is some; with meta info the last piece is there in any case."""
        slot = self._slot()
        if self._name is None:
            text = self._stream.transcript.text
        else:
            text = "" if slot is None else slot.text
        piece, self._read = text[self._read :], max(self._read, len(text))
        if not self._with_meta:
            return [piece] if piece else []
        meta = {} if slot is None or slot.meta is None else dict(slot.meta)
        return [(piece, meta)] if piece or over else []

    def is_over(self) -> bool:
        """Whether the next `take` gives the last piece."""
        slot = self._slot()
        if slot is not None:
            return slot.done.done()
        return self.worker.is_idle and (self._inside or self._stream.program.body_done.done())

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


class TreeReader(TextReader):
    """The same for a state and all forks below it: pieces, each with the path of its state. Raises
    ValueError unless the run streams."""

    def __init__(self, worker: Worker) -> None:
        if not worker.stream.program.streaming:
            raise ValueError("only a run with stream=True can be read together with its forks")
        super().__init__(worker, None)
        self._ends: dict[Worker, int] = {}

    def take(self, over: bool) -> list[Any]:
        found = []
        for path, worker in _below(self.worker, ()):
            said = worker.stream.transcript
            # A fork's text begins with its parent's.
            start = self._ends.get(worker, 0 if not path else said.start_chars)
            if said.text[start:]:
                found.append((path, said.text[start:]))
            self._ends[worker] = max(start, len(said.text))
        return found

    def is_over(self) -> bool:
        return super().is_over() and all(each.is_idle for _, each in _below(self.worker, ()))


def _below(worker: Worker, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Worker]]:
    if worker.is_open:
        yield path, worker
    for i, child in enumerate(list(worker.children)):
        yield from _below(child, (*path, i))


def _steps(reader: TextReader) -> Generator["list[Any] | Future[None]", None, None]:
    """Yields new pieces, and where there are none, what ends the wait for more. Leaving it early
    ends the run."""
    finished = False
    try:
        while not finished:
            change = reader.worker.change()
            over = reader.is_over()
            found = reader.take(over)
            yield found if found or over else change
            finished = over
        reader.check()
    finally:
        if not finished:
            reader.worker.stream.program.cancel()


def pieces(reader: TextReader) -> Iterator[Any]:
    """The pieces, for a thread that may wait. Leaving it early ends the run."""
    with closing(_steps(reader)) as steps:
        for step in steps:
            if isinstance(step, Future):
                loop.wait(step)
            else:
                yield from step


async def async_pieces(reader: TextReader) -> AsyncIterator[Any]:
    """The pieces, on any loop."""
    with closing(_steps(reader)) as steps:
        for step in steps:
            if isinstance(step, Future):
                await loop.arrival(step)
            else:
                for each in step:
                    yield each
