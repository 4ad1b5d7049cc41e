"""`ProgramState`, which a program's functions get as `s`.

Invariant: nothing here waits but what reads a value, and what waits never waits for nothing: it
returns, or raises a ProgramError whose cause is the state's first error.
"""

import base64
import html
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lang import loop, pickling, streaming
from lang.errors import ProgramError
from lang.group import ProgramStateGroup
from lang.interpreter import Interpreter
from lang.ir import Expr, Part, RoleBegin, RoleEnd, Score, VarScopeBegin, VarScopeEnd
from lang.program import Program, current
from lang.trace import Trace, Usage
from lang.work import Slot


class ProgramState:
    """A prompt that grows: `s += "text"`, `s += gen("name")`, `s["name"]`.

    `ret_value` is what the program's function returned, once it has.
    """

    ret_value: Any

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

    # ---- extending -----------------------------------------------------------------------------

    def __iadd__(self, other: Part) -> "ProgramState":
        if other is None:
            raise ValueError("a state cannot be extended by None")
        if not isinstance(other, str | Expr):
            raise TypeError(f"a state is extended by text or expressions, not {other!r}")
        self._interpreter.submit(other)
        return self

    def system(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.system(): ...`: a turn of the system."""
        return self._role("system", expr)

    def user(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.user(): ...`: a turn of the user."""
        return self._role("user", expr)

    def assistant(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.assistant(): ...`: a turn of the assistant."""
        return self._role("assistant", expr)

    def system_begin(self) -> None:
        """Open a turn of the system."""
        self._interpreter.submit(RoleBegin("system"))

    def system_end(self) -> None:
        """Close it."""
        self._interpreter.submit(RoleEnd("system"))

    def user_begin(self) -> None:
        """Open a turn of the user."""
        self._interpreter.submit(RoleBegin("user"))

    def user_end(self) -> None:
        """Close it."""
        self._interpreter.submit(RoleEnd("user"))

    def assistant_begin(self) -> None:
        """Open a turn of the assistant."""
        self._interpreter.submit(RoleBegin("assistant"))

    def assistant_end(self) -> None:
        """Close it."""
        self._interpreter.submit(RoleEnd("assistant"))

    def var_scope(self, name: str) -> AbstractContextManager[None]:
        """`with s.var_scope("v"): ...`: all text of the block becomes the variable `v`."""
        return self._between(VarScopeBegin(name), VarScopeEnd(name))

    def _role(self, role: str, expr: Part | None) -> AbstractContextManager[None]:
        if expr is not None:
            self._interpreter.submit(RoleBegin(role))
            self += expr
            self._interpreter.submit(RoleEnd(role))
            return _nothing()
        return self._between(RoleBegin(role), RoleEnd(role))

    @contextmanager
    def _between(self, begin: Expr, end: Expr) -> Iterator[None]:
        self._interpreter.submit(begin)
        try:
            yield
        finally:
            self._interpreter.submit(end)

    # ---- variables -----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable's value, as soon as it is there.

        Raises KeyError for a variable that nothing writes, ProgramError for one that never comes.
        """
        while (change := self._not_yet(name)) is not None:
            loop.wait(change)
        slot = self._slot(name)
        loop.wait(slot.done)
        return self._value(slot)

    def __setitem__(self, name: str, value: Any) -> None:
        self._interpreter.write(name, value)

    def __contains__(self, name: str) -> bool:
        """Whether the variable has its value by now; this does not wait."""
        slot = self._interpreter.variables.get(name)
        return slot is not None and slot.done.done() and slot.done.exception() is None

    async def get(self, name: str) -> Any:
        """`s[name]` for `async def` programs."""
        while (change := self._not_yet(name)) is not None:
            await loop.arrival(change)
        slot = self._slot(name)
        await loop.arrival(slot.done)
        return self._value(slot)

    def get_var(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """`s[name] = value`."""
        self[name] = value

    def get_meta_info(self, name: str, timeout: float | None = None) -> dict[str, Any] | None:
        """What the back end told of a variable (tokens, finish reason, log-probabilities).

        Waits as `s[name]` does, `timeout` seconds at most (TimeoutError). None for a variable that
        the model did not write. There is some of a gen whose text is no value, too.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while (change := self._not_yet(name)) is not None:
            loop.wait(change, _left_s(end))
        slot = self._interpreter.variables.get(name)
        if slot is None:
            return None
        loop.wait(slot.done, _left_s(end))
        if slot.meta is None:
            self._value(slot)
        return slot.meta

    def _not_yet(self, name: str) -> "Future[None] | None":
        """What to wait for if the function, which runs beside the reader, may still write it."""
        program, known = self.program, self._interpreter.variables
        if name in known or not program.streaming or current.get() is program:
            return None
        change = self._interpreter.change()
        return None if name in known or program.body_done.done() else change

    def _slot(self, name: str) -> Slot:
        slot = self._interpreter.variables.get(name)
        if slot is None:
            failure = self._interpreter.failure
            if failure is not None:
                raise ProgramError(f"{name!r} was never written: {failure}") from failure
            raise KeyError(name)
        return slot

    def _value(self, slot: Slot) -> Any:
        error = slot.done.exception()
        if error is not None:
            raise ProgramError(f"{slot.name!r} was not written: {_words(error)}") from error
        return slot.done.result()

    # ---- the whole state -----------------------------------------------------------------------

    def text(self) -> str:
        """All text, once everything submitted so far is done; after an error what there is."""
        loop.wait(self._interpreter.barrier())
        return self._interpreter.text

    def messages(self) -> list[dict[str, Any]]:
        """The closed turns of the chat, as OpenAI's API has them."""
        loop.wait(self._interpreter.barrier())
        return _messages(self._interpreter)

    def sync(self) -> None:
        """Wait for everything submitted so far. Raises ProgramError if the state has failed."""
        loop.wait(self._interpreter.barrier())
        self._check()

    async def wait(self) -> None:
        """`sync` for `async def` programs."""
        await loop.arrival(self._interpreter.barrier())
        self._check()

    def _check(self) -> None:
        failure = self._interpreter.failure
        if failure is not None:
            raise ProgramError(f"the state failed: {_words(failure)}") from failure

    def error(self) -> BaseException | None:
        """The first error of this state, or of its function; None if there is none."""
        loop.wait(self._interpreter.barrier())
        return self._interpreter.failure or _original(self._interpreter.program.body_error)

    def vars(self) -> dict[str, Any]:
        """The variables that have a value, once everything submitted so far is done."""
        loop.wait(self._interpreter.barrier())
        slots = list(self._interpreter.variables.items())
        return {
            name: slot.done.result()
            for name, slot in slots
            if name[:1] != "<" and slot.done.done() and slot.done.exception() is None
        }

    def usage(self) -> Usage:
        """What the calls of this state so far, and of its forks, took."""
        return self.trace().usage()

    def trace(self) -> Trace:
        """Every call of this state so far, and below its forks."""
        loop.wait(self._interpreter.barrier())
        return self._interpreter.trace

    def cancel(self) -> None:
        """End the whole run: its requests are aborted, and waits raise ProgramError."""
        self._interpreter.program.cancel()

    # ---- scores --------------------------------------------------------------------------------

    def score(self, continuations: Sequence[str]) -> dict[str, float]:
        """The log-probability of each text if it came next. The state stays as it is."""
        return self._scored(continuations, normalised=False)

    def distribution(self, choices: Sequence[str]) -> dict[str, float]:
        """The probability of each text among these if one of them came next."""
        return self._scored(choices, normalised=True)

    def _scored(self, texts: Sequence[str], normalised: bool) -> dict[str, float]:
        slot = self._interpreter.ask(Score(None, texts, normalised))
        loop.wait(slot.done)
        scores: dict[str, float] = self._value(slot)
        return scores

    # ---- forks ---------------------------------------------------------------------------------

    def fork(
        self, size: int = 1, position_ids_offset: Sequence[int] | None = None
    ) -> ProgramStateGroup:
        """`size` states that go on from here, side by side.

        They are used as one (`forks += ...`) or each by itself (`forks[i]`), and `join`ed.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        if position_ids_offset is not None:
            raise ValueError("position_ids_offset is not supported: positions follow the text")
        children = self._interpreter.fork(size)
        return ProgramStateGroup([ProgramState(child) for child in children], self)

    @contextmanager
    def copy(self, position_ids_offset: Sequence[int] | None = None) -> Iterator["ProgramState"]:
        """`with s.copy() as t: ...`: a fork of one, joined at the end of the block.

        Its new variables come back as lists of one element.
        """
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    # ---- streams -------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The run that this state belongs to."""
        return self._interpreter.program

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The state's text, or one variable's, piece by piece. Leaving it early ends the run.

        Raises ProgramError at the end of a state that failed, KeyError for a variable that the
        finished program never wrote.
        """
        return streaming.pieces(self._interpreter, var_name)

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for `async for`; with `return_meta_data` pairs of a piece and meta info."""
        return streaming.async_pieces(self._interpreter, var_name, return_meta_data)

    def tree_iter(self) -> Iterator[tuple[tuple[int, ...], str]]:
        """The pieces of this state and of its forks, with whose they are: () is this state, (1, 0)
        the first fork of its second one, all forks of a state counted. The run must stream."""
        return streaming.tree_pieces(self._interpreter)

    def tree_async_iter(self) -> AsyncIterator[tuple[tuple[int, ...], str]]:
        """`tree_iter` for `async for`."""
        return streaming.tree_async_pieces(self._interpreter)

    def __iter__(self) -> Iterator[str]:
        return self.text_iter()

    def __aiter__(self) -> AsyncIterator[str]:
        return self.text_async_iter()

    # ---- elsewhere -----------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """Once everything is done: see `pickling`."""
        self._until_over()
        # What the function returned is often the state itself, so it follows.
        own = {"ret_value": self.ret_value} if hasattr(self, "ret_value") else {}
        return _restored, (pickling.taken(self._interpreter),), own

    def _until_over(self) -> None:
        if current.get() is not self.program:
            loop.wait(self.program.body_done)
        loop.wait(self._interpreter.barrier())

    def _repr_html_(self) -> str:
        """For notebooks, once everything is done."""
        self._until_over()
        error = self.error()
        end = "" if error is None else f"<pre>{html.escape(_words(error))}</pre>"
        return self._interpreter.trace.html_of(self._interpreter.text) + end

    def __repr__(self) -> str:
        is_over = self._interpreter.is_idle and self.program.body_done.done()
        return f"ProgramState({self._interpreter.text!r}{'' if is_over else ', at work'})"

    def __format__(self, spec: str) -> str:
        raise TypeError("a state is no text: use s.text()")


def _restored(taken: dict[str, Any]) -> ProgramState:
    return ProgramState(pickling.restored(taken))


def _left_s(end: float) -> float | None:
    return None if end == math.inf else max(0.0, end - time.monotonic())


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _original(error: BaseException | None) -> BaseException | None:
    if isinstance(error, ProgramError) and error.__cause__ is not None:
        return error.__cause__
    return error


def _messages(interpreter: Interpreter) -> list[dict[str, Any]]:
    template = interpreter.program.template
    found: list[dict[str, Any]] = []
    if interpreter.said_default_system and template is not None:
        found.append({"role": "system", "content": template.default_system})
    for message in interpreter.messages:
        content: Any = message.content
        if message.images:
            content = [{"type": "text", "text": message.content}]
            content += [_image_part(image.data) for image in message.images]
        found.append({"role": message.role, "content": content})
    return found


def _image_part(data: bytes) -> dict[str, Any]:
    url = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
