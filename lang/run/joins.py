"""Forks and joins: open the children of a stream, and gather what they have made."""

from collections.abc import Sequence

from lang import loop
from lang.logs.address import Step
from lang.logs.trace import ForkTrace
from lang.run.ir import Expr, Slots
from lang.run.stream import Stream
from lang.run.worker import Worker


def fork(worker: Worker, size: int) -> list[Worker]:
    """`size` children that continue from here, each with a seed of its own."""
    number = worker.stream.position.step()
    children = [worker.child() for _ in range(size)]
    worker.submit(_Fork(children, number))
    return children


class _Fork(Expr):
    """Opens the children, all with copies of this stream, whether it has failed or not."""

    def __init__(self, children: Sequence[Worker], number: int) -> None:
        self.children = children
        self.number = number

    def leave(self, stream: Stream, slots: Slots) -> None:
        traces = [child.stream.trace for child in self.children]
        stream.trace.steps.append(ForkTrace(traces, stream.untraced()))
        for i, child in enumerate(self.children):
            child.stream.begin_as(stream, Step("fork", self.number, i))
            child.open()


class Join(Expr):
    """Waits for the children and gathers what they have made: variables, or their texts."""

    def __init__(self, children: Sequence[Worker], gathered: Sequence[str], texts: bool) -> None:
        self.children = children
        self.gathered = tuple(gathered)
        self.texts = texts

    @property
    def names(self) -> tuple[str | None, ...]:
        return self.gathered

    @property
    def num_steps(self) -> int:
        return 1

    async def perform(self, stream: Stream, slots: Slots) -> None:
        for child in self.children:
            await loop.arrival(child.barrier())
            stream.waits.also(child.stream.waits.calls)
        streams = [child.stream for child in self.children]
        if any(each.position.has_left for each in streams):
            stream.position.leave_log(stream.position.at)
        for each in streams:
            if each.failure is not None:
                raise each.failure
        if self.texts:
            for each in streams:
                stream.transcript.append_all_of(each.transcript)
        for slot in slots:
            found = [each.variables.get(slot.name) for each in streams]
            slot.settle([it.done.result() if it and it.done.done() else None for it in found])
