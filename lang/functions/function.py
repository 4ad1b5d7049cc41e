"""`@function`: makes a Python function over a state a program that can be run.

`run` performs the function in the caller's thread, `arun` in a thread of the pool (or on the
caller's loop if it is an `async def`); either way its states work on the background loop.
"""

import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from lang import loop
from lang.backends.base import Backend
from lang.backends.config import backend_of
from lang.backends.sampling import PLAIN, Sampling
from lang.backends.speculating import NumTokens, Speculation
from lang.errors import UnsupportedError
from lang.functions import batch
from lang.functions.prepared import Logs, Prepared
from lang.functions.runs import returns_of
from lang.functions.tracer import constant_prefix, text_of
from lang.graph.graph import Graph
from lang.graph.ops import Recorded
from lang.graph.recorder import ADVICE, arg, record, recording
from lang.logs.address import Address
from lang.logs.log import Log
from lang.run import marks
from lang.run.program import Place, current
from lang.state.state import ProgramState
from lang.state.unread import trace_error

if TYPE_CHECKING:
    from lang.functions.compiled import Compiled
    from lang.remote.session import Session
    from srt.wire.programs import Guard, Objective, Perf

# Arguments of a run that are defaults of all gens, and their names here. A parameter of the
# function with the same name takes precedence.
_DEFAULTS = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"} | {
    name: name
    for name in Sampling.__struct_fields__
    if name not in ("regex", "json_schema", "ebnf", "timeout_s")
}
_SPECULATION = "num_api_spec_tokens"


