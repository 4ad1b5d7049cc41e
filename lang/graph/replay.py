"""Performs a recorded program on the states of a run: nothing here waits, and no Python of it runs.

The states are those of any run, so seeds, addresses, logs, streams and errors are the same.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any

from lang import loop
from lang.errors import LangError
from lang.graph.ops import Extend, Fork, Inner, Join, Op, Read, Recorded, Write, refs_in, replaced
from lang.graph.recorder import ROOT
from lang.run.ir import Expr, Part, Slots, Writer, bound
from lang.run.joins import fork
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.run.worker import Worker, held
from lang.state.refs import Known, Ref, Variable, ref_of
from lang.state.state import ProgramState, joined

Orders = Mapping[int, Part]  # what takes the place of parts, by the id of their steps
RunInner = Callable[[Inner, Callable[[ProgramState], None]], None]


class TextSoFar(Expr):
    """Settles a variable with all text of the state."""

    def perform(self, stream: Stream, slots: Slots) -> None:
        slots[0].settle(stream.transcript.text)


class Assign(Writer):
    """Sets a variable to what a program made of references."""

    name: str

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    async def perform(self, stream: Stream, slots: Slots) -> None:
        slots[0].settle(await arrived(self.value))


class Replay:
    """One run of a recorded program, with these arguments."""

    def __init__(
        self,
        recorded: Recorded,
        arguments: Mapping[str, Any],
        run_inner: RunInner,
        *,
        dropped: Collection[int] = (),
        replaced: Orders | None = None,
    ) -> None:
        self._recorded, self._run_inner = recorded, run_inner
        self._dropped, self._replaced = dropped, replaced or {}
        self._workers: dict[int, Worker] = {}
        self._values: dict[int, Any] = {
            number: ref_of(arguments[name]) for name, number in recorded.arguments.items()
        }

    def perform(self, state: ProgramState) -> None:
        """Perform all steps, beginning with this state."""
        self._all(ROOT, state, self._recorded.ops)

    def _all(self, number: int, state: ProgramState, ops: tuple[Op, ...]) -> None:
        self._workers[number] = state._worker
        # Speculation sees what follows a gen only if that is there when it is performed.
        speculates = state.program.place.ahead is not None
        with held(state._worker) if speculates else nullcontext():
            for op in ops:
                self._one(op)

    def returned(self) -> Any:
        """What the function returned, with references of this run."""
        return self._bound(self._recorded.returned)

    def _bound(self, value: Any) -> Any:
        """A value that a function made, with the placeholders in it replaced."""
        return replaced(value, lambda ref: ref.bound(self._values))

    def _one(self, op: Op) -> None:
        if isinstance(op, Inner):
            self._run_inner(op, lambda state: self._all(op.state, state, op.steps))
            return
        worker = self._workers[op.state]
        if id(op) in self._dropped:
            _drop(worker, op)
            return
        match op:
            case Extend(part=part, source=source):
                part = self._replaced.get(id(op), part)
                if not isinstance(part, str):
                    part = bound(part, self._values)
                worker.submit(part, source)
            case Fork(children=children):
                made = fork(worker, len(children))
                self._workers.update(zip(children, made, strict=True))
            case Join(children=children, mode=mode):
                worker.submit(joined([self._workers[each] for each in children], mode))
            case Write(name=name, value=value):
                if refs_in(value):
                    worker.submit(Assign(name, self._bound(value)))
                else:
                    worker.write(name, value)
            case Read(name=name, number=number, is_value=is_value):
                self._values[number] = _reference(worker, name, is_value)


def _reference(worker: Worker, name: str | None, is_value: bool) -> Variable:
    if name is None:
        return Variable(worker.ask(TextSoFar()), None)
    slot: Slot = worker.stream.variables[name]
    writer = None if worker.stream.variables.has_inherited(slot) else worker
    return Variable(slot, writer, is_value=is_value)


def _drop(worker: Worker, op: Op) -> None:
    """Leave out a step: what follows keeps its numbers, and its variables raise."""
    if isinstance(op, Extend) and not isinstance(op.part, str):
        if op.part.num_steps:
            worker.stream.position.step(op.part.num_steps)
        for name in op.part.names:
            slot = worker.stream.variables.declare(name)
            text = f"{name!r} was dropped: nothing that the compiled program gives needs it"
            slot.done.set_exception(LangError(text))
    elif isinstance(op, Join | Fork):
        worker.stream.position.step()


async def arrived(value: Any) -> Any:
    """The same with the values of its references, once they are there."""
    for ref in refs_in(value):
        await ref.arrive()
    return replaced(value, _value_of)


def waited(value: Any) -> Any:
    """`arrived` for programs without a loop."""
    if any(not ref.is_ready() for ref in refs_in(value)):
        loop.call(arrived(value))
    return replaced(value, _value_of)


def _value_of(ref: Ref) -> Any:
    return ref.value if isinstance(ref, Variable | Known) else ref.text()
