"""One run of a function, and the ways to perform it: here, on a loop, or beside the caller."""

import inspect
from typing import Any

from lang import bodies, loop
from lang.program import Program
from lang.state import ProgramState
from lang.worker import Worker


class Run:
    """One run of a function: its state, and the ways to perform it."""

    def __init__(
        self, function: bodies.Function, program: Program, args: tuple, kwargs: dict[str, Any]
    ) -> None:
        self.state = ProgramState(Worker(program))
        self._is_async = inspect.iscoroutinefunction(function)
        self._call = (self.state, function, args, kwargs)

    def perform(self) -> None:
        """Run the function in this thread, whatever its kind."""
        if self._is_async:
            loop.call(self.perform_async())
        else:
            bodies.run_plain(*self._call)

    async def perform_async(self) -> None:
        """Run an `async def` function here."""
        await bodies.run_async(*self._call)

    def start(self) -> None:
        """Run the function beside the caller. What it raises is kept for the state's readers."""
        if self._is_async:
            loop.submit(self.perform_async())
        else:
            bodies.start(self.perform)

    async def rest(self) -> None:
        """Wait until all states are idle; being cancelled ends the run."""
        try:
            await loop.arrival(self.state.program.idle())
        except BaseException:
            self.state.program.cancel()
            raise
