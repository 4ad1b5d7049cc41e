"""Effects: functions of the program's own that a replay does not call again.

Their results are values as JSON has them, or of the type that the function says it returns, with a
log and without one: so that a program does the same on a replay.
"""

import asyncio
import inspect
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from lang import loop
from lang.errors import CancelledError, ProgramError
from lang.logs.address import Step
from lang.logs.entries import Entry, Request, arguments_of, request_of_effect
from lang.logs.trace import Call
from lang.run.program import Program, know, known, running
from lang.run.source import place_of_caller
from lang.run.stream import Stream
from lang.run.worker import Worker
from lang.state.refs import refuse_unread

_SHOWN_BYTES = 1024
T = TypeVar("T")


class Effects:
    """The methods for effects of a state."""

    _worker: Worker
    _stream: Stream

    def effect(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function`, after all that the state was given before; in a run with a log, record
        the result. A replay has it from the log and does not call the function.

        The result must be a value that msgspec can encode. It comes back as the type that the
        function says it returns, else as JSON has it. Raises what the function raises, which is
        not recorded, TypeError for another result, and ProgramError if the state has failed.
        """
        effect = effect_of(self._stream, function, args, kwargs)
        loop.wait(self._worker.barrier())
        self._stream.waits.also(known())
        is_logged, value = effect.from_log()
        if not is_logged:
            with effect.calling():
                result = function(*args, **kwargs)
            value = effect.done(result)
        know(self._stream.waits.calls)
        made: T = value
        return made

    async def aeffect(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`effect` for `async def` programs: an `async def` function is awaited here, another one
        runs in a thread."""
        effect = effect_of(self._stream, function, args, kwargs)
        await loop.arrival(self._worker.barrier())
        self._stream.waits.also(known())
        is_logged, value = effect.from_log()
        if not is_logged:
            with effect.calling():
                if inspect.iscoroutinefunction(function):
                    result = await function(*args, **kwargs)
                else:
                    result = await asyncio.to_thread(function, *args, **kwargs)
            value = effect.done(result)
        know(self._stream.waits.calls)
        return value


class Called(NamedTuple):
    """A function and its arguments, as a log has them; `returns` is the type of the result."""

    module: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returns: Any


def effect_of(
    stream: Stream, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> "Effect":
    """The call of `function` that comes next in the program, on the line that is being run."""
    refuse_unread(*args, *kwargs.values())
    module, name = names_of(function)
    called = Called(module, name, args, kwargs, _returned_type(function))
    return Effect(stream, called, stream.position.step(), place_of_caller())


def names_of(function: Callable[..., Any]) -> tuple[str, str]:
    """What a log calls a function: its module and its name."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return getattr(function, "__module__", ""), name


def program_in(stream: Stream, number: int) -> Program:
    """What runs inside an effect belong to: they have numbers of their own, so that those of the
    function are the same whether the effect is called or not."""
    outer, step = stream.program, Step("run", number)
    seed = stream.position.seed_of(step.kind, step.index)
    place = outer.place._replace(path=(*stream.position.path, step))
    with running(outer):
        return Program(outer.backend, structs.replace(outer.defaults, seed=seed), place=place)


class Effect:
    """One call of a function, which has its number in the program already. `took_s` is how long
    the function took, once that is known."""

    def __init__(self, stream: Stream, called: Called, number: int, source: str) -> None:
        self.took_s = 0.0
        self._stream, self._called = stream, called
        self._arguments = arguments_of(called.args, called.kwargs)
        self._number = number
        self._source = source
        what = f"{called.module}.{called.name}"
        self._request: Request = request_of_effect(what, self._arguments)
        self._call: Call | None = None
        self._ended: Callable[[], None] = lambda: None
        self._began = 0.0

    def from_log(self) -> tuple[bool, Any]:
        """Whether the log has the result, and the result. Raises ProgramError if the state has
        failed before it."""
        failure = self._stream.failure
        if isinstance(failure, CancelledError):
            raise ProgramError(f"{self._called.name} was not called: {failure}") from failure
        if failure is not None:
            raise ProgramError(f"{self._called.name} was not called: the state failed") from failure
        stream = self._stream
        self._call, self._ended = stream.begin_call(
            "effect", self._called.name, self._number, self._source, self._arguments
        )
        journal = stream.program.place.journal
        entry = None
        if journal is not None:
            entry = journal.found(stream.position, self._call.at, self._request, self._source)
        self._began = time.perf_counter()
        if entry is None:
            return False, None
        self._call.from_log = True
        self.took_s = entry.took_s
        return True, self._noted(bytes(entry.value))

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around the function's call: what it raises is noted, and runs inside it are its own."""
        program = program_in(self._stream, self._number)
        try:
            with running(program):
                yield
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            program.end_body()

    def failed(self, error: BaseException) -> None:
        """The function raised: nothing is recorded, so a replay calls it again."""
        assert self._call is not None
        self._call.error = f"{type(error).__name__}: {error}"
        self._call.latency_s = time.perf_counter() - self._began
        self._ended()

    def done(self, result: Any) -> Any:
        """Record the function's result, and return it as a replay would. TypeError for one that
        JSON cannot have."""
        assert self._call is not None
        self._call.latency_s = self.took_s = time.perf_counter() - self._began
        try:
            value = msgspec.json.encode(result)
        except (TypeError, ValueError, RecursionError) as error:
            self.failed(error)
            reason = f"the result of the effect {self._called.name} cannot be recorded: {error}"
            raise TypeError(reason) from None
        journal = self._stream.program.place.journal
        if journal is not None:
            journal.record(
                Entry(
                    at=self._call.address,
                    request=str(self._request),
                    kind="effect",
                    name=self._called.name,
                    source=self._source,
                    value=msgspec.Raw(value),
                    began_s=self._call.began_s,
                    took_s=self._call.latency_s,
                )
            )
        return self._noted(value)

    def _noted(self, value: bytes) -> Any:
        assert self._call is not None
        self._call.text = value[:_SHOWN_BYTES].decode(errors="replace")
        self._call.asked.answers = msgspec.json.decode(value)
        self._ended()
        return msgspec.json.decode(value, type=self._called.returns)


def _returned_type(function: Callable[..., Any]) -> Any:
    """The type that the function says it returns, if msgspec knows it; else Any."""
    try:
        kind = typing.get_type_hints(function).get("return", Any)
        if kind is not Any:
            msgspec.json.Decoder(kind)
    except Exception:
        return Any
    return kind
