"""What a run of a function is given: its arguments and logs. One run is made of it, or many."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from lang.backends.base import Backend
from lang.backends.sampling import Sampling, derived_seed
from lang.backends.speculating import Speculation, Store
from lang.functions.runs import Function, Run
from lang.logs.address import Address, Step
from lang.logs.journal import Journal
from lang.logs.log import Log, Owner, log_of
from lang.run.program import Place, Program

Given = Log | str | os.PathLike[str] | None


class Logs(NamedTuple):
    """Arguments of a run; see `SglFunction.run`."""

    log: Given = None
    replay: Given = None
    until: Address | str | None = None

    def place(self, place: Place, owner: Owner) -> Place:
        """The place of a run, or of a batch's runs, which `owner` stands for, with these logs; with
        those of the run around it if there are none. Raises LangError if another run writes the
        log, ValueError for an `until` that it has not."""
        log, replay = log_of(self.log), log_of(self.replay)
        if log is None and replay is None:
            if self.until is not None:
                raise ValueError("until needs a log")
            return place
        if log is not None:
            log.begin(owner)
        return Place(journal=Journal(log, replay, self.until), ahead=place.ahead)


class Runnable(Protocol):
    """A function, or a compiled one."""

    __name__: str

    def prepared(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        backend: Any = None,
        timeout_s: float | None = None,
    ) -> "Prepared":
        """Arguments of a run, taken apart, from which runs are made."""
        ...


class Prepared(NamedTuple):
    """`place` is that of the run, or of what stands for several, in the run around it. Without a
    `speculation` of its own, a run has that of the one around it."""

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    backend: Backend
    defaults: Sampling
    place: Place
    timeout_s: float | None
    speculation: Speculation | None = None

    def run(
        self, place: Place | None = None, logs: Logs | None = None, *, streaming: bool = False
    ) -> Run:
        """A run at `place`, its own by default, which has not begun."""
        place = self.place if place is None else place
        if self.speculation is not None:
            place = place._replace(ahead=Store(self.speculation))
        program = Program(self.backend, self.defaults, streaming=streaming, place=place)
        if logs is not None:
            program.place = logs.place(program.place, program)
        made = Run(self.function, program, self.args, self.kwargs)
        program.limit(self.timeout_s)
        return made

    def row(self, row: int) -> "Prepared":
        """The same as one row of many, with a seed of its own."""
        place = self.place
        place = place.below(Step("row", row)) if place.path else place._replace(row=row)
        seed = derived_seed(self.defaults.seed, "row", row)
        return self._replace(place=place, defaults=structs.replace(self.defaults, seed=seed))
