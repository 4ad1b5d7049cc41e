"""Records what a function does to its state: the function is called once, and no model is asked.

What it reads are placeholders. Where it decides by one, or gives it to a function that needs a
text, recording ends.
"""

import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from lang.errors import TraceError
from lang.graph.ops import Extend, Fork, Inner, Join, Op, Read, Recorded, Write
from lang.run import marks
from lang.run.ir import Expr, ExprList, Part
from lang.run.source import place_of_caller
from lang.state.forks import GATHER_VARIABLE, RecordedForking
from lang.state.refs import Placeholder
from lang.state.unread import on_trace_error, trace_error

ADVICE = "only a run knows it"
ROOT = 0  # the state of the function itself

recording: contextvars.ContextVar["Recorder | None"] = contextvars.ContextVar(
    "recording", default=None
)


class Argument:
    """Stands for an argument that only a run has: `f.trace(question=arg)`."""


arg = Argument()


class Recorder:
    """One recording: what its states share."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.num_states = 0
        self.num_values = 0
        self.stopped = ""

    def add(self, op: Op) -> None:
        """The next step, unless the program has looked at what it cannot know."""
        if not self.stopped:
            self.ops.append(op)

    def stop(self, why: str) -> None:
        """The program has looked at what it cannot know, for the first time: it may catch that."""
        self.stopped = self.stopped or why

    def value(self, name: str) -> Placeholder:
        """A new placeholder."""
        self.num_values += 1
        return Placeholder(self.num_values - 1, name)

    def state(self) -> "GraphState":
        """A new state."""
        self.num_states += 1
        return GraphState(self, self.num_states - 1)

    def inner(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> "GraphState":
        """A function that runs inside the recorded one; `options` are other arguments of `run`."""
        was_stopped = bool(self.stopped)
        outer, self.ops = self.ops, []
        state = self.state()
        try:
            state.ret_value = _called(function, state, args, kwargs)
        finally:
            steps, self.ops = tuple(self.ops), outer
            if not was_stopped:
                self.ops.append(Inner(state.number, function, steps, options))
        return state


class GraphState(RecordedForking):
    """Stands for a state while its function is recorded."""

    advice = ADVICE
    ret_value: Any

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self.number = number
        self._values: dict[str, Any] = {}  # what the program itself has set
        self._names: set[str] = set()
        self.new_names: dict[str, None] = {}  # written since the fork, in order

    # ---- extending -----------------------------------------------------------------------------

    def _extend(self, part: Part) -> None:
        if isinstance(part, str) and marks.has_mark(part):
            part = ExprList([part])
        if isinstance(part, Expr):
            for name in part.names:
                if name is not None:
                    self._wrote(name)
        source = place_of_caller()
        for each in part.parts if isinstance(part, ExprList) else [part]:
            self._recorder.add(Extend(self.number, each, source))

    # ---- variables -----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """A value that the program has set, else a placeholder."""
        return self._values[name] if name in self._values else self._read(name, is_value=True)

    def var(self, name: str) -> Placeholder:
        """The variable's text."""
        return self._read(name, is_value=False)

    def _read(self, name: str, *, is_value: bool) -> Placeholder:
        if name not in self._names:
            raise KeyError(name)
        made = self._recorder.value(name)
        self._recorder.add(Read(self.number, name, made.number, is_value))
        return made

    async def get(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def _wrote(self, name: str) -> None:
        self._names.add(name)
        self.new_names[name] = None
        self._values.pop(name, None)

    def __setitem__(self, name: str, value: Any) -> None:
        self._wrote(name)
        self._values[name] = value
        self._recorder.add(Write(self.number, name, value))

    def text(self, errors: str = "raise") -> Placeholder:
        """All text so far."""
        if errors != "raise":
            raise trace_error("the program asks for the text of a state that may fail", ADVICE)
        made = self._recorder.value("text")
        self._recorder.add(Read(self.number, None, made.number, False))
        return made

    def sync(self) -> None:
        """Nothing is there to wait for."""

    async def wait(self) -> None:
        """The same."""

    def __iter__(self) -> NoReturn:
        raise trace_error("the program reads its state while it grows", ADVICE)

    def __getattr__(self, name: str) -> NoReturn:
        if name == "ret_value":
            raise AttributeError(name)
        super().__getattr__(name)

    # ---- forks ---------------------------------------------------------------------------------

    def _forked(self, size: int) -> list["GraphState"]:
        children = [self._recorder.state() for _ in range(size)]
        for child in children:
            child._names, child._values = set(self._names), dict(self._values)
        self._recorder.add(Fork(self.number, tuple(child.number for child in children)))
        return children

    def _join(self, forks: Sequence["GraphState"], mode: str) -> None:
        self._recorder.add(Join(self.number, tuple(each.number for each in forks), mode))
        if mode == GATHER_VARIABLE:
            names = [name for each in forks for name in each.new_names]
            for name in dict.fromkeys(names):
                self._wrote(name)
                self._values[name] = [each[name] if name in each._names else None for each in forks]


def record(
    function: Callable[..., Any],
    constants: Mapping[str, Any],
    parameters: Sequence[str],
    *,
    breaks: bool,
) -> Recorded:
    """Call the function with placeholders for `parameters`. What it does until it looks at one is
    recorded; without `breaks` that raises TraceError, and so does an error of the function."""
    recorder = Recorder()
    state = recorder.state()
    assert state.number == ROOT
    values = {each: recorder.value(each) for each in parameters}
    token, stopping = recording.set(recorder), on_trace_error.set(recorder.stop)
    returned = None
    try:
        returned = _called(function, state, (), {**constants, **values})
    except Exception as error:
        where = _where(error, function)
        if not breaks:
            if isinstance(error, TraceError):
                raise
            raise TraceError(f"{where}: {type(error).__name__}: {error}") from error
        recorder.stop(str(error) if isinstance(error, TraceError) else f"{where}: {error}")
    finally:
        recording.reset(token)
        on_trace_error.reset(stopping)
    if recorder.stopped and not breaks:
        raise TraceError(recorder.stopped)
    arguments = {each: made.number for each, made in values.items()}
    return Recorded(tuple(recorder.ops), arguments, returned, recorder.stopped)


def _called(
    function: Callable[..., Any], state: GraphState, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    returned = function(state, *args, **kwargs)
    if not inspect.iscoroutine(returned):
        return returned
    try:
        returned.send(None)
    except StopIteration as end:
        return end.value
    returned.close()
    raise trace_error("the program awaits something", "a recorded program awaits its state only")


def _where(error: BaseException, function: Callable[..., Any]) -> str:
    """The line of the function that raised."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code is code:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}" if line else "the function"