class SglFunction:
    """A function whose first parameter is a state; of a method, the first after the object or, of
    a classmethod, after the class."""

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: NumTokens | Speculation | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(num_api_spec_tokens, Speculation):
            num_api_spec_tokens = Speculation(num_api_spec_tokens)
        self._speculation = num_api_spec_tokens
        self._kind: type = type(func)
        if isinstance(func, classmethod | staticmethod):
            func = func.__func__
        self.func = func
        self.bind_arguments = dict(bind_arguments or {})
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise TypeError(f"{func.__name__} has a yield: nothing would run it as a program")
        names = list(inspect.signature(func).parameters)
        if not names:
            raise TypeError("a program needs a parameter for its state")
        self.arg_names = names[1:]
        self._is_method = False
        self.__name__ = getattr(func, "__name__", "program")
        self.__doc__ = func.__doc__
        self.__wrapped__ = func

    def bind(self, **kwargs: Any) -> "SglFunction":
        """This function with some of its arguments given."""
        for name in kwargs:
            if name not in self.arg_names:
                raise TypeError(f"{self.__name__} has no parameter {name!r}")
        return SglFunction(self.func, self._speculation, {**self.bind_arguments, **kwargs})

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        return self.run(*args, **kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        """A program that is defined in a class is a method; one only stored there is not."""
        defined = getattr(self.func, "__qualname__", "")
        is_here = defined == f"{owner.__qualname__}.{self.__name__}"
        self._is_method = is_here and self._kind is not staticmethod

    def __get__(self, owner: Any, kind: type | None = None) -> "SglFunction":
        if owner is not None and owner is kind:  # classmethod passes the class as both arguments
            raise TypeError(f"{self.__name__}: @function must be above @classmethod")
        bound_to = kind if self._kind is classmethod else owner
        if bound_to is None or not self._is_method:
            return self
        return SglFunction(self.func.__get__(bound_to), self._speculation, self.bind_arguments)

    # ---- one run -------------------------------------------------------------------------------

    def run(
        self,
        *args: Any,
        stream: bool = False,
        backend: Any = None,
        timeout_s: float | None = None,
        use_thread: bool = True,
        log: Log | str | Path | None = None,
        replay: Log | str | Path | None = None,
        until: Address | str | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Run the function; its state may still be working when this returns.

        Sampling arguments are the defaults of all gens, also in programs that it runs, unless the
        function has a parameter of that name, and so is `num_api_spec_tokens` (see `function`; 0
        turns it off); the others go to the function. With `stream` the
        function runs beside the caller, who reads `text_iter`. `timeout_s` limits the whole run.
        Raises what the function raises; an error of the back end is in `error()`, and is raised by
        every wait for a value that it prevented. `use_thread` changes nothing here.

        Each answer is written into `log` (a Log or a path); what that has already is not asked
        again. `replay` is a log that is only read. `until` is the address of the first call that is
        asked although the log has it. LangError if another run is writing the log.
        """
        logs = Logs(log, replay, until)
        if recording.get() is not None:
            if stream:
                raise trace_error("the program reads a run while it grows", ADVICE)
            return cast(ProgramState, self._recorded(args, kwargs, backend, timeout_s, logs))
        prepared = self.prepared(args, kwargs, backend, timeout_s)
        call = prepared.run(logs=logs, streaming=stream)
        if stream:
            call.start()
        else:
            call.perform()
        return call.state

    async def arun(
        self,
        *args: Any,
        backend: Any = None,
        timeout_s: float | None = None,
        log: Log | str | Path | None = None,
        replay: Log | str | Path | None = None,
        until: Address | str | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """`run` for a running loop: returns when everything is done; cancelling it ends the run."""
        logs = Logs(log, replay, until)
        if recording.get() is not None:
            return cast(ProgramState, self._recorded(args, kwargs, backend, timeout_s, logs))
        call = self.prepared(args, kwargs, backend, timeout_s).run(logs=logs)
        await call.perform_beside()
        await call.rest()
        return call.state

    def stream(self, *args: Any, var_name: str | None = None, **kwargs: Any) -> "ProgramStream":
        """Run with `stream=True`; iterate over the result with `for` or `async for`."""
        return ProgramStream(self.run(*args, stream=True, **kwargs), var_name)

    def prepared(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        backend: Any = None,
        timeout_s: float | None = None,
    ) -> Prepared:
        """Arguments of a run, taken apart, from which runs are made."""
        if recording.get() is not None:
            raise trace_error("the program uses a decoder", ADVICE)
        outer = current.get()
        speculation = self._speculation_of(kwargs)
        defaults, place, rest = self.split_arguments(kwargs)
        inherited = outer.backend if outer is not None and backend is None else None
        chosen = inherited or backend_of(backend)
        _check_speculation(speculation, chosen)
        bound = {**self.bind_arguments, **rest}
        return Prepared(
            self.func, tuple(args), bound, chosen, defaults, place, timeout_s, speculation
        )

    def submit(
        self,
        *args: Any,
        session: "Session | None" = None,
        when: "Guard | None" = None,
        retries: int = 2,
        perf: "Objective | Perf | None" = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Have the function run on the server of a session, that of `with session()` by default:
        the variables that it writes, by name, each of which stands for its text.

        The function is called once, now, and nothing is asked of the model: it may extend its
        state, generate, select, fork and join. TraceError, with the line, if it reads a variable.
        `when` is a condition without which all of its calls are skipped; a call that fails in a way
        that may pass is made up to `retries` times again. Gets of its variables, and of what is
        made of one of them, that do not say what they want, want `perf`: see
        docs/programs.md. ValueError if that is nothing known.
        """
        # Late: what travels to a server needs numpy, and the language alone does not.
        from lang.remote.recorder import Recording, record
        from lang.remote.session import perf_of, session_of

        if inspect.iscoroutinefunction(self.func):
            raise TypeError(f"{self.__name__} is an async def: submit takes plain functions")
        if self._speculation_of(kwargs) is not None:
            raise UnsupportedError(_SPECULATION, "the server that runs the program has its prompts")
        defaults, _, rest = self.split_arguments(kwargs)
        app, wanted = session_of(session), perf_of(perf)
        recording = Recording(app, defaults, self.__name__, when, retries, wanted)
        recording.program.returns = returns_of(self.func)
        return record(self.func, args, {**self.bind_arguments, **rest}, recording)

    def split_arguments(self, kwargs: dict[str, Any]) -> tuple[Sampling, Place, dict[str, Any]]:
        """The defaults of all gens, added to those of the enclosing run, the place in it, and the
        function's own arguments."""
        given, rest = self._split(kwargs)
        outer = current.get()
        defaults, place = (PLAIN, Place()) if outer is None else outer.inner()
        return defaults.merged(given), place, rest

    def _speculation_of(self, kwargs: Mapping[str, Any]) -> Speculation | None:
        """The run's API speculation; None if neither it nor the function says any."""
        is_own = _SPECULATION in self.arg_names
        made = self._speculation.with_tokens(None if is_own else kwargs.get(_SPECULATION))
        return None if made.num_tokens is None else made

    def _split(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sampling arguments by their names here, and the function's own arguments."""
        taken = {k: v for k, v in _DEFAULTS.items() if k not in self.arg_names}
        if _SPECULATION not in self.arg_names:
            kwargs = {name: value for name, value in kwargs.items() if name != _SPECULATION}
        given = {taken[name]: value for name, value in kwargs.items() if name in taken}
        marks.refuse(**given)
        return given, {k: v for k, v in kwargs.items() if k not in taken}

    # ---- compiled ------------------------------------------------------------------------------

    def trace(self, **arguments: Any) -> Graph:
        """What the function does to its states, recorded: it is called once, and no model is asked.

        These arguments are part of it; those that are left out, or are `arg`, are a run's. Raises
        TraceError, with the line, if it decides by one, or by what a model would write.
        """
        return Graph(self.__name__, self._record(arguments, breaks=False), None, keep=True)

    def compile(
        self,
        *,
        outputs: Collection[str] | None = None,
        keep: bool = False,
        breaks: bool = True,
        **arguments: Any,
    ) -> "Compiled":
        """The function as a graph that runs without Python: see `Compiled`. Arguments as in
        `trace`.

        `outputs` are the variables that are wanted, besides what the function returns; None: all,
        and the text. What reaches none of them is left out, unless `keep`. Where the function looks
        at what only a run knows, the graph ends, and runs go on with the function itself; without
        `breaks` that raises TraceError.
        """
        from lang.functions.compiled import Compiled

        recorded = self._record(arguments, breaks=breaks)
        constants = {**self.bind_arguments, **_constants(arguments)}
        graph = Graph(self.__name__, recorded, outputs, keep=keep)
        program_of = partial(SglFunction, num_api_spec_tokens=self._speculation)
        return Compiled(graph, self.func, constants, program_of)

    def _record(self, arguments: dict[str, Any], *, breaks: bool) -> Recorded:
        for name in arguments:
            if name not in self.arg_names:
                raise TypeError(f"{self.__name__} has no parameter {name!r}")
        kinds = [p.kind for p in inspect.signature(self.func).parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
            raise TypeError(f"{self.__name__} has * parameters: it cannot be recorded")
        constants = {**self.bind_arguments, **_constants(arguments)}
        parameters = [name for name in self.arg_names if name not in constants]
        return record(self.func, constants, parameters, breaks=breaks)

    def _recorded(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        backend: Any,
        timeout_s: float | None,
        logs: Logs,
    ) -> Any:
        """A run of this function inside one that is being recorded."""
        if logs != Logs():
            raise trace_error("the program runs another one with a log", ADVICE)
        recorder = recording.get()
        assert recorder is not None
        given, rest = self._split(kwargs)
        chosen = None if backend is None else backend_of(backend)
        speculation = self._speculation_of(kwargs)
        if chosen is not None:
            _check_speculation(speculation, chosen)
        options: dict[str, Any] = {"given": given, "backend": chosen, "timeout_s": timeout_s}
        options["speculation"] = speculation
        return recorder.inner(self.func, args, {**self.bind_arguments, **rest}, options)

    # ---- many runs -----------------------------------------------------------------------------

    def run_batch(
        self,
        batch_kwargs: Sequence[Any],
        *,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        timeout_s: float | None = None,
        cache_prefix: bool | None = None,
        log: Log | str | Path | None = None,
        order: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the function for every element, `num_threads` at once: the states, in order.

        Elements are dicts of arguments, or tuples of them. A failed run is a state whose `error()`
        says why; the others are not affected. `generator_style` gives a generator; leaving it
        early ends the runs that are not done. `cache_prefix` says whether the prompts' constant
        beginning is sent ahead (None: as `global_config` says). `timeout_s` limits each run. One
        `log` has all runs, each under its row's number; see `run`. `order` is that in which rows
        begin.
        """
        if recording.get() is not None:
            raise trace_error("the program runs a batch", ADVICE)
        _, rest = self._split(kwargs)
        if rest:
            raise TypeError(f"run_batch has no argument {next(iter(rest))!r}")
        prepared = self.prepared((), kwargs, backend, timeout_s)
        calls = [(i, *self._arguments_of(i, element)) for i, element in enumerate(batch_kwargs)]
        options = batch.Options(log, num_threads, progress_bar, cache_prefix)
        states: Iterable[ProgramState]
        if order is None:
            states = batch.Batch(prepared, calls, options)
        else:
            begun = batch.Batch(prepared, [calls[i] for i in order], options)
            states = batch.in_rows(begun, order)
        return states if generator_style else list(states)

    def _arguments_of(self, index: int, element: Any) -> tuple[tuple, dict[str, Any]]:
        if isinstance(element, Mapping):
            return (), dict(element)
        if not isinstance(element, list | tuple):
            raise TypeError(f"batch_kwargs[{index}] must be a dict, a tuple or a list")
        if len(element) > len(self.arg_names):
            raise ValueError(f"batch_kwargs[{index}] has {len(element)} arguments: too many")
        return tuple(element), {}

    # ---- the constant prefix -------------------------------------------------------------------

    def constant_prefix(self, backend: Any = None) -> str:
        """The text that every prompt of this function begins with, as far as its source shows."""
        parts = constant_prefix(self.func, self.bind_arguments)
        return loop.call(text_of(parts, backend_of(backend)))

    def cache(self, backend: Any = None) -> None:
        """Let the server compute and cache the constant prefix now."""
        chosen = backend_of(backend)
        prefix = self.constant_prefix(chosen)
        if prefix:
            loop.call(chosen.prefetch(prefix))


def _check_speculation(speculation: Speculation | None, backend: Backend) -> None:
    reason = backend.capabilities.refuses_speculation
    if speculation is not None and speculation.num_tokens and reason is not None:
        raise UnsupportedError(
            _SPECULATION, f"{type(backend).__name__} has no use for it: {reason}"
        )


def _constants(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not arg}


class ProgramStream:
    """A running program as its text, for `for` and `async for`; `state` is its state."""

    def __init__(self, state: ProgramState, var_name: str | None) -> None:
        self.state = state
        self._var_name = var_name

    def __iter__(self) -> Iterator[str]:
        return self.state.text_iter(self._var_name)

    def __aiter__(self) -> AsyncIterator[str]:
        return self.state.text_async_iter(self._var_name)


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: NumTokens | None = None) -> Any: ...


@overload
def function(
    func: None = None, num_api_spec_tokens: NumTokens | None = None
) -> Callable[[Callable[..., Any]], Any]: ...


def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: NumTokens | None = None
) -> Any:
    """Make a program of a function whose first parameter is its state, `s`, or of a method or
    classmethod whose second one is (above `@classmethod`). Used bare or with arguments.

    `num_api_spec_tokens`: a gen that is followed by a literal and another gen may write this many
    tokens, so that one call answers both; "auto" as many as all of them have, where that is known.
    It is refused for back ends that it is of no use for.
    """
    if func is not None:
        return SglFunction(func, num_api_spec_tokens)
    return lambda given: SglFunction(given, num_api_spec_tokens)
