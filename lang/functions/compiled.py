"""Compiled functions: runs of a graph in place of the Python function.

Where recording ended early, the calls before that are made as the graph has them, into a log in
memory; then the function itself runs, with the answers of that log, up to where it can decide.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lang import loop
from lang.functions.prepared import Prepared
from lang.functions.runs import Run, returns_of
from lang.graph.graph import Graph, Report
from lang.graph.ops import Inner
from lang.graph.replay import Replay, arrived, waited
from lang.logs.journal import Journal
from lang.logs.log import Log
from lang.run.program import Program, current, running
from lang.run.shared import SharedAnswers
from lang.run.worker import Worker
from lang.state.state import ProgramState


class Body:
    """What runs in the place of a function: its graph, with parts that a batch has ordered."""

    def __init__(
        self,
        graph: Graph,
        function: Callable[..., Any],
        constants: Mapping[str, Any],
        replaced: Mapping[int, Any] | None = None,
    ) -> None:
        self._graph, self._function = graph, function
        self._constants, self._replaced = constants, replaced or {}
        state, *rest = inspect.signature(function).parameters.values()
        self.signature = inspect.Signature([state, *(p for p in rest if p.name not in constants)])

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The body of a run in a thread, which waits only for what the function returns."""
        state, arguments = self._bound(args, kwargs)
        if not self._graph.stopped:
            return waited(self._replayed(state, arguments))
        made = self._ahead(state, arguments)
        loop.call(made.program.all_idle())
        self._follow(state, made)
        return self._function(state, **self._constants, **arguments)

    async def on_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The same without a thread."""
        state, arguments = self._bound(args, kwargs)
        if not self._graph.stopped:
            return await arrived(self._replayed(state, arguments))
        made = self._ahead(state, arguments)
        await made.program.all_idle()
        self._follow(state, made)
        return await self._function(state, **self._constants, **arguments)

    def callable(self, *, has_thread: bool) -> Callable[..., Any]:
        """A function with the parameters of the one that was compiled."""
        # A method takes no attributes.
        made: Any = partial(self.plain if has_thread else self.on_loop)
        made.__signature__ = self.signature
        made.__name__ = made.__qualname__ = self._graph.name
        made.__doc__ = self._function.__doc__
        made.constant_parts = self._graph.constant_parts()
        found: Callable[..., Any] = made
        return found

    def arguments(self, element: Any) -> dict[str, Any]:
        """The arguments of a row of a batch: a dict, or a tuple or list of them."""
        if isinstance(element, Mapping):
            return self._bound((None,), dict(element))[1]
        if not isinstance(element, list | tuple):
            raise TypeError(f"a row must be a dict, a tuple or a list, not {element!r}")
        return self._bound((None, *element), {})[1]

    def _bound(self, args: Any, kwargs: Any) -> tuple[ProgramState, dict[str, Any]]:
        given = self.signature.bind(*args, **kwargs)
        given.apply_defaults()
        state, *names = self.signature.parameters
        for name in names if self._graph.recorded.ops else ():
            # A placeholder is not None: the function may have asked that while it was recorded.
            if given.arguments[name] is None:
                raise TypeError(f"{name} is None: a constant of the graph, compile({name}=None)")
        return given.arguments[state], {name: given.arguments[name] for name in names}

    def _replayed(self, state: ProgramState, arguments: Mapping[str, Any]) -> Any:
        program = state.program
        program.place = program.place._replace(shared=SharedAnswers())
        program.returns = returns_of(self._function)
        replay = Replay(
            self._graph.recorded,
            arguments,
            _run_inner,
            dropped=self._graph.dropped,
            replaced=self._replaced,
        )
        replay.perform(state)
        return replay.returned()

    def _ahead(self, state: ProgramState, arguments: Mapping[str, Any]) -> ProgramState:
        """Make the graph's calls, in a run of its own at the same place."""
        place = state.program.place
        source = None if place.journal is None else place.journal.rest()
        models = None if place.journal is None else place.journal.models
        journal = Journal(Log(), source, models=models)
        program = Program(
            state.program.backend, state.program.defaults, place=place._replace(journal=journal)
        )
        made = ProgramState(Worker(program))
        with running(program):
            self._replayed(made, arguments)
        program.end_body()
        return made

    def _follow(self, state: ProgramState, made: ProgramState) -> None:
        """The function's own run is answered by what was asked ahead."""
        place, ahead = state.program.place, made.program.place.journal
        assert ahead is not None and ahead.log is not None
        before = place.journal
        replay = Log() if before is None else before.rest()
        for entry in ahead.log:
            replay.add(entry)
        log = None if before is None else before.log
        journal = Journal(log, replay, models=ahead.models)
        state.program.place = place._replace(journal=journal)
        state.program.returns = returns_of(self._function)


