"""Forks and joins: open the children of a stream, and gather what they have made."""

from collections.abc import Sequence

from lang import loop
from lang.ir import Expr, Slots
from lang.run.stream import Stream
from lang.run.trace import ForkTrace
from lang.sampling import derived_seed
from lang.work.worker import Worker


def fork(worker: Worker, size: int) -> list[Worker]:
    """`size` children that continue from here, each with a seed of its own."""
    address = worker.stream.step("fork")
    children = [worker.child() for _ in range(size)]
    for i, child in enumerate(children):
        child.stream.seed = derived_seed(worker.stream.seed, *address, i)
    worker.submit(_Fork(children))
    return children


class _Fork(Expr):
    """Opens the children, all with copies of this stream, whether it has failed or not."""

    def __init__(self, children: Sequence[Worker]) -> None:
        self.children = children

    def leave(self, stream: Stream, slots: Slots) -> None:
        stream.trace.steps.append(ForkTrace([child.stream.trace for child in self.children]))
        for child in self.children:
            child.stream.begin_as(stream)
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

    async def perform(self, stream: Stream, slots: Slots) -> None:
        for child in self.children:
            await loop.arrival(child.barrier())
        streams = [child.stream for child in self.children]
        for each in streams:
            if each.failure is not None:
                raise each.failure
        if self.texts:
            for each in streams:
                stream.append_all_of(each)
        for slot in slots:
            found = [each.variables.get(slot.name) for each in streams]
            slot.settle([it.done.result() if it and it.done.done() else None for it in found])
