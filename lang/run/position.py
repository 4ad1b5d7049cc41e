"""Where the operations of a state stand in their run, and the seeds that follow from that."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lang.backends.sampling import derived_seed
from lang.logs.address import Address, Path, Step
from lang.run.program import Program


class Position:
    """A state's place in its run. The operations of a state are numbered in the order of the
    source: see `step`. `path` leads to the state. `at` and `source` are the number, and the file
    and line, of the operation that is being performed. `has_left` says that the state has left what
    the run's log has. `upcoming` gives the expressions, so many at most,
    that the state was given after it."""

    def __init__(self, program: Program, numbers: Iterator[int]) -> None:
        self._program = program  # whose place may change: a compiled one gets other logs
        self.path: Path = program.place.path
        self.seed = program.defaults.seed
        self.at, self.source, self.has_left = 0, "", False
        self.upcoming: Callable[[int], Sequence[Any]] = lambda most: ()
        self._numbers = numbers
        self._copies = itertools.count()  # which change no number

    def step(self, count: int = 1) -> int:
        """The number of the next operation, which takes `count` of them."""
        first = next(self._numbers)
        for _ in range(count - 1):
            next(self._numbers)
        return first

    def address(self, number: int) -> Address:
        """The address of the operation with this number."""
        return Address(self._program.place.row, self.path, number)

    def seed_of(self, kind: str, number: int, *more: int) -> int | None:
        """The seed of the operation with this number; None in a run without one."""
        return derived_seed(self.seed, kind, number, *more)

    def seed_of_copy(self) -> int | None:
        """The seed of the next pickled copy."""
        return self.seed_of("pickled", next(self._copies))

    def go(self, parent: "Position", step: Step) -> None:
        """Stand one step from `parent`."""
        self.path = (*parent.path, step)
        self.seed = parent.seed_of(step.kind, step.index, step.child)

    def take_branch(self, branch: int) -> None:
        """The operation has the answer `branch` of several: the ones that follow differ."""
        self.go(self, Step("branch", self.at, branch))

    def leave_log(self, number: int) -> None:
        """From this number on, the log of the run is not followed."""
        self.has_left = True
        journal = self._program.place.journal
        if journal is not None:
            journal.left(self.address(number))