def _run_inner(op: Inner, perform: Callable[[ProgramState], None]) -> None:
    """A function inside the recorded one, with the same place and seeds as when it is called."""
    outer = current.get()
    assert outer is not None, "a graph is performed inside a run"
    defaults, place = outer.inner()
    options = op.options
    prepared = Prepared(
        perform,
        (),
        {},
        options["backend"] or outer.backend,
        defaults.merged(options["given"]),
        place,
        options["timeout_s"],
        options["speculation"],
    )
    run: Run = prepared.run(place)
    run.state.program.returns = returns_of(op.function)
    run.perform()


class Compiled:
    """A function as a graph: `run`, `arun`, `stream` and `run_batch` are those of the function, and
    make the same calls with the same answers, without its Python.

    Equal calls, of which nothing is left to chance, are made once. Calls whose text nothing needs
    are left out, and their variables raise when they are read. A batch has unordered pieces where
    most rows share them, and runs rows with common beginnings one after the other; each row keeps
    its number, and so its seeds.
    """

    def __init__(
        self,
        graph: Graph,
        function: Callable[..., Any],
        constants: Mapping[str, Any],
        program_of: Callable[[Callable[..., Any]], Any],
    ) -> None:
        self.graph = graph
        self.__name__ = graph.name
        self._function, self._constants, self._program_of = function, constants, program_of
        is_async = inspect.iscoroutinefunction(function)
        # A function that is needed for the rest must run as it would alone.
        self._run_has_thread = not (graph.stopped and is_async)
        self._others_have_thread = bool(graph.stopped) and not is_async
        self._body = Body(graph, function, constants)
        self._for_run = program_of(self._body.callable(has_thread=self._run_has_thread))
        self._for_others = program_of(self._body.callable(has_thread=self._others_have_thread))

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """The function's `run`."""
        state: ProgramState = self._for_run.run(*args, **kwargs)
        return state

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """The function's `arun`."""
        state: ProgramState = await self._for_others.arun(*args, **kwargs)
        return state

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """The function's `stream`."""
        return self._for_run.stream(*args, **kwargs)

    def run_batch(self, batch_kwargs: Sequence[Any], **kwargs: Any) -> Any:
        """The function's `run_batch`."""
        rows = [self._body.arguments(element) for element in batch_kwargs]
        body = Body(self.graph, self._function, self._constants, self.graph.orders(rows))
        program = self._program_of(body.callable(has_thread=self._others_have_thread))
        return program.run_batch(batch_kwargs, order=self.graph.row_order(rows), **kwargs)

    def prepared(self, *args: Any, **kwargs: Any) -> Prepared:
        """The function's `prepared`, for decoders."""
        made: Prepared = self._for_others.prepared(*args, **kwargs)
        return made

    # ---- what it is ----------------------------------------------------------------------------

    def report(self, rows: Sequence[Any] | None = None) -> Report:
        """What the graph consists of; with a batch's rows, how much of their prompts is shared."""
        given = None if rows is None else [self._body.arguments(each) for each in rows]
        return self.graph.report(given)

    def svg(self) -> str:
        """The graph as a drawing."""
        return self.graph.svg()

    def _repr_html_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return str(self.graph)
